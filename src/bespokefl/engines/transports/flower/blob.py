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

from bespokefl.core.rows import Rows
from bespokefl.engines.storage.safetensors_writer import tensor_bytes
from bespokefl.engines.transports import wire
from bespokefl.engines.transports.wire import ALIGN, DTYPES


class UnreadableError(ValueError):
    """The data do not have the expected form."""


def encode(values: Mapping[str, Any]) -> tuple[str, bytes]:
    """Return a JSON text that describes the values, and the bytes of their tensors end to end."""
    header, tensors = wire.flatten(values)
    positions: list[Any] = []
    pieces: list[memoryview | bytes] = []
    offset = 0
    for tensor in tensors:
        positions.append([offset, str(tensor.dtype).removeprefix("torch."), list(tensor.shape)])
        size = tensor.numel() * tensor.element_size()
        pieces += [tensor_bytes(tensor), bytes(-size % ALIGN)]
        offset += size + -size % ALIGN
    return json.dumps([header, positions]), b"".join(pieces)


def decode(text: str, data: bytes) -> dict[str, Any]:
    """Return the values that were encoded; raise `UnreadableError` if text and data do not match."""
    try:
        header, positions = json.loads(text)
        memory = torch.frombuffer(bytearray(data), dtype=torch.uint8) if data else torch.zeros(0, dtype=torch.uint8)
        tensors = []
        for offset, kind, shape in positions:
            dtype = DTYPES[kind]
            if not all(isinstance(length, int) and length >= 0 for length in (offset, *shape)):
                raise UnreadableError("an offset or a length is not a number")
            size = math.prod(shape) * dtype.itemsize
            if offset % ALIGN or offset + size > len(memory):
                raise UnreadableError("bytes are missing")
            tensors.append(memory[offset : offset + size].view(dtype).reshape(shape))
        values = wire.unflatten(header, tensors)
        for value in values.values():
            for block, shape in zip(value.blocks, value.layout.shapes, strict=True) if isinstance(value, Rows) else ():
                if tuple(block.shape) != (len(value), *shape):
                    raise UnreadableError("rows do not have the shape of their layout")
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
