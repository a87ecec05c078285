"""Named rows, tensors and numbers as bytes, to pass between server and clients; never Python objects.

A value is an entry of a JSON header (name, kind, shapes) and the raw bytes of its tensors.
"""

import json
import mmap
import os
import warnings
from collections.abc import Mapping, Sequence
from functools import lru_cache
from tempfile import TemporaryFile
from typing import Any
from weakref import finalize

import numpy as np
import torch
from torch import Tensor

from bespokefl.core.errors import TrainingError
from bespokefl.core.method import Message
from bespokefl.core.rows import Layout, Rows

ALIGN = 64
GRAIN = 1 << 20  # bytes by which shared memory grows
FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool)
DTYPES = {str(dtype).removeprefix("torch."): dtype for dtype in (*FLOATS, *INTEGERS)}
Values = dict[str, Any]
Place = tuple[int, str, list[int]]  # of a tensor in a block of bytes: start, type, shape


def flatten(values: Mapping[str, Any]) -> tuple[list[Any], list[Tensor]]:
    """Split named values into a header for JSON and a list of tensors."""
    header: list[Any] = []
    tensors: list[Tensor] = []
    for name, value in values.items():
        if isinstance(value, Rows):
            layout = value.layout
            about = [list(layout.names), list(map(list, layout.shapes)), list(layout.head), len(value)]
            if layout.statistics or layout.norm or layout.local:
                about += [list(layout.statistics), list(layout.norm), list(layout.local)]
            header.append([name, "rows", about])
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
    """Named values from a header and tensors."""
    values: dict[str, Any] = {}
    rest = iter(tensors)
    try:
        for name, kind, meta in header:
            if name in values:
                raise ValueError("a name occurs twice")
            if kind == "rows":
                names, shapes, head, size, *marked = meta
                layout = _layout(tuple(names), tuple(map(tuple, shapes)), tuple(head), *map(tuple, marked))
                values[name] = Rows(layout, [next(rest) for _ in names], size=size)
            else:
                values[name] = next(rest) if kind == "tensor" else meta
    except StopIteration:
        raise ValueError("the header names more tensors than there are") from None
    return values


@lru_cache(maxsize=256)
def _layout(names: tuple[str, ...], shapes: tuple[tuple[int, ...], ...], *marked: tuple[str, ...]) -> Layout:
    return Layout(names, shapes, *marked)


def under(prefix: str, values: Values) -> Values:
    """The values whose names begin with a prefix, without the prefix."""
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
    """The number of bytes and of numbers in these values."""
    header, tensors = flatten(values)
    numbers = sum(1 for _, kind, _ in header if kind == "number")
    return (
        sum(t.numel() * t.element_size() for t in tensors) + 8 * numbers,
        sum(t.numel() for t in tensors) + numbers,
    )


def pack(values: Mapping[str, Any]) -> tuple[str, np.ndarray]:
    """Named values as a text and an array of bytes."""
    header, tensors = flatten(values)
    places, end = _places(tensors)
    content = torch.empty(end, dtype=torch.uint8)
    _fill(content, places, tensors)
    return json.dumps([header, places]), content.numpy()


def unpack(text: str, content: np.ndarray) -> Values:
    """The values that `pack` was given. Their tensors are parts of the array, which may be read-only."""
    header, places = json.loads(text)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The given NumPy array is not writable")  # nothing writes to values
        whole = torch.from_numpy(content)
    return unflatten(header, [_part(whole, *place) for place in places])


def _places(tensors: Sequence[Tensor]) -> tuple[list[Place], int]:
    """Where tensors lie in a block of bytes, and the size of the block."""
    places: list[Place] = []
    end = 0
    for tensor in tensors:
        places.append((end, str(tensor.dtype).removeprefix("torch."), list(tensor.shape)))
        end += -(-tensor.numel() * tensor.element_size() // ALIGN) * ALIGN
    return places, end


def _fill(content: Tensor, places: Sequence[Place], tensors: Sequence[Tensor]) -> None:
    for place, tensor in zip(places, tensors, strict=True):
        if tensor.numel():
            _part(content, *place).copy_(tensor)


def _part(content: Tensor, at: int, kind: str, shape: list[int]) -> Tensor:
    dtype = DTYPES[kind]
    numel = int(torch.Size(shape).numel())
    return content[at : at + numel * dtype.itemsize].view(dtype).reshape(shape)


def _unnamed_file() -> int:
    if hasattr(os, "memfd_create"):  # on Linux, in memory
        return os.memfd_create("bespoke")
    with TemporaryFile() as file:
        return os.dup(file.fileno())


class SharedMemory:
    """Memory that two processes share: one writes tensors into it, the other reads them.

    It must be created before the fork. It is a file without a name that grows with the largest transfer; each process
    maps it anew when it has grown.
    """

    def __init__(self, limit: int = 1 << 36) -> None:
        """`limit` is the largest transfer in bytes."""
        self._file = _unnamed_file()
        finalize(self, os.close, self._file)
        self._limit, self._size = limit, 0
        self._bytes = torch.zeros(0, dtype=torch.uint8)

    def write(self, tensors: Sequence[Tensor]) -> list[Any]:
        """Write tensors; returns where they are."""
        places, end = _places(tensors)
        if end > self._limit:
            raise TrainingError(f"a chunk of {end:,} bytes is too large; use a smaller --chunk.")
        if end > self._size:
            self._map(-(-end // GRAIN) * GRAIN)
        _fill(self._bytes, places, tensors)
        return [list(place) for place in places]

    def read(self, places: Sequence[Any]) -> list[Tensor]:
        """Copies of tensors that were written."""
        size = os.fstat(self._file).st_size
        if size > self._size:  # the writer has made it larger
            self._map(size)
        return [_part(self._bytes, *place).clone() for place in places]

    def _map(self, size: int) -> None:
        try:
            if os.fstat(self._file).st_size < size:
                os.ftruncate(self._file, size)
            self._bytes = torch.frombuffer(mmap.mmap(self._file, size), dtype=torch.uint8)
        except (OSError, MemoryError) as error:
            raise TrainingError(
                f"cannot get {size:,} bytes of memory to share with a worker process ({error}): use fewer --workers or "
                "a smaller --chunk."
            ) from None
        self._size = size
