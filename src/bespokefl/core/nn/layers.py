"""Layers with the results of torch's, but faster on a CPU, which replace torch's in a copy of a module.

A module keeps its weights, names and hooks: only the class of a layer is replaced, and only if its type is exactly
torch's own. For unsupported shapes the layer computes as torch's does.
"""

import copy
from functools import lru_cache

import torch
import torch.nn.functional as F
from torch import Tensor, nn

MAX_WIDTH = 64  # pixels; in wider images most of the matrix product would be with zeros


class MatrixAvgPool2d(nn.AvgPool2d):
    """Average pooling over adjacent square windows, as one matrix product."""

    def forward(self, input: Tensor) -> Tensor:
        window = self._window()
        *front, height, width = input.shape
        if not window or height % window or width % window or width > MAX_WIDTH or input.device.type != "cpu":
            return super().forward(input)
        averages = _averages(width, window, input.dtype)
        return (input.reshape(-1, window * width) @ averages).reshape(*front, height // window, width // window)

    def _window(self) -> int:
        """The side of the windows, or 0 if they overlap, are padded or not square."""
        sides = {*_pair(self.kernel_size), *_pair(self.stride)}
        plain = len(sides) == 1 and _pair(self.padding) == (0, 0) and self.divisor_override is None
        return int(sides.pop()) if plain else 0


class StackedLinear(nn.Linear):
    """A linear layer computed as (W xᵀ)ᵀ: under vmap, autograd's weight gradient of x Wᵀ is slow."""

    def forward(self, input: Tensor) -> Tensor:
        if input.dim() != 2:
            return F.linear(input, self.weight, self.bias)
        output = (self.weight @ input.mT).mT
        return output if self.bias is None else output + self.bias


def quick(module: nn.Module, *, stacked: bool = False) -> nn.Module:
    """A faster copy of a module, which shares its parameters and buffers."""
    shared = {id(one): one for one in (*module.parameters(), *module.buffers())}
    twin = copy.deepcopy(module, shared)
    for layer in twin.modules():
        if type(layer) is nn.AvgPool2d:
            layer.__class__ = MatrixAvgPool2d
        elif stacked and type(layer) is nn.Linear:
            layer.__class__ = StackedLinear
    return twin


@lru_cache(maxsize=64)
def _averages(width: int, window: int, dtype: torch.dtype) -> Tensor:
    """The matrix that maps `window` concatenated rows of pixels to the averages of their windows."""
    pixel = torch.arange(window * width)
    matrix = torch.zeros(window * width, width // window, dtype=dtype)
    matrix[pixel, (pixel % width) // window] = 1 / window**2
    return matrix


def _pair(value: int | tuple[int, ...]) -> tuple[int, ...]:
    return (value, value) if isinstance(value, int) else tuple(value)
