"""Low-rank adapters on a frozen model: only small matrices, and what is unfrozen, are trained and are columns of rows.

Hu et al., ICLR 2022, arXiv:2106.09685: a linear layer W becomes W + (α/r) B A, with A of shape (r, inputs) drawn at
random and B of shape (outputs, r) zero, so that the model starts as it was.
"""

import math
from collections.abc import Sequence
from fnmatch import fnmatchcase

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bespokefl.core.errors import InputError, listing
from bespokefl.models.dense import check_sizes

LAYERS = (nn.TransformerEncoderLayer, nn.TransformerDecoderLayer)


class LoRALinear(nn.Module):
    """A frozen linear layer plus (α/r) B A; it has the parameters of the layer under their names."""

    def __init__(self, layer: nn.Linear, rank: int, alpha: float) -> None:
        super().__init__()
        self.weight, self.bias = layer.weight, layer.bias
        self.lora_A = nn.Parameter(torch.empty(rank, layer.in_features).to(layer.weight))
        self.lora_B = nn.Parameter(torch.zeros(layer.out_features, rank).to(layer.weight))
        nn.init.kaiming_uniform_(self.lora_A, a=math.sqrt(5))  # as the authors' code, loralib
        self.scale = alpha / rank

    def forward(self, input: Tensor) -> Tensor:
        return F.linear(input, self.weight, self.bias) + self.scale * F.linear(
            F.linear(input, self.lora_A), self.lora_B
        )


def lora(
    module: nn.Module,
    layers: str | Sequence[str] = "*",
    *,
    rank: int = 8,
    alpha: float = 16.0,
    unfreeze: str | Sequence[str] = "head",
) -> nn.Module:
    """Freeze a module, put adapters into linear layers, and unfreeze others, such as the head. Changes the module.

    Parameters
    ----------
    module : Module
        A pre-trained model.
    layers : str or sequence of str
        Names of linear layers that get an adapter, or patterns such as "encoder.*".
    rank, alpha : int, float
        r and α. The defaults are those of FedSA-LoRA.
    unfreeze : str or sequence of str
        Names, or patterns, of layers that are trained as a whole; they get no adapters. () for none.

    Returns
    -------
    Module
        The same module.

    Raises
    ------
    InputError
        If no layer matches.

    Examples
    --------
    >>> def model(shape, classes):
    ...     return bf.models.lora(pretrained(classes), layers="encoder.*", unfreeze="classifier")
    """
    check_sizes(rank=rank)
    patterns, whole = _listed(layers), _listed(unfreeze)
    found = [(name, layer) for name, layer in module.named_modules() if name]
    free = {name for name, _ in found for pattern in whole if fnmatchcase(name, pattern)}
    unmatched = [one for one in whole if not any(fnmatchcase(name, one) for name in free)]
    if unmatched:
        raise InputError(f"the model has no layer {listing(unmatched)} to unfreeze; it has {listing(_linear(module))}.")
    module.requires_grad_(False)
    for name in free:
        module.get_submodule(name).requires_grad_(True)
    chosen = [
        name
        for name in _linear(module)
        if any(fnmatchcase(name, one) for one in patterns)
        and not any(name == one or name.startswith(one + ".") for one in free)
    ]
    if not chosen:
        raise InputError(f"no linear layer matches {listing(patterns)}; the model has {listing(_linear(module))}.")
    for name in chosen:
        layer = module.get_submodule(name)
        assert isinstance(layer, nn.Linear)
        module.set_submodule(name, LoRALinear(layer, rank, alpha))
    for one in module.modules():
        if isinstance(one, LAYERS) and any(isinstance(layer, LoRALinear) for layer in one.children()):
            one.activation_relu_or_gelu = 0  # torch's fast path in evaluation reads weights and would skip adapters
    return module


def _listed(names: str | Sequence[str]) -> list[str]:
    return [names] if isinstance(names, str) else list(names)


def _linear(module: nn.Module) -> list[str]:
    """The names of ordinary linear layers; the projections of torch's attention are not layers of their own."""
    return [name for name, layer in module.named_modules() if type(layer) is nn.Linear and name]
