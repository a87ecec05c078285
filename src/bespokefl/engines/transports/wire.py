"""What passes between server and client, as bytes: named rows, tensors and numbers; never an object.

A value travels as an entry of a JSON header (name, kind, shapes) and its tensors' raw bytes, end to end.
"""

import json
import mmap
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor

from bespokefl.core.errors import TrainingError
from bespokefl.core.method import Message
from bespokefl.core.rows import Layout, Rows

ALIGN = 64
KINDS = (
    *(torch.float32, torch.float64, torch.float16, torch.bfloat16),
    *(torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool),
)
Values = dict[str, Any]
_DTYPES = {str(d).removeprefix("torch."): d for d in KINDS}


def flatten(values: Mapping[str, Any]) -> tuple[list[Any], list[Tensor]]:
    """Named values as a header for JSON and a list of tensors."""
    header: list[Any] = []
    tensors: list[Tensor] = []
    for name, value in values.items():
        if isinstance(value, Rows):
            layout = value.layout
            header.append(
                [name, "rows", [list(layout.names), list(map(list, layout.shapes)), list(layout.head), len(value)]]
            )
            tensors.extend(value.blocks)
        elif isinstance(value, Tensor):
            header.append([name, "tensor", None])
            tensors.append(value)
        elif isinstance(value, bool | int | float | str) or value is None:
            header.append([name, "number", value])
        else:
            raise TypeError(f"{name!r} is a {type(value).__name__}: only rows, tensors and numbers can be sent")
    return header, tensors


def unflatten(header: Sequence[Any], tensors: Sequence[Tensor]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    rest = iter(tensors)
    for name, kind, meta in header:
        if kind == "rows":
            names, shapes, head, size = meta
            layout = _layout(tuple(names), tuple(map(tuple, shapes)), tuple(head))
            values[name] = Rows(layout, [next(rest) for _ in names], size=size)
        else:
            values[name] = next(rest) if kind == "tensor" else meta
    return values


@cache
def _layout(names: tuple[str, ...], shapes: tuple[tuple[int, ...], ...], head: tuple[str, ...]) -> Layout:
    return Layout(names, shapes, head)


def under(prefix: str, values: Values) -> Values:
    """The values whose names begin with a prefix, without it."""
    start = prefix + "/"
    return {name.removeprefix(start): value for name, value in values.items() if name.startswith(start)}


def prefixed(prefix: str, values: Mapping[str, Any]) -> Values:
    """The same values under names that begin with a prefix."""
    return {f"{prefix}/{name}": value for name, value in values.items()}


def pack_message(message: Message) -> Values:
    """A message as named values."""
    return prefixed("shared", message.shared) | prefixed("own", message.own)


def unpack_message(values: Values) -> Message:
    """The message among named values."""
    return Message(under("shared", values), under("own", values))


def size(values: Mapping[str, Any]) -> tuple[int, int]:
    """Bytes and numbers that these values come to on the wire."""
    header, tensors = flatten(values)
    numbers = sum(1 for _, kind, _ in header if kind == "number")
    return (
        sum(t.numel() * t.element_size() for t in tensors) + 8 * numbers,
        sum(t.numel() for t in tensors) + numbers,
    )


class Mailbox:
    """Memory that two processes share: one writes tensors into it, the other reads them out.

    Made before the processes part. It is as large as anything that could be sent, and takes up only what has been.
    """

    def __init__(self, limit: int = 1 << 36) -> None:
        while True:
            try:
                reserve = getattr(mmap, "MAP_NORESERVE", 0x4000)
                self._memory = mmap.mmap(-1, limit, flags=mmap.MAP_SHARED | mmap.MAP_ANONYMOUS | reserve)
                break
            except OSError:
                if limit <= 1 << 26:
                    raise
                limit //= 2
        self._limit = limit
        self._bytes = torch.frombuffer(self._memory, dtype=torch.uint8)

    def write(self, tensors: Sequence[Tensor]) -> list[Any]:
        """Put tensors in; the answer says where they are."""
        places = []
        at = 0
        for tensor in tensors:
            length = tensor.numel() * tensor.element_size()
            if at + length > self._limit:
                raise TrainingError(f"a chunk of {at + length:,} bytes is too large to pass on; use a smaller --chunk.")
            kind = str(tensor.dtype).removeprefix("torch.")
            if length:
                self._view(at, kind, list(tensor.shape)).copy_(tensor)
            places.append([at, kind, list(tensor.shape)])
            at += -(-length // ALIGN) * ALIGN
        return places

    def read(self, places: Sequence[Any]) -> list[Tensor]:
        """Copies of what was put in."""
        return [self._view(at, kind, shape).clone() for at, kind, shape in places]

    def _view(self, at: int, kind: str, shape: list[int]) -> Tensor:
        dtype = _DTYPES[kind]
        numel = int(torch.Size(shape).numel())
        return self._bytes[at : at + numel * dtype.itemsize].view(dtype).reshape(shape)


def dumps(header: Any) -> bytes:
    return json.dumps(header).encode()


def loads(data: bytes) -> Any:
    return json.loads(data)
