"""The base class of the built-in models and the check of their sizes."""

from torch import Tensor, nn

from bespokefl.core.errors import InputError


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
