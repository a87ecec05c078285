"""What built-in models share: their base class, initial weights and the check of sizes."""

from collections.abc import Callable

from torch import Tensor, nn

from bespokefl.core.errors import InputError, unknown

# Methods that use gradients before training may need the larger weights of Glorot and Bengio or He et al.: PyTorch's
# default reduces the scale of activations about threefold per layer; after five layers the outputs, and hence the
# gradients, hardly depend on the input.
INITS: dict[str, Callable[[Tensor], Tensor] | None] = {
    "torch": None,
    "glorot": nn.init.xavier_uniform_,  # AISTATS 2010; the default of Keras
    "he": nn.init.kaiming_normal_,  # ICCV 2015
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
    """Draw linear and convolutional weights again and set biases to zero; "torch" leaves all weights unchanged."""
    if init not in INITS:
        raise unknown("init", init, INITS)
    draw = INITS[init]
    if draw is None:
        return
    for layer in module.modules():
        if isinstance(layer, nn.Linear | nn.modules.conv._ConvNd):
            draw(layer.weight)
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)
