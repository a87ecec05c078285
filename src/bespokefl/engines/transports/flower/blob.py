"""Serializes named rows, tensors and numbers to a JSON text and bytes, and reads them back.

The reader does not trust the writer: a text and bytes that do not match are rejected, and decoding creates nothing but
numbers and texts.
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

_DTYPES = {str(dtype).removeprefix("torch."): dtype for dtype in SUPPORTED_DTYPES}


class UnreadableError(ValueError):
    """The data do not have the expected form."""


def encode(values: Mapping[str, Any]) -> tuple[str, bytes]:
    """Return a JSON text that describes the values, and the bytes of their tensors end to end."""
    header, tensors = wire.flatten(values)
    positions: list[Any] = []
    pieces: list[memoryview | bytes] = []
    offset = 0
    for tensor in tensors:
        raw = _contiguous(tensor)
        positions.append([offset, str(raw.dtype).removeprefix("torch."), list(raw.shape)])
        size = raw.numel() * raw.element_size()
        if size:
            pieces.append(raw.flatten().view(torch.uint8).numpy().data)
        pieces.append(bytes(-size % ALIGN))
        offset += size + -size % ALIGN
    return json.dumps([header, positions]), b"".join(pieces)


def decode(text: str, data: bytes) -> dict[str, Any]:
    """Return the values that were encoded; raise `UnreadableError` if text and data do not match."""
    try:
        header, positions = json.loads(text)
        memory = torch.frombuffer(bytearray(data), dtype=torch.uint8) if data else torch.zeros(0, dtype=torch.uint8)
        tensors = []
        for offset, kind, shape in positions:
            dtype = _DTYPES[kind]
            if not all(isinstance(length, int) and length >= 0 for length in (offset, *shape)):
                raise UnreadableError("an offset or a length is not a number")
            size = math.prod(shape) * dtype.itemsize
            if offset % ALIGN or offset + size > len(memory):
                raise UnreadableError("bytes are missing")
            tensors.append(memory[offset : offset + size].view(dtype).reshape(shape))
        values = wire.unflatten(header, tensors)
        for value in values.values():
            if isinstance(value, Rows):
                _check_shapes(value)
    except UnreadableError:
        raise
    except (ValueError, KeyError, TypeError, StopIteration, RuntimeError, AttributeError, RecursionError) as error:
        raise UnreadableError(f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}") from None
    return values


def digest(values: Mapping[str, Any]) -> str:
    """A hash of the values as they are sent."""
    text, data = encode(values)
    sha = hashlib.sha256(text.encode() + b"\0")
    sha.update(data)
    return sha.hexdigest()


def _check_shapes(rows: Rows) -> None:
    for block, shape in zip(rows.blocks, rows.layout.shapes, strict=True):
        if tuple(block.shape) != (len(rows), *shape):
            raise UnreadableError("rows do not have the shape of their layout")


def _contiguous(tensor: Tensor) -> Tensor:
    """The tensor on the CPU, with the usual strides: torch calls a single number contiguous whatever its stride, but
    does not give access to its bytes then."""
    raw = tensor.detach().cpu().contiguous()
    return raw.as_strided(raw.shape, torch.empty(raw.shape, device="meta").stride())
