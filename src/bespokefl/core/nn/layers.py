"""Layers that compute what torch's do, faster on a processor: an engine puts them in their place.

A module keeps its weights, names and hooks; only the class of a layer is exchanged, and only where its type is exactly
torch's own. Where a shape does not suit, the layer computes as torch's does.
"""

import copy
from functools import lru_cache

import torch
import torch.nn.functional as F
from torch import Tensor, nn

WIDEST = 64  # pixels a row of which is averaged as a matrix product; beyond, most of the product would be by zero


class MatrixAvgPool2d(nn.AvgPool2d):
    """Averages of square, adjoining windows as one matrix product, forward and back."""

    def forward(self, input: Tensor) -> Tensor:
        window = self._window()
        *front, height, width = input.shape
        if not window or height % window or width % window or width > WIDEST or input.device.type != "cpu":
            return super().forward(input)
        averages = _averages(width, window, input.dtype)
        return (input.reshape(-1, window * width) @ averages).reshape(*front, height // window, width // window)

    def _window(self) -> int:
        """The windows' side, or 0 where they overlap, are padded or no squares."""
        sides = {*_pair(self.kernel_size), *_pair(self.stride)}
        plain = len(sides) == 1 and _pair(self.padding) == (0, 0) and self.divisor_override is None
        return int(sides.pop()) if plain else 0


class StackedLinear(nn.Linear):
    """A linear layer written (W xᵀ)ᵀ: with one W per row, autograd's weight gradient of x Wᵀ is slow, of this not."""

    def forward(self, input: Tensor) -> Tensor:
        if input.dim() != 2:
            return F.linear(input, self.weight, self.bias)
        output = (self.weight @ input.mT).mT
        return output if self.bias is None else output + self.bias


def quick(module: nn.Module, *, stacked: bool = False) -> nn.Module:
    """A copy that computes faster; it has the module's own parameters and buffers, not copies of them."""
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
    """The matrix that takes `window` rows of pixels, one after the other, to their windows' averages."""
    pixel = torch.arange(window * width)
    matrix = torch.zeros(window * width, width // window, dtype=dtype)
    matrix[pixel, (pixel % width) // window] = 1 / window**2
    return matrix


def _pair(value: int | tuple[int, ...]) -> tuple[int, ...]:
    return (value, value) if isinstance(value, int) else tuple(value)
