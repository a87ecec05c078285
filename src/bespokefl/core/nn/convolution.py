"""Convolution before pooling over windows of 2 × 2, with the results of torch's up to rounding.

The four pixels of a window are computed as four channels, by a convolution of stride 2 whose kernels have one more row
and column: each has the weights at one of four places and zeros elsewhere. This takes more multiplications, but torch
computes blocks of 16 channels and pads the last one, so four times as many channels can be cheaper. Pooling then
combines whole images instead of neighbouring pixels.
"""

from functools import lru_cache

import torch
import torch.nn.functional as F
from torch import Tensor


def convolve_windows(x: Tensor, weight: Tensor, bias: Tensor | None, padding: tuple[int, ...]) -> Tensor:
    """Return the outputs of the convolution of stride 1, in windows: (N, 2, 2, channels, height / 2, width / 2).

    The outputs' height and width must be even.
    """
    outputs, inputs, height, width = weight.shape
    kernels = weight.reshape(outputs * inputs, -1) @ _placements(height, width, weight.dtype)
    kernels = kernels.reshape(outputs, inputs, 4, height + 1, width + 1).permute(2, 0, 1, 3, 4).flatten(0, 1)
    y = F.conv2d(x, kernels, None if bias is None else bias.repeat(4), stride=2, padding=padding)
    return y.reshape(len(x), 2, 2, outputs, *y.shape[2:])


@lru_cache(maxsize=64)
def _placements(height: int, width: int, dtype: torch.dtype) -> Tensor:
    """The matrix that copies a kernel to the four places in a kernel with one more row and one more column."""
    kernels = torch.eye(height * width, dtype=dtype).reshape(-1, height, width)
    places = [F.pad(kernels, (j, 1 - j, i, 1 - i)) for i in (0, 1) for j in (0, 1)]
    return torch.stack(places, 1).flatten(1)
