"""Inspection of a user's module before training: its head, and layers that are not supported."""

import copy
from collections import OrderedDict
from typing import Any

import torch
from torch import Tensor, nn

from bespokefl.core.errors import InputError


def without_lazy(module: nn.Module) -> nn.Module:
    """Return the module; raise an InputError if it has parameters without a shape."""
    lazy = [name for name, value in module.named_parameters() if isinstance(value, nn.UninitializedParameter)]
    if lazy:
        raise InputError(
            f"the model's {lazy[0]!r} has no shape yet (a lazy layer): give the layer its sizes, or call the model on "
            "an example before you return it."
        )
    return module


def first_line(error: Exception) -> str:
    """The first line of an error message, or the name of the error."""
    lines = str(error).strip().splitlines()
    return lines[0].rstrip(".") if lines else type(error).__name__


class _Inside(nn.Module):
    """A layer under its name in a larger module."""

    def __init__(self, name: str, layer: nn.Module) -> None:
        super().__init__()
        first, _, rest = name.partition(".")
        self._bespoke_inner = first
        self.add_module(first, _Inside(rest, layer) if rest else layer)

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = self.get_submodule(self._bespoke_inner)(x)
        return output


def own_copy(module: nn.Module, device: torch.device, dtype: torch.dtype) -> nn.Module:
    """Copy a module, as a factory may return the same one again; frozen values, which may be large, share memory."""
    frozen = [one for one in module.parameters() if not one.requires_grad]
    shared: dict[int, Any] = {id(one): nn.Parameter(one.detach(), requires_grad=False) for one in frozen}
    return copy.deepcopy(module, shared).to(device=device, dtype=dtype)


def only_layer(module: nn.Module, names: tuple[str, ...]) -> nn.Module:
    """A module of one layer, that of these parameters, which keep their names and are shared."""
    path = names[0].rpartition(".")[0]
    return _Inside(path, module.get_submodule(path))


def split_frozen(module: nn.Module, trained: tuple[str, ...]) -> tuple[nn.Module, nn.Module] | None:
    """The layers of a Sequential before the first trained one, and the others, which keep their names.

    None if the first ones have no weights, or if the module is another one.
    """
    if type(module) is not nn.Sequential or module._forward_hooks or module._forward_pre_hooks:
        return None
    layers = list(module._modules.items())
    own = {name.partition(".")[0] for name in trained}
    at = next(at for at, (name, _) in enumerate(layers) if name in own)
    below, above = (nn.Sequential(OrderedDict(some)) for some in (layers[:at], layers[at:]))
    return (below, above) if any(True for _ in below.parameters()) else None


def head_of(module: nn.Module, names: tuple[str, ...], head: str | None) -> tuple[str, ...]:
    """The parameters of the head: the named layer, else the one called "head", else the last linear layer."""

    def inside(prefix: str) -> tuple[str, ...]:
        return tuple(name for name in names if name == prefix or name.startswith(prefix + ".") or not prefix)

    if head is not None:
        if not inside(head):
            children = ", ".join(dict.fromkeys(name.rpartition(".")[0] or name for name in names))
            raise InputError(f"the model has no head {head!r}; its trainable layers are {children}.")
        return inside(head)
    linear = [name for name, layer in module.named_modules() if isinstance(layer, nn.Linear) and inside(name)]
    return inside("head") or (inside(linear[-1]) if linear else ())
