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

from bespokefl.core.nn.convolution import convolve_windows
from bespokefl.core.nn.pooling import max_of_windows, max_pool
from bespokefl.core.nn.statistics import STACKED

MAX_WIDTH = 64  # pixels; in wider images most of the matrix product would be with zeros
BLOCK = 16  # channels that torch's convolutions compute together; the last block is padded
MAX_COLORS = 3  # channels of images whose convolution is computed together with the pooling
MIN_OUTPUTS = 150_000  # of such a convolution for a batch; for fewer, the larger kernels cost as much as they save
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

    def halves(self) -> bool:
        """Whether windows are 2 × 2, adjacent and not padded."""
        return self._window() == 2

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
        even = input.dim() in (3, 4) and input.shape[-1] % 2 == input.shape[-2] % 2 == 0
        usual = input.device.type == "cpu" and input.dtype in (torch.float32, torch.float64)
        large = input.numel() >= MIN_PIXELS or not (input.requires_grad and torch.is_grad_enabled())
        return self.halves() and even and usual and large

    def halves(self) -> bool:
        """Whether windows are 2 × 2, adjacent and not padded, and only maxima are returned."""
        options = (*_pair(self.kernel_size), *_pair(self.stride), *_pair(self.padding), *_pair(self.dilation))
        return options == (2, 2, 2, 2, 0, 0, 1, 1) and not self.return_indices


QuickPool = MatrixAvgPool2d | PairwiseMaxPool2d


class QuickSequential(nn.Sequential):
    """Layers in a row, some of which are computed together or in another order; not if they have hooks.

    A ReLU before maximum pooling is computed after it, on a quarter of the pixels. A first convolution and the pooling
    after it, with or without a ReLU between them, are computed together.
    """

    def forward(self, input: Tensor) -> Tensor:
        output, rest = input, list(self)
        while rest:
            layer, *rest = rest
            relu = len(rest) > 1 and type(rest[0]) is nn.ReLU and not _hooked(rest[0])
            pool = rest[int(relu)] if rest and not _hooked(layer, rest[int(relu)]) else None
            if type(layer) is nn.Conv2d and isinstance(pool, QuickPool) and _together(layer, pool, output):
                output, rest = _pooled(layer, pool, output, relu=relu), rest[relu + 1 :]
            elif type(layer) is nn.ReLU and isinstance(pool, PairwiseMaxPool2d) and not (relu or pool.return_indices):
                output, rest = pool(output, relu=True), rest[1:]
            else:
                output = layer(output)
        return output


class StackedLinear(nn.Linear):
    """A linear layer computed as (W xᵀ)ᵀ: under vmap, autograd's weight gradient of x Wᵀ is slow."""

    def forward(self, input: Tensor) -> Tensor:
        if input.dim() != 2:
            return F.linear(input, self.weight, self.bias)
        output = (self.weight @ input.mT).mT
        return output if self.bias is None else output + self.bias.to(output.dtype)  # another one under autocast


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
        elif stacked and type(layer) in STACKED:
            layer.__class__ = STACKED[type(layer)]
    return twin


def _together(layer: nn.Conv2d, pool: QuickPool, input: Tensor) -> bool:
    """Whether a convolution and the pooling after it can be computed as one, and faster.

    It is faster for images of few channels, if the convolution's last block of channels is at most half full: then four
    times as many channels fill blocks better. The gradient of such an input would be slower.
    """
    plain = {*layer.stride, *layer.dilation, layer.groups} == {1} and layer.padding_mode == "zeros"
    if not plain or isinstance(layer.padding, str) or input.dim() != 4 or not pool.halves():
        return False
    usual = input.device.type == "cpu" and input.dtype in (torch.float32, torch.float64)
    first = layer.in_channels <= MAX_COLORS and not (input.requires_grad and torch.is_grad_enabled())
    sides = input.shape[2:], layer.padding, layer.kernel_size
    height, width = (side + 2 * padding - kernel + 1 for side, padding, kernel in zip(*sides, strict=True))
    even = height > 0 < width and height % 2 == width % 2 == 0
    large = len(input) * layer.out_channels * height * width >= MIN_OUTPUTS and min(layer.kernel_size) > 1
    return usual and first and even and large and 0 < layer.out_channels % BLOCK <= BLOCK // 2


def _pooled(layer: nn.Conv2d, pool: QuickPool, x: Tensor, *, relu: bool) -> Tensor:
    """Return pool(layer(x)), or with `relu` pool(relu(layer(x)))."""
    weight, bias = layer.weight, layer.bias
    padding = _pair(layer.padding)  # type: ignore[arg-type]  # not a string: _together
    if isinstance(pool, PairwiseMaxPool2d):
        return max_of_windows(convolve_windows(x, weight, bias, padding), 1, 2, relu=relu)
    # relu(y) / 4 = relu(y / 4), and a kernel is smaller than an image
    windows = convolve_windows(x, weight / 4, None if bias is None else bias / 4, padding)
    return (F.relu(windows) if relu else windows).sum((1, 2))


@lru_cache(maxsize=64)
def _averages(width: int, window: int, dtype: torch.dtype) -> Tensor:
    """The matrix that maps `window` concatenated rows of pixels to the averages of their windows."""
    pixel = torch.arange(window * width)
    matrix = torch.zeros(window * width, width // window, dtype=dtype)
    matrix[pixel, (pixel % width) // window] = 1 / window**2
    return matrix


def _hooked(*layers: nn.Module) -> bool:
    return any(
        one._forward_hooks or one._forward_pre_hooks or one._backward_hooks or one._backward_pre_hooks for one in layers
    )


def _pair(value: int | tuple[int, ...]) -> tuple[int, ...]:
    return (value, value) if isinstance(value, int) else tuple(value)
