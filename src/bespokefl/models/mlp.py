"""Fully connected layers with ReLU between them."""

import math
from itertools import pairwise

from torch import Tensor, nn

from bespokefl.core.errors import InputError
from bespokefl.models.init import begin


class MLP(nn.Module):
    """Fully connected layers; hidden=(100,) are the widths between input and output."""

    def __init__(
        self, shape: tuple[int, ...], classes: int, hidden: int | tuple[int, ...] = (100,), init: str = "torch"
    ) -> None:
        super().__init__()
        widths = (hidden,) if isinstance(hidden, int) else hidden
        if not isinstance(widths, tuple | list) or not widths or not all(type(w) is int and w > 0 for w in widths):
            raise InputError(f"hidden must be one or more whole numbers >= 1, such as (100,), got {hidden!r}")
        layers: list[nn.Module] = [nn.Flatten()]
        for wide, narrow in pairwise((math.prod(shape), *widths)):
            layers += [nn.Linear(wide, narrow), nn.ReLU()]
        self.base = nn.Sequential(*layers)
        self.head = nn.Linear(widths[-1], classes)
        begin(self, init)

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = self.head(self.base(x))
        return output
