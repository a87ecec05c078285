"""Converts named rows, tensors and numbers to Flower's records and back.

One record has what all nodes receive alike, one the rest. Flower sends each record with a request of its own, and a
record that several messages share only once. Hence there are few of them, and a model for all nodes is uploaded to the
SuperLink a single time. The reader does not trust the writer: a text and bytes that do not match are rejected, and
decoding creates nothing but numbers and texts.
"""

import hashlib
import json
import math
from collections.abc import Mapping
from typing import Any

import torch
from flwr.app import ConfigRecord, RecordDict

from bespokefl.core.errors import said
from bespokefl.core.rows import Rows
from bespokefl.engines.storage.safetensors_writer import tensor_bytes
from bespokefl.engines.transports import wire
from bespokefl.engines.transports.wire import ALIGN, DTYPES

COMMON, OWN = "alike", "own"  # names of records
COMMON_NAMES = ("plan", "fingerprint", "start", "common", "shared")  # values with such a name, or below it: shared/x
TEXT, DATA = "text", "data"
MAX_BYTES = 16 << 20  # in one record
MAX_ROWS = 1 << 30
VALUE_TYPES = (Rows, torch.Tensor, bool, int, float, str)


class UnreadableError(ValueError):
    """The data do not have the expected form."""


def pack(values: Mapping[str, Any]) -> RecordDict:
    """Convert values to records."""
    groups: dict[str, dict[str, Any]] = {OWN: {}}
    for name, value in values.items():
        groups.setdefault(COMMON if name.partition("/")[0] in COMMON_NAMES else OWN, {})[name] = value
    records = RecordDict()
    for group, content in groups.items():
        text, data = encode(content)
        records[group] = ConfigRecord({TEXT: text, DATA: data[:MAX_BYTES]})
        for number, start in enumerate(range(MAX_BYTES, len(data), MAX_BYTES), start=1):
            records[f"{group}-{number}"] = ConfigRecord({DATA: data[start : start + MAX_BYTES]})
    return records


def unpack(records: RecordDict) -> dict[str, Any]:
    """Convert records to values; raise `UnreadableError` if `pack` has not made them."""
    return (_read(records, COMMON) if COMMON in records else {}) | _read(records, OWN)


def _read(records: RecordDict, group: str) -> dict[str, Any]:
    try:
        text: Any = records[group][TEXT]
        pieces: list[Any] = [records[group][DATA]]
        while f"{group}-{len(pieces)}" in records:
            pieces.append(records[f"{group}-{len(pieces)}"][DATA])
        data = b"".join(pieces)
    except (KeyError, TypeError):
        raise UnreadableError("the records are not those of Bespoke") from None
    return decode(text, data)


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
        end = 0
        memory = torch.frombuffer(bytearray(data), dtype=torch.uint8) if data else torch.zeros(0, dtype=torch.uint8)
        tensors = []
        for offset, kind, shape in positions:
            dtype = DTYPES[kind]
            if not all(isinstance(length, int) and length >= 0 for length in (offset, *shape)):
                raise UnreadableError("an offset or a length is not a number")
            size = math.prod(shape) * dtype.itemsize
            if offset != end or offset + size > len(memory):  # as they were written: one after the other
                raise UnreadableError("bytes are missing")
            end = offset + size + -size % ALIGN
            tensors.append(memory[offset : offset + size].view(dtype).reshape(shape))
        values = wire.unflatten(header, tensors)
        for name, value in values.items():
            _check(name, value)
    except UnreadableError:
        raise
    except (ValueError, KeyError, TypeError, StopIteration, RuntimeError, AttributeError, RecursionError) as error:
        raise UnreadableError(said(error)) from None
    return values


def _check(name: Any, value: Any) -> None:
    if not isinstance(name, str) or not (value is None or isinstance(value, VALUE_TYPES)):
        raise UnreadableError("a value is neither rows nor a tensor, a number or a text")
    if not isinstance(value, Rows):
        return
    if not (type(value.size) is int and 0 <= value.size <= MAX_ROWS):
        raise UnreadableError("the number of rows is not a number")
    for block, shape in zip(value.blocks, value.layout.shapes, strict=True):
        if tuple(block.shape) != (len(value), *shape):
            raise UnreadableError("rows do not have the shape of their layout")


def digest(values: Mapping[str, Any]) -> str:
    """A hash of the values as they are sent."""
    text, data = encode(values)
    sha = hashlib.sha256(text.encode() + b"\0")
    sha.update(data)
    return sha.hexdigest()
