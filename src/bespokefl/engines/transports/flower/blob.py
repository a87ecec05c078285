"""Named rows, tensors and numbers as one JSON text and one run of bytes, and back: what is sent, and what is kept.

Whoever reads does not trust whoever wrote: a text or bytes that do not fit each other are refused, and nothing but
numbers can come out of them.
"""

import hashlib
import json
import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from bespokefl.core.rows import Rows
from bespokefl.engines.transports import wire
from bespokefl.engines.transports.wire import ALIGN, SUPPORTED_DTYPES

_DTYPES = {str(kind).removeprefix("torch."): kind for kind in SUPPORTED_DTYPES}


class UnreadableError(ValueError):
    """What came is not what was agreed on."""


def write(values: Mapping[str, Any]) -> tuple[str, bytes]:
    """A JSON text that says what is where, and the tensors' bytes end to end."""
    header, tensors = wire.flatten(values)
    places: list[Any] = []
    pieces: list[memoryview | bytes] = []
    at = 0
    for tensor in tensors:
        raw = plain(tensor)
        places.append([at, str(raw.dtype).removeprefix("torch."), list(raw.shape)])
        size = raw.numel() * raw.element_size()
        if size:
            pieces.append(raw.flatten().view(torch.uint8).numpy().data)
        pieces.append(bytes(-size % ALIGN))
        at += size + -size % ALIGN
    return json.dumps([header, places]), b"".join(pieces)


def plain(tensor: Tensor) -> Tensor:
    """On the processor and one number after the other.

    torch calls a tensor of a single number contiguous whatever its stride, but does not let its bytes be seen.
    """
    raw = tensor.detach().cpu().contiguous()
    return raw.as_strided(raw.shape, torch.empty(raw.shape, device="meta").stride())


def read(text: str, data: bytes) -> dict[str, Any]:
    """The values again; refuses what does not fit."""
    try:
        header, places = json.loads(text)
        memory = torch.frombuffer(bytearray(data), dtype=torch.uint8) if data else torch.zeros(0, dtype=torch.uint8)
        tensors = []
        for at, kind, shape in places:
            dtype = _DTYPES[kind]
            if not all(isinstance(length, int) and length >= 0 for length in (at, *shape)):
                raise UnreadableError("a place or a length is not a number")
            size = math.prod(shape) * dtype.itemsize
            if at % ALIGN or at + size > len(memory):
                raise UnreadableError("bytes are missing")
            tensors.append(memory[at : at + size].view(dtype).reshape(shape))
        values = wire.unflatten(header, tensors)
        for value in values.values():
            if isinstance(value, Rows):
                _check(value)
    except UnreadableError:
        raise
    except (ValueError, KeyError, TypeError, StopIteration, RuntimeError, AttributeError, RecursionError) as error:
        raise UnreadableError(f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}") from None
    return values


def _check(rows: Rows) -> None:
    """Every block has as many rows as there are, in the shape that the layout says."""
    for block, shape in zip(rows.blocks, rows.layout.shapes, strict=True):
        if tuple(block.shape) != (len(rows), *shape):
            raise UnreadableError("rows do not have the shape that they say")


def digest(text: str, data: bytes) -> str:
    sha = hashlib.sha256(text.encode() + b"\0")
    sha.update(data)
    return sha.hexdigest()
