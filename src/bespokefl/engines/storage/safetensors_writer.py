"""A safetensors file, written piece by piece: it takes no memory, however large the tensors are, wherever they lie."""

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

PIECE = 1 << 20  # bytes that are written at once

_KINDS = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}


def write_tensors(
    path: Path, entries: Sequence[tuple[str, Tensor, Sequence[int] | None]], about: Mapping[str, str] | None = None
) -> str:
    """Write named tensors, or some rows of them, and texts about them; the file's hash."""
    header: dict[str, Any] = {"__metadata__": dict(about)} if about else {}
    at = 0
    for name, tensor, rows in entries:
        shape = list(tensor.shape) if rows is None else [len(rows), *tensor.shape[1:]]
        length = int(torch.Size(shape).numel()) * tensor.element_size()
        header[name] = {"dtype": _KINDS[tensor.dtype], "shape": shape, "data_offsets": [at, at + length]}
        at += length
    head = json.dumps(header).encode()
    head += b" " * (-len(head) % 8)
    sha = hashlib.sha256()
    with path.open("wb") as file:
        first: list[bytes | memoryview] = [struct.pack("<Q", len(head)), head]
        for piece in chain(first, (one for entry in entries for one in _pieces(*entry))):
            sha.update(piece)
            file.write(piece)
        file.flush()
        os.fsync(file.fileno())
    return sha.hexdigest()


def _pieces(name: str, tensor: Tensor, rows: Sequence[int] | None) -> Iterator[memoryview]:
    tensor = tensor.detach() if tensor.dim() else tensor.detach().reshape(1)
    count = len(tensor) if rows is None else len(rows)
    width = max(1, tensor[:1].numel() * tensor.element_size())
    step = max(1, PIECE // width)
    room = None if rows is None else tensor.new_empty(min(step, count), *tensor.shape[1:])  # the same for all pieces
    for at in range(0, count, step):
        if rows is None or room is None:
            yield _bytes(tensor[at : at + step])
        else:
            some = torch.tensor(rows[at : at + step], device=tensor.device)
            yield _bytes(torch.index_select(tensor, 0, some, out=room[: len(some)]))


def _bytes(tensor: Tensor) -> memoryview:
    whole = tensor.cpu().contiguous()
    # A single number may keep a stride of its own, which viewing as bytes refuses.
    flat = whole.as_strided((whole.numel(),), (1,), whole.storage_offset())
    return memoryview(flat.view(torch.uint8).numpy().data)
