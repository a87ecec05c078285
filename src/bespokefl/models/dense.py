"""Models without structure: logistic regression and fully connected layers."""

import math
from itertools import pairwise

from torch import nn

from bespokefl.core.errors import InputError
from bespokefl.models.module import BaseAndHead, initialize


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
