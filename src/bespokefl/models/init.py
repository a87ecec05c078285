"""How a network's weights begin: as torch draws them, or larger, as Glorot and Bengio or He et al. do.

It matters to whatever looks at gradients before training. Torch's own draw shrinks what passes through a layer about
threefold; after five layers the outputs hardly depend on the input, and neither do the gradients.
"""

from collections.abc import Callable

from torch import Tensor, nn

from bespokefl.core.errors import unknown

Draw = Callable[[Tensor], Tensor]

INITS: dict[str, Draw | None] = {
    "torch": None,
    "glorot": nn.init.xavier_uniform_,  # AISTATS 2010; what Keras does
    "he": nn.init.kaiming_normal_,  # ICCV 2015
}


def begin(module: nn.Module, init: str) -> None:
    """Draw a network's linear and convolutional weights anew, with biases of zero; "torch" leaves them as they are."""
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
