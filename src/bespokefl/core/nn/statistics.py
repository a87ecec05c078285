"""Layers with state: buffers that training changes, such as the running statistics of batch norm.

They are columns of rows, after the parameters. Training reads them from a row and returns new values; autograd,
momentum and weight decay never touch them. Torch's layers with running statistics are known; a layer of the user's own
names its buffers in an attribute `running_statistics`.
"""

from collections.abc import Iterable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm, _NormBase

from bespokefl.core.errors import InputError

NORMS = (_NormBase, nn.GroupNorm, nn.LayerNorm, nn.RMSNorm)  # layers that `Layout.norm` lists
Slot = tuple[dict[str, Tensor | None], str]  # a layer's buffers, and the name of one


class ClientBatchNorm(_BatchNorm):
    """Batch norm on the batch of one client, as torch's.

    A batch with a single value per channel has no variance, and torch refuses it. Here it is normalized by the running
    statistics and does not change them, so that a client's last batch may have one example.
    """

    def forward(self, input: Tensor) -> Tensor:
        self._check_input_dim(input)  # type: ignore[no-untyped-call]
        if not self.training or input.numel() == input.shape[1]:
            return self._by_running(input)
        if self.momentum is not None:
            return self._by_batch(input, self.momentum)
        assert self.num_batches_tracked is not None
        self.num_batches_tracked.add_(1)
        return self._by_batch(input, 1 / float(self.num_batches_tracked))

    def _by_batch(self, input: Tensor, weight: float) -> Tensor:
        statistics = self.running_mean, self.running_var  # changed in place
        return F.batch_norm(input, *statistics, self.weight, self.bias, True, weight, self.eps)

    def _by_running(self, input: Tensor) -> Tensor:
        return F.batch_norm(input, self.running_mean, self.running_var, self.weight, self.bias, False, 0.0, self.eps)


class StackedBatchNorm(ClientBatchNorm):
    """The same for a row of a stacked pass, whose last examples may be padding: `present` says which are not."""

    present: Tensor | None = None

    def forward(self, input: Tensor) -> Tensor:
        self._check_input_dim(input)  # type: ignore[no-untyped-call]
        each = input[:1, :1].numel()  # values per channel and example
        if not self.training or (self.present is None and len(input) * each == 1):
            return self._by_running(input)
        if self.present is None and self.momentum is not None:
            return self._by_batch(input, self.momentum)
        mean, var = self.running_mean, self.running_var
        assert mean is not None and var is not None
        input = input.to(mean.dtype)  # sums of bfloat16 numbers would be coarse
        present = input.new_ones(len(input)) if self.present is None else self.present.to(input.dtype)
        inside = present.reshape(-1, *[1] * (input.dim() - 1))
        size, channels, over = present.sum() * each, (1, -1, *[1] * (input.dim() - 2)), [0, *range(2, input.dim())]
        usable = size > 1
        batch_mean = (input * inside).sum(over) / size
        batch_var = ((input - batch_mean.reshape(channels)).square() * inside).sum(over) / size
        weight: float | Tensor | None = self.momentum
        if weight is None:
            assert self.num_batches_tracked is not None
            self.num_batches_tracked = self.num_batches_tracked + usable.to(mean.dtype)
            weight = 1 / self.num_batches_tracked.clamp(min=1)
        unbiased = (batch_var * size / (size - 1).clamp(min=1)).detach()
        self.running_mean = torch.where(usable, mean + (batch_mean.detach() - mean) * weight, mean)
        self.running_var = torch.where(usable, var + (unbiased - var) * weight, var)
        used_mean, used_var = torch.where(usable, batch_mean, mean), torch.where(usable, batch_var, var)
        output = (input - used_mean.reshape(channels)) * (used_var + self.eps).rsqrt().reshape(channels)
        if self.weight is not None:
            output = output * self.weight.reshape(channels)
        return output if self.bias is None else output + self.bias.reshape(channels)


class ClientBatchNorm1d(ClientBatchNorm, nn.BatchNorm1d):
    """`ClientBatchNorm` in place of torch's `BatchNorm1d`."""


class ClientBatchNorm2d(ClientBatchNorm, nn.BatchNorm2d):
    """`ClientBatchNorm` in place of torch's `BatchNorm2d`."""


class ClientBatchNorm3d(ClientBatchNorm, nn.BatchNorm3d):
    """`ClientBatchNorm` in place of torch's `BatchNorm3d`."""


class StackedBatchNorm1d(StackedBatchNorm, nn.BatchNorm1d):
    """`StackedBatchNorm` in place of `ClientBatchNorm1d`."""


class StackedBatchNorm2d(StackedBatchNorm, nn.BatchNorm2d):
    """`StackedBatchNorm` in place of `ClientBatchNorm2d`."""


class StackedBatchNorm3d(StackedBatchNorm, nn.BatchNorm3d):
    """`StackedBatchNorm` in place of `ClientBatchNorm3d`."""


CLIENT: dict[type[nn.Module], type[nn.Module]] = {
    nn.BatchNorm1d: ClientBatchNorm1d,
    nn.BatchNorm2d: ClientBatchNorm2d,
    nn.BatchNorm3d: ClientBatchNorm3d,
}
STACKED: dict[type[nn.Module], type[nn.Module]] = {
    ClientBatchNorm1d: StackedBatchNorm1d,
    ClientBatchNorm2d: StackedBatchNorm2d,
    ClientBatchNorm3d: StackedBatchNorm3d,
}


class Statistics:
    """The buffers of a module that training changes, by the layers that have them. Changes the module's batch norm.

    Raises
    ------
    InputError
        If a batch norm layer has no running statistics, so that its predictions mix examples.
    """

    def __init__(self, module: nn.Module) -> None:
        self.layers: dict[str, tuple[str, ...]] = {}  # by layer: the names of its buffers in the module
        self.unstackable: str | None = None  # the type of a layer whose statistics cannot be computed for stacked rows
        for name, layer in module.named_modules():
            own = _buffers(name, layer)
            if not own:
                continue
            kind = CLIENT.get(type(layer))
            if kind is not None:
                layer.__class__ = kind
            else:
                self.unstackable = self.unstackable or type(layer).__name__
            for key in own:  # a number of batches is averaged like the other statistics
                layer._buffers[key] = _buffer(layer, name, key).to(_dtype(module))
            self.layers[name] = tuple(f"{name}.{key}" if name else key for key in own)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of all buffers."""
        return tuple(name for own in self.layers.values() for name in own)

    def values(self, module: nn.Module) -> dict[str, Tensor]:
        """The present values in a module."""
        buffers = dict(module.named_buffers())
        return {name: buffers[name] for name in self.names}

    def only(self, names: Iterable[str]) -> "Statistics":
        """The statistics among these names."""
        kept = set(names)
        found = object.__new__(Statistics)
        found.unstackable = self.unstackable
        found.layers = {layer: own for layer, own in self.layers.items() if kept.issuperset(own)}
        return found

    def constant(self, frozen: frozenset[str]) -> frozenset[str]:
        """The layers whose statistics are frozen: they normalize by them, as in evaluation."""
        return frozenset(layer for layer, own in self.layers.items() if frozen.issuperset(own))

    def slots(self, module: nn.Module) -> list[Slot]:
        """Where a module holds these buffers."""
        found: list[Slot] = []
        for layer, own in self.layers.items():
            buffers = module.get_submodule(layer)._buffers
            found += [(buffers, name.rpartition(".")[2]) for name in own]
        return found


def put(slots: Sequence[Slot], values: Iterable[Tensor]) -> None:
    """Set buffers of a module."""
    for (buffers, key), value in zip(slots, values, strict=True):
        buffers[key] = value


def taken(slots: Sequence[Slot]) -> list[Tensor]:
    """Return the buffers of a module."""
    return [value for buffers, key in slots if (value := buffers[key]) is not None]


def norm_names(module: nn.Module, names: Iterable[str]) -> tuple[str, ...]:
    """The names, of parameters and buffers, that belong to normalization layers."""
    inside = [name + "." for name, layer in module.named_modules() if isinstance(layer, NORMS) and name]
    return tuple(name for name in names if any(name.startswith(prefix) for prefix in inside))


def set_mode(module: nn.Module, train: bool, constant: frozenset[str] = frozenset()) -> None:
    """As `module.train(train)`, but layers with frozen statistics, and the `constant` ones, normalize by them."""
    if vars(module).get("_bespoke_mode") == (train, constant):
        return
    module.train(train)
    for name, layer in module.named_modules():
        if name in constant or vars(layer).get("_bespoke_constant"):
            layer.eval()
    object.__setattr__(module, "_bespoke_mode", (train, constant))


def _buffers(name: str, layer: nn.Module) -> tuple[str, ...]:
    """The names of the layer's buffers that training changes; marks a frozen layer."""
    if not isinstance(layer, _NormBase):
        return tuple(getattr(layer, "running_statistics", ()))
    if isinstance(layer, _BatchNorm) and layer.running_mean is None:
        raise InputError(
            f"the model's layer {name!r} is a {type(layer).__name__} without running statistics, so that predictions "
            "depend on which examples are together: use track_running_stats=True, or GroupNorm or LayerNorm instead."
        )
    if layer.running_mean is None:
        return ()
    parameters = list(layer.parameters())
    if not any(one.requires_grad for one in parameters) and (parameters or not layer.training):
        object.__setattr__(layer, "_bespoke_constant", True)
        layer.eval()
        return ()
    own = ("running_mean", "running_var")
    counts = layer.momentum is None or type(layer) not in (*CLIENT, nn.InstanceNorm1d, nn.InstanceNorm2d)
    return (*own, "num_batches_tracked") if counts else own


def _buffer(layer: nn.Module, name: str, key: str) -> Tensor:
    found = layer._buffers.get(key)
    if found is None or key in layer._non_persistent_buffers_set:
        raise InputError(
            f"the model's layer {name!r} names {key!r} in running_statistics, which is no buffer of its state dict."
        )
    return found


def _dtype(module: nn.Module) -> torch.dtype:
    return next((one.dtype for one in module.parameters() if one.is_floating_point()), torch.get_default_dtype())
