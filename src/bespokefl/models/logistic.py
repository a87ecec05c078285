"""Logistic regression: one linear layer, the smallest model there is."""

import math

from torch import Tensor, nn


class Logistic(nn.Module):
    """Logistic regression (linear regression for real-valued targets)."""

    def __init__(self, shape: tuple[int, ...], classes: int) -> None:
        super().__init__()
        self.head = nn.Linear(math.prod(shape), classes)

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = self.head(x.flatten(1))
        return output
