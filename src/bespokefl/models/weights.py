"""Initial weights: PyTorch's default, or the larger ones of Glorot and Bengio or He et al.

They matter for methods that use gradients before training. PyTorch's default reduces the scale of activations about
threefold per layer; after five layers the outputs, and hence the gradients, hardly depend on the input.
"""

from collections.abc import Callable

from torch import Tensor, nn

from bespokefl.core.errors import unknown

INITS: dict[str, Callable[[Tensor], Tensor] | None] = {
    "torch": None,
    "glorot": nn.init.xavier_uniform_,  # AISTATS 2010; the default of Keras
    "he": nn.init.kaiming_normal_,  # ICCV 2015
}


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
