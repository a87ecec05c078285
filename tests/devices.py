"""A device that checks: tensors on it have values, but the host cannot reach them except by a copy.

It is called "meta", because autograd computes on this device without an accelerator. `CheckedDevice` turns every tensor
that is made on it into a `Remote` tensor, whose values lie in an ordinary tensor inside. As on a GPU, an operation on
tensors of both devices is an error, but for single numbers and for positions in an index. Copies between the devices,
and computations with real numbers on the host, are noted with the place in Bespoke's code that asked for them.
"""

import sys
from collections import Counter
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

import bespokefl

DEVICE = torch.device("meta")
SOURCE = Path(bespokefl.__file__).parent
aten = torch.ops.aten
FEW = 40  # tensors of so many entries are numbers of clients, which are on the host, and not rows or examples
MAY_MIX = {aten.index.Tensor, aten.index_put.default, aten.index_put_.default}  # positions may be on the host


class WrongDeviceError(RuntimeError):
    """An operation on tensors of two devices."""


class Remote(Tensor):
    """A tensor on the checked device."""

    inner: Tensor
    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @staticmethod
    def __new__(cls, inner: Tensor) -> "Remote":
        made = Tensor._make_wrapper_subclass(
            cls,
            inner.shape,
            strides=inner.stride(),
            storage_offset=inner.storage_offset(),
            dtype=inner.dtype,
            device=DEVICE,
        )
        made.inner = inner
        return made

    def __deepcopy__(self, memo: dict[int, Any]) -> Tensor:
        if id(self) not in memo:
            memo[id(self)] = made = self.detach().clone().requires_grad_(self.requires_grad)
            made._is_param = getattr(self, "_is_param", False)
        return memo[id(self)]

    @property
    def data(self) -> Tensor:
        return self.detach()

    def tolist(self) -> Any:  # torch refuses this for all classes of tensors but its own
        return self.to("cpu").tolist()

    @data.setter
    def data(self, value: "Remote") -> None:  # the task's way to assign weights
        if not isinstance(value, Remote):
            raise WrongDeviceError("weights on the host are assigned to a module on the device")
        self.inner = value.inner

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return compute(func, args, kwargs or {})


class CheckedDevice(TorchDispatchMode):
    """While it is active, `device="meta"` is the checked device."""

    def __init__(self) -> None:
        super().__init__()
        self.down: Counter[str] = Counter()  # places that copy from the device to the host, with numbers of entries
        self.up: Counter[str] = Counter()  # the other way, floating-point numbers only
        self.host: Counter[str] = Counter()  # places that compute with floating-point numbers on the host
        self._values = _Values()

    def forget(self) -> None:
        """Drop all notes."""
        for notes in (self.down, self.up, self.host):
            notes.clear()

    def __enter__(self) -> "CheckedDevice":
        self._values.__enter__()
        super().__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        self._values.__exit__(*error)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = compute(func, args, kwargs or {})
        given = [one for one in tree_leaves((args, kwargs)) if isinstance(one, Tensor)]
        here = [one for one in tree_leaves(found) if isinstance(one, Tensor) and not isinstance(one, Remote)]
        most = max((one.numel() for one in (here or given)), default=0)
        if most <= FEW:
            return found
        if here and any(isinstance(one, Remote) for one in given):
            self.down[place()] += most
        elif here and any(one.is_floating_point() for one in here):
            self.host[place()] += most
        elif func is aten._to_copy.default and not isinstance(given[0], Remote) and given[0].is_floating_point():
            self.up[place()] += most
        return found


class _Values(TorchFunctionMode):
    """`torch.tensor(values, device="meta")` would have no values: make it on the host and copy it."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if func in (torch.tensor, torch.as_tensor) and is_checked(kwargs.get("device")):
            return func(*args, **kwargs | {"device": "cpu"}).to(DEVICE)
        return func(*args, **kwargs)


def is_checked(device: Any) -> bool:
    """Whether this is the checked device, or its name."""
    return device is not None and torch.device(device) == DEVICE


def compute(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Compute an operation with the tensors inside, and wrap what it returns."""
    given = [one for one in tree_leaves((args, kwargs)) if isinstance(one, Tensor)]
    remote = [one for one in given if isinstance(one, Remote)]
    host = [one for one in given if not isinstance(one, Remote) and one.dim()]
    copies = func in (aten._to_copy.default, aten.copy_.default)
    if remote and host and not copies and not (func in MAY_MIX and isinstance(args[0], Remote)):
        where = {True: "on the device", False: "on the host"}
        shapes = ", ".join(f"{tuple(one.shape)} {where[isinstance(one, Remote)]}" for one in given)
        raise WrongDeviceError(f"{func}: {shapes}")
    asked = kwargs.get("device")
    away = bool(remote) if asked is None else is_checked(asked)
    if func is aten.copy_.default:
        away = isinstance(args[0], Remote)
    known = {id(one.inner): one for one in remote}
    inner_kwargs = kwargs if asked is None else kwargs | {"device": torch.device("cpu")}
    found = func(*tree_map(_inside, args), **tree_map(_inside, inner_kwargs))

    def wrap(value: Any) -> Any:
        if not isinstance(value, Tensor) or not away:
            return value.clone() if isinstance(value, Tensor) and id(value) in known else value
        return known[id(value)] if id(value) in known else Remote(value)

    return tree_map(wrap, found)


def _inside(value: Any) -> Any:
    return value.inner if isinstance(value, Remote) else value


def place() -> str:
    """The innermost function of Bespoke that is being called, as "path/of/module.py:function"."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        path = Path(frame.f_code.co_filename)
        if path.is_relative_to(SOURCE):
            function = frame.f_code.co_qualname.partition(".<locals>")[0]
            return f"{path.relative_to(SOURCE).as_posix()}:{function}"
        frame = frame.f_back
    return "elsewhere"
