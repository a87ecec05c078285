"""Logistic regression, fully connected networks, and what all models share: base class and initial weights."""

import math
from collections.abc import Callable
from itertools import pairwise

from torch import Tensor, nn

from bespokefl.core.errors import InputError, unknown

Draw = Callable[[Tensor], Tensor]

INITS: dict[str, tuple[Draw, Draw] | None] = {  # for convolutions and for linear layers
    "torch": None,
    "glorot": (nn.init.xavier_uniform_, nn.init.xavier_uniform_),  # AISTATS 2010; the default of Keras
    "he": (nn.init.kaiming_normal_, nn.init.kaiming_normal_),  # ICCV 2015
    "he-glorot": (nn.init.kaiming_uniform_, nn.init.xavier_uniform_),  # the authors' code of User-Centric FL
}


class BaseAndHead(nn.Module):
    """A model of two parts: `base` computes features, `head` is the last linear layer."""

    base: nn.Module
    head: nn.Module

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = self.head(self.base(x))
        return output


def check_sizes(**sizes: object) -> None:
    """Check that all values are integers >= 1."""
    for name, value in sizes.items():
        if type(value) is not int or value < 1:
            raise InputError(f"{name} must be an integer >= 1, got {value!r}")


def initialize(module: nn.Module, init: str) -> None:
    """Draw linear and convolutional weights again and set biases to zero; "torch" leaves all weights unchanged.

    Initial weights matter for methods that use gradients before training: PyTorch's default reduces the scale of
    activations about threefold per layer; after five layers the outputs, and hence the gradients, hardly depend on the
    input.
    """
    if init not in INITS:
        raise unknown("init", init, INITS)
    draws = INITS[init]
    if draws is None:
        return
    for layer in module.modules():
        if isinstance(layer, nn.Linear | nn.modules.conv._ConvNd):
            draws[isinstance(layer, nn.Linear)](layer.weight)
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)


class Logistic(BaseAndHead):
    """Logistic regression (linear regression for real-valued targets)."""

    def __init__(self, shape: tuple[int, ...], classes: int) -> None:
        super().__init__()
        self.base = nn.Flatten()
        self.head = nn.Linear(math.prod(shape), classes)


class MLP(BaseAndHead):
    """Fully connected layers with ReLU; hidden=(100,) are the widths between input and output."""

    def __init__(
        self, shape: tuple[int, ...], classes: int, hidden: int | tuple[int, ...] = (100,), init: str = "torch"
    ) -> None:
        super().__init__()
        widths = (hidden,) if isinstance(hidden, int) else hidden
        if not isinstance(widths, tuple | list) or not widths or not all(type(w) is int and w > 0 for w in widths):
            raise InputError(f"hidden must be one or more integers >= 1, such as (100,), got {hidden!r}")
        layers: list[nn.Module] = [nn.Flatten()]
        for inputs, outputs in pairwise((math.prod(shape), *widths)):
            layers += [nn.Linear(inputs, outputs), nn.ReLU()]
        self.base = nn.Sequential(*layers)
        self.head = nn.Linear(widths[-1], classes)
        initialize(self, init)
