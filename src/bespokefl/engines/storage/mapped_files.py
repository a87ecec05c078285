"""Tensors in memory-mapped files without names: they disappear with the process, however it ends.

Their pages need no memory of the process: the system writes them to the disk if it runs short.
"""

import mmap
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

import torch
from torch import Tensor

from bespokefl.core.errors import DiskError
from bespokefl.core.system.files import FULL

SPILL_BYTES = 1 << 20  # smaller tensors of a reply stay in memory
MANY = 100_000  # values of a score, one per client, from which they are kept in a file


class MappedFiles:
    """Tensors in memory-mapped files without names, which disappear with the process however it ends."""

    def __init__(self, folder: Path | None) -> None:
        self._growing: dict[str, IO[bytes]] = {}
        self.folder = folder or Path(tempfile.gettempdir())
        with self._explain_errors():
            self.folder.mkdir(parents=True, exist_ok=True)

    def resize(self, name: str, like: Tensor, size: int) -> Tensor:
        """A tensor with so many rows in the file of this name, which keeps its content."""
        with self._explain_errors():
            if name not in self._growing:
                self._growing[name] = self._open()
            pages = _map(self._growing[name], like, size)
        return _tensor_in(pages, like, size)

    def new(self, like: Tensor, size: int) -> Tensor:
        """A tensor with so many rows in a file of its own."""
        with self._explain_errors(), self._open() as file:  # the mapping keeps the file
            pages = _map(file, like, size)
        return _tensor_in(pages, like, size)

    def copy(self, tensor: Tensor) -> Tensor:
        """A copy in a file of its own; a small tensor is returned as it is."""
        if tensor.numel() * tensor.element_size() < SPILL_BYTES:
            return tensor
        return self.new(tensor, len(tensor)).copy_(tensor)

    def _open(self) -> IO[bytes]:
        return tempfile.TemporaryFile(dir=self.folder)

    def __del__(self) -> None:
        for file in self._growing.values():
            file.close()

    @contextmanager
    def _explain_errors(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            full, writable = "make room or give --state-dir on a larger disk", "give --state-dir a writable directory"
            raise DiskError(
                f"cannot keep the clients' states in {str(self.folder)!r}: {error.strerror or error}",
                cure=full if error.errno in FULL else writable,
            ) from None


def zeros(like: Tensor, size: int) -> Tensor:
    """Zeros that, on the CPU, use memory only where something is written."""
    if like.device.type != "cpu":
        return like.new_zeros(size, *like.shape[1:])
    pages = mmap.mmap(-1, max(1, _num_bytes(like, size)), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    return _tensor_in(pages, like, size)


def vacant(size: int, dtype: torch.dtype) -> Tensor:
    """One value per client, uninitialized; of many clients in a file, if there is room."""
    like = torch.empty(0, dtype=dtype)
    if size >= MANY:
        with suppress(DiskError):
            return MappedFiles(None).new(like, size)
    return like.new_empty(size)


def _map(file: IO[bytes], like: Tensor, size: int) -> mmap.mmap:
    """Map a file, allocated now, so that a full disk is an error here and not a crash during a later write."""
    length = max(1, _num_bytes(like, size))
    os.posix_fallocate(file.fileno(), 0, length)
    return mmap.mmap(file.fileno(), length)


def _num_bytes(like: Tensor, size: int) -> int:
    return size * like.shape[1:].numel() * like.element_size()


def _tensor_in(pages: mmap.mmap, like: Tensor, size: int) -> Tensor:
    flat = torch.frombuffer(pages, dtype=torch.uint8)[: _num_bytes(like, size)]
    return flat.view(like.dtype).reshape(size, *like.shape[1:])
