"""Writes safetensors files piece by piece, so that large tensors need no copy in memory."""

import hashlib
import json
import os
import struct
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bespokefl.core.system.files import sync
from bespokefl.engines.transports.wire import DTYPES

PIECE = 1 << 20  # bytes that are written at once

_DTYPE_NAMES = {  # "bfloat16" is "BF16", "uint8" is "U8"
    dtype: name.upper().replace("FLOAT", "F").replace("INT", "I").replace("UI", "U") for name, dtype in DTYPES.items()
}
Entry = tuple[str, Tensor, Sequence[int] | None]  # a name, a tensor, and which of its rows; None: all


def write_tensors(path: Path, entries: Sequence[Entry], metadata: Mapping[str, str] | None = None) -> str:
    """Write named tensors, or some of their rows, with metadata; return the hash of the file."""
    header: dict[str, Any] = {"__metadata__": dict(metadata)} if metadata else {}
    offset = 0
    for name, tensor, rows in entries:
        shape = list(tensor.shape) if rows is None else [len(rows), *tensor.shape[1:]]
        length = int(torch.Size(shape).numel()) * tensor.element_size()
        header[name] = {"dtype": _DTYPE_NAMES[tensor.dtype], "shape": shape, "data_offsets": [offset, offset + length]}
        offset += length
    head = json.dumps(header).encode()
    head += b" " * (-len(head) % 8)
    sha = hashlib.sha256()
    with path.open("wb") as file:
        first: list[bytes | memoryview] = [struct.pack("<Q", len(head)), head]
        for piece in chain(first, (piece for _, tensor, rows in entries for piece in _pieces(tensor, rows))):
            sha.update(piece)
            file.write(piece)
        file.flush()
        os.fsync(file.fileno())
    return sha.hexdigest()


def replace_tensors(path: Path, entries: Sequence[Entry], metadata: Mapping[str, str]) -> None:
    """Write a file of tensors so that either the new or the previous one exists, whatever happens.

    Only its owner may read it: a node's clients' states and models reveal their data.
    """
    new = path.with_name(f".{path.name}.{os.getpid()}")
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        new.unlink(missing_ok=True)
        os.close(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
        write_tensors(new, entries, metadata)
        new.replace(path)
        sync(path.parent)
    finally:
        new.unlink(missing_ok=True)


def _pieces(tensor: Tensor, rows: Sequence[int] | None) -> Iterator[memoryview]:
    tensor = tensor.detach() if tensor.dim() else tensor.detach().reshape(1)
    count = len(tensor) if rows is None else len(rows)
    step = max(1, PIECE // max(1, tensor[:1].numel() * tensor.element_size()))
    buffer = None if rows is None else tensor.new_empty(min(step, count), *tensor.shape[1:])
    for start in range(0, count, step):
        if rows is None or buffer is None:
            yield tensor_bytes(tensor[start : start + step])
        else:
            index = torch.tensor(rows[start : start + step], device=tensor.device)
            yield tensor_bytes(torch.index_select(tensor, 0, index, out=buffer[: len(index)]))


def tensor_bytes(tensor: Tensor) -> memoryview:
    """The bytes of a tensor, without a copy if it is contiguous and on the CPU."""
    contiguous = tensor.detach().cpu().contiguous()
    # A contiguous tensor with a single number can have any stride, which view() rejects.
    flat = contiguous.as_strided((contiguous.numel(),), (1,), contiguous.storage_offset())
    return memoryview(flat.view(torch.uint8).numpy().data)
