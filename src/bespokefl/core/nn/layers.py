"""Layers with the results of torch's, but faster on a CPU, which replace torch's in a copy of a module.

A module keeps its weights, names and hooks: only the class of a layer is replaced, and only if its type is exactly
torch's own. For unsupported shapes the layer computes as torch's does. Whether a layer suits is decided by its options
and the shape of its input.
"""

import copy
from functools import lru_cache

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bespokefl.core.nn.pooling import max_pool

MAX_WIDTH = 64  # pixels; in wider images most of the matrix product would be with zeros
MIN_PIXELS = 150_000  # of a batch, in training; for fewer, torch's single kernel for maximum pooling is as fast


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


class PairwiseMaxPool2d(nn.MaxPool2d):
    """Maximum pooling over adjacent 2 × 2 windows by comparisons of whole images, bit-equal to torch's."""

    def forward(self, input: Tensor, *, relu: bool = False) -> Tensor:
        """With `relu`, the result is max(pooled, 0), which equals the pooled max(input, 0)."""
        if self._suits(input):
            return max_pool(input, relu=relu)
        output: Tensor = super().forward(input)
        return F.relu(output) if relu else output

    def _suits(self, input: Tensor) -> bool:
        options = (*_pair(self.kernel_size), *_pair(self.stride), *_pair(self.padding), *_pair(self.dilation))
        even = input.dim() in (3, 4) and input.shape[-1] % 2 == input.shape[-2] % 2 == 0
        usual = input.device.type == "cpu" and input.dtype in (torch.float32, torch.float64)
        large = input.numel() >= MIN_PIXELS or not (input.requires_grad and torch.is_grad_enabled())
        return options == (2, 2, 2, 2, 0, 0, 1, 1) and not self.return_indices and even and usual and large


class QuickSequential(nn.Sequential):
    """Layers in a row; a ReLU before maximum pooling is computed after it, on a quarter of the pixels.

    Layers with hooks are called in their places.
    """

    def forward(self, input: Tensor) -> Tensor:
        layers = list(self)
        output, postponed = input, False
        for layer, following in zip(layers, [*layers[1:], None], strict=True):
            if postponed:
                output, postponed = layer(output, relu=True), False
            elif type(layer) is nn.ReLU and isinstance(following, PairwiseMaxPool2d):
                postponed = not following.return_indices and not _hooked(layer) and not _hooked(following)
                output = output if postponed else layer(output)
            else:
                output = layer(output)
        return output


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
        elif type(layer) is nn.MaxPool2d and not stacked:  # vmap has no rule for it
            layer.__class__ = PairwiseMaxPool2d
        elif type(layer) is nn.Sequential and not stacked:
            layer.__class__ = QuickSequential
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


def _hooked(layer: nn.Module) -> bool:
    return bool(layer._forward_hooks or layer._forward_pre_hooks or layer._backward_hooks or layer._backward_pre_hooks)


def _pair(value: int | tuple[int, ...]) -> tuple[int, ...]:
    return (value, value) if isinstance(value, int) else tuple(value)
