"""Inspection of a user's module before training: its head, and layers that are not supported."""

from torch import nn

from bespokefl.core.errors import InputError


def set_mode(module: nn.Module, train: bool) -> None:
    """As `module.train(train)`, but batch norm, which is only allowed in frozen parts, keeps its statistics."""
    if module.training == train:
        return
    module.train(train)
    for layer in module.modules():
        if isinstance(layer, nn.modules.batchnorm._BatchNorm):
            layer.eval()


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


def reject_batch_norm(module: nn.Module) -> None:
    """Raise an InputError for batch norm layers that are not frozen, and put the others into evaluation mode."""
    for name, layer in module.named_modules():
        if not isinstance(layer, nn.modules.batchnorm._BatchNorm):
            continue
        if not layer.affine or not layer.track_running_stats or any(p.requires_grad for p in layer.parameters()):
            raise InputError(
                f"the model's layer {name!r} is a {type(layer).__name__}, whose statistics mix examples and are not "
                "trainable weights: use GroupNorm or LayerNorm instead, or freeze it (requires_grad=False)."
            )
        layer.eval()


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
