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
    return max_of_windows(x.unflatten(-1, (-1, 2)).unflatten(-3, (-1, 2)), -3, -1, relu=relu)


def max_of_windows(x: Tensor, rows: int, columns: int, *, relu: bool = False) -> Tensor:
    """Return the maxima over two dimensions of size 2, `rows` before `columns`; with `relu`, those of max(x, 0)."""
    rows, columns = rows % x.dim(), columns % x.dim()
    if torch.is_grad_enabled() and x.requires_grad:
        output: Tensor = _MaxPool.apply(x, rows, columns, relu)  # type: ignore[no-untyped-call]
        return output
    return _maximum(_maximum(x, columns), rows, relu)


def _maximum(x: Tensor, dim: int, relu: bool = False) -> Tensor:
    maxima = torch.maximum(x.select(dim, 0), x.select(dim, 1))
    return maxima.relu_() if relu else maxima


class _MaxPool(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, rows: int, columns: int, relu: bool) -> Tensor:
        ctx.dims = rows, columns
        higher = _maximum(x, columns)
        maxima = _maximum(higher, rows, relu)
        to_right = x.select(columns, 1) - x.select(columns, 0)  # positive where the right column has the maximum
        to_bottom = higher.select(rows, 1) - higher.select(rows, 0)
        ctx.save_for_backward(to_right, to_bottom, *([maxima] if relu else []))
        return maxima

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        return _Spread.apply(gradient, *ctx.dims, *ctx.saved_tensors), None, None, None  # type: ignore[no-untyped-call]


class _Spread(Function):
    """The gradient of maximum pooling, a linear function of the maxima's gradient, with its own gradient."""

    @staticmethod
    def forward(
        ctx: Any, gradient: Tensor, rows: int, columns: int, to_right: Tensor, to_bottom: Tensor, *positive: Tensor
    ) -> Tensor:
        ctx.dims = rows, columns
        ctx.save_for_backward(to_right, to_bottom, *positive)
        for maxima in positive:
            gradient = _keep_positive(gradient, maxima, 0)
        bottom = _keep_positive(gradient, to_bottom, 0)
        higher = torch.empty_like(to_right)
        higher.select(rows, 1).copy_(bottom)
        torch.sub(gradient, bottom, out=higher.select(rows, 0))
        right = _keep_positive(higher, to_right, 0)
        left = higher.sub_(right)
        if columns == left.dim():
            return torch.view_as_real(torch.complex(left, right))  # interleaves faster than stack
        return torch.stack([left, right], columns)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        to_right, to_bottom, *positive = ctx.saved_tensors
        rows, columns = ctx.dims
        higher = torch.where(to_right > 0, gradient.select(columns, 1), gradient.select(columns, 0))
        chosen = torch.where(to_bottom > 0, higher.select(rows, 1), higher.select(rows, 0))
        for maxima in positive:
            chosen = chosen * (maxima > 0)
        return chosen, *[None] * (2 + len(ctx.saved_tensors))
