"""Maximum pooling over windows of 2 × 2, from comparisons of neighbouring columns and then of rows.

torch's own kernel looks at one window after the other and takes as long as the convolution before it. Of equal values
in a window the first one gets the gradient, row by row, as in torch.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

_keep_positive = torch.ops.aten.threshold_backward  # (values, signs, 0): the values whose signs are positive, else 0


def max_pool(x: Tensor, *, relu: bool = False) -> Tensor:
    """Return the maxima of adjacent 2 × 2 windows of images with even sides; with `relu`, those of max(x, 0)."""
    if torch.is_grad_enabled() and x.requires_grad:
        output: Tensor = _MaxPool.apply(x, relu)  # type: ignore[no-untyped-call]
        return output
    return _maxima(_columns(x), relu)


def _columns(x: Tensor) -> Tensor:
    return torch.maximum(x[..., ::2], x[..., 1::2])


def _maxima(columns: Tensor, relu: bool) -> Tensor:
    maxima = torch.maximum(columns[..., ::2, :], columns[..., 1::2, :])
    return maxima.relu_() if relu else maxima


class _MaxPool(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, relu: bool) -> Tensor:
        columns = _columns(x)
        maxima = _maxima(columns, relu)
        to_right = x[..., 1::2] - x[..., ::2]  # positive where the right column has the maximum
        to_bottom = columns[..., 1::2, :] - columns[..., ::2, :]
        ctx.save_for_backward(to_right, to_bottom, *([maxima] if relu else []))
        return maxima

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return _Spread.apply(gradient, *ctx.saved_tensors), None  # type: ignore[no-untyped-call]


class _Spread(Function):
    """The gradient of maximum pooling, a linear function of the maxima's gradient, with its own gradient."""

    @staticmethod
    def forward(ctx: Any, gradient: Tensor, to_right: Tensor, to_bottom: Tensor, *positive: Tensor) -> Tensor:
        ctx.save_for_backward(to_right, to_bottom, *positive)
        for maxima in positive:
            gradient = _keep_positive(gradient, maxima, 0)
        bottom = _keep_positive(gradient, to_bottom, 0)
        rows = torch.empty_like(to_right)
        rows[..., 1::2, :] = bottom
        torch.sub(gradient, bottom, out=rows[..., ::2, :])
        right = _keep_positive(rows, to_right, 0)
        return torch.view_as_real(torch.complex(rows.sub_(right), right)).flatten(-2)  # interleaved

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        to_right, to_bottom, *positive = ctx.saved_tensors
        rows = torch.where(to_right > 0, gradient[..., 1::2], gradient[..., ::2])
        chosen = torch.where(to_bottom > 0, rows[..., 1::2, :], rows[..., ::2, :])
        for maxima in positive:
            chosen = chosen * (maxima > 0)
        return chosen, *[None] * len(ctx.saved_tensors)
