"""Clients' states between rounds: a row exists only once a client has been active.

Rows lie in slots, in memory or in memory-mapped files. A snapshot pins the slots it is made of: from then on a client
that trains gets another slot, so the snapshot stays as it is, without a copy, for as long as it is needed. If that
takes too many slots, the store waits until the snapshot is no longer needed.
"""

import ctypes
import logging
import mmap
import os
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import torch
from torch import Tensor

from bespokefl.core import memory
from bespokefl.core.errors import DiskError
from bespokefl.core.files import FULL
from bespokefl.core.method import State
from bespokefl.core.rows import Rows
from bespokefl.engines.transports import wire

log = logging.getLogger("bespokefl")

ASIDE = 1 << 20  # bytes from which a reply's tensor is put aside
# What was freed goes back to the system: between rows that come and go the C library would keep holes as large as they.
_give_back = getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None
NOTICE = logging.INFO + 5  # a choice that one should hear of, whether or not details are asked for
SPARE = 1 / 16, 1 << 20  # of all rows, or bytes if that is more: slots that a snapshot may keep from being used again
MEMORY_SHARE = 0.4  # of the memory that there is: states that could come to more are kept in memory-mapped files


class Store:
    """Rows and tensors of all clients that have been active, by client."""

    def __init__(
        self, start: Callable[[Sequence[int]], State], clients: int | None = None, folder: Path | None = None
    ) -> None:
        """clients: how many there are, to foresee the size; folder: where files go, if they are asked for."""
        self._start = start  # the state of clients that were never active
        self._clients = clients
        self._asked = folder
        self._files: _Files | None = None
        self._decided = False
        self._slots: dict[int, int] = {}
        self._held: State = {}
        self._capacity = 0
        self._free: list[int] = []
        self._fresh = 0  # slots from here on were never used
        self._pins: Counter[int] = Counter()
        self._bytes = 1.0  # of a row
        self.finish: Callable[[], None] | None = None  # ends the use of the last snapshot, and releases it

    def __len__(self) -> int:
        return len(self._slots)

    @property
    def mapped(self) -> bool:
        """Whether the states lie in memory-mapped files."""
        return self._files is not None

    def get(self, clients: Sequence[int]) -> State:
        """Their states, one row each, in the order given."""
        new = [client for client in clients if client not in self._slots]
        if len(new) == len(clients):
            return self._begin(new)
        known = [client for client in clients if client in self._slots]
        index = torch.tensor([self._slots[client] for client in known])
        state = {name: value[index] for name, value in self._held.items()}
        if not new:
            return state
        fresh = self._begin(new)
        place = {client: at for at, client in enumerate([*known, *new])}
        order = torch.tensor([place[client] for client in clients])
        return {name: _join(state[name], fresh[name])[order] for name in state}

    def put(self, clients: Sequence[int], state: State) -> None:
        """Replace these clients' states."""
        if not state:
            return
        if self.finish is not None and self._fresh and self._crowded(clients):
            self.finish()
        slots = []
        for client in clients:
            slot = self._slots.get(client)
            if slot is None or self._pins[slot]:
                slot = self._new_slot()
            self._slots[client] = slot
            slots.append(slot)
        self._grow(self._fresh, state)
        index = torch.tensor(slots)
        for name, value in state.items():
            _write(self._held[name], index, value)

    def aside(self, state: State, values: State) -> State:
        """What came from clients and waits for the round's end, in files if the states, this one among them, are."""
        if state:
            self._decide(state)
        files = self._files
        if files is None:
            return values
        there = {name: value.map(files.aside) if isinstance(value, Rows) else value for name, value in values.items()}
        if _give_back is not None:
            _give_back(0)
        return there

    def rows(self, like: Rows, size: int) -> Rows:
        """Room for so many rows, where the states lie: in memory or in a file."""
        blocks = [_room(block, size) if self._files is None else self._files.new(block, size) for block in like.blocks]
        return Rows(like.layout, blocks, size=size)

    # -- snapshots

    def snapshot(self) -> "StatesSnapshot":
        """Everybody's states as they are now, whatever is put later; to be released."""
        slots = list(self._slots.values())
        self._pins.update(slots)
        return StatesSnapshot(self, list(self._slots), slots, dict(self._held))

    def release(self, slots: Sequence[int]) -> None:
        """These slots of a snapshot are no longer needed for it."""
        current = set(self._slots.values())
        for slot in slots:
            self._pins[slot] -= 1
            if not self._pins[slot]:
                del self._pins[slot]
                if slot not in current:
                    self._free.append(slot)

    # -- inside

    def _crowded(self, clients: Sequence[int]) -> bool:
        """Whether, with these clients' next rows, too many slots would hold nothing but a snapshot's rows."""
        pinned = sum(self._slots.get(client) in self._pins for client in clients)
        return self._fresh - len(self._slots) - len(self._free) + pinned > self._spare(len(self._slots))

    def _spare(self, rows: int) -> int:
        share, least = SPARE
        return min(rows, max(int(share * rows), int(least / self._bytes)))

    def _new_slot(self) -> int:
        if self._free:
            return self._free.pop()
        self._fresh += 1
        return self._fresh - 1

    def _begin(self, clients: Sequence[int]) -> State:
        state = self._start(clients)
        size = len(clients)
        return {
            name: value.expand(size) if isinstance(value, Rows) and len(value) == 1 else value
            for name, value in state.items()
        }

    def _grow(self, need: int, like: State) -> None:
        if need <= self._capacity:
            return
        self._decide(like)
        most = self._clients or 2 * need
        size = max(need, min(2 * self._capacity, most)) if need <= most else need + need // 8
        if self._clients and not self._capacity and not self.mapped and _is_lazy(like):
            size = max(need, most + self._spare(most))
        for name, value in like.items():
            if isinstance(value, Rows):
                old = self._held.get(name)
                blocks = [
                    self._block(f"{name}.{at}", block, size, None if old is None else old.blocks[at])
                    for at, block in enumerate(value.blocks)
                ]
                self._held[name] = Rows(value.layout, blocks, size=size)
            else:
                self._held[name] = self._block(name, value, size, self._held.get(name))
        self._capacity = size

    def _block(self, name: str, like: Tensor, size: int, old: Tensor | None) -> Tensor:
        if self._files is not None:
            return self._files.block(name, like, size)
        bigger = _room(like, size)
        if old is not None:
            bigger[: len(old)] = old
        return bigger

    def _decide(self, like: State) -> None:
        """Once: memory, or files where they are asked for or everybody's states would not fit into memory."""
        if self._decided:
            return
        self._decided = True
        self._bytes = max(1.0, wire.size(like)[0] / max(1, len(next(iter(like.values())))))
        total = self._bytes * (self._clients or 0)
        if self._asked is None and total <= MEMORY_SHARE * memory.limit():
            return
        self._files = _Files(self._asked)
        told = "clients' states (up to %.3g GB) are kept in memory-mapped files in %s"
        log.log(NOTICE if self._asked is None else logging.INFO, told, total / 1e9, self._files.folder)


@dataclass
class StatesSnapshot:
    """The states of all clients that had been active at some moment."""

    _store: Store
    clients: list[int]
    slots: list[int]
    _held: State

    def blocks(self) -> Iterator[tuple[str, Tensor]]:
        """Every tensor by name: where it lies, a row for each slot."""
        for name, value in self._held.items() if self.slots else ():
            if isinstance(value, Rows):
                yield from zip((f"{name}/{one}" for one in value.layout.names), value.blocks, strict=True)
            else:
                yield name, value

    @property
    def like(self) -> State:
        """No clients' states: what they are called and of what kind."""
        return {name: value[:0] for name, value in self._held.items()} if self.slots else {}

    def lend(self, finish: Callable[[], None]) -> None:
        """Until it is released, the store calls `finish`, which has to release it, should it need the slots."""
        self._store.finish = finish

    def release(self) -> None:
        self._store.finish = None
        self._store.release(self.slots)
        self.slots = []


class _Files:
    """Tensors in memory-mapped files that can grow. They have no names: however the process ends, nothing stays."""

    def __init__(self, folder: Path | None) -> None:
        self._growing: dict[str, IO[bytes]] = {}
        self.folder = folder or Path(tempfile.gettempdir())
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise self._refused(error) from None

    def block(self, name: str, like: Tensor, size: int) -> Tensor:
        """Room for so many rows, in the file of this name, with what it has."""
        if name not in self._growing:
            self._growing[name] = self._open()
        return self._mapped(self._growing[name], like, size)

    def new(self, like: Tensor, size: int) -> Tensor:
        """Room for so many rows, in a file that goes with it."""
        with self._open() as file:  # the mapping keeps it
            return self._mapped(file, like, size)

    def aside(self, tensor: Tensor) -> Tensor:
        """A copy in a file of its own; small ones stay where they are."""
        if tensor.numel() * tensor.element_size() < ASIDE:
            return tensor
        return self.new(tensor, len(tensor)).copy_(tensor)

    def _open(self) -> IO[bytes]:
        try:
            return tempfile.TemporaryFile(dir=self.folder)
        except OSError as error:
            raise self._refused(error) from None

    def _mapped(self, file: IO[bytes], like: Tensor, size: int) -> Tensor:
        shape = (size, *like.shape[1:])
        length = int(torch.Size(shape).numel()) * like.element_size()
        try:
            # room is taken now: a full disk is an error here, not a crash in the middle of a write
            os.posix_fallocate(file.fileno(), 0, max(length, 1))
            pages = mmap.mmap(file.fileno(), max(length, 1))
        except OSError as error:
            raise self._refused(error) from None
        return _tensor(pages, like, shape)

    def __del__(self) -> None:
        for file in self._growing.values():
            file.close()

    def _refused(self, error: OSError) -> DiskError:
        full = error.errno in FULL
        return DiskError(
            f"cannot keep the clients' states in {str(self.folder)!r}: {error.strerror or error}",
            cure="make room or give --state-dir on a larger disk"
            if full
            else "give --state-dir a folder that can be written",
        )


def _room(like: Tensor, size: int) -> Tensor:
    """Zeros that take up memory only where something is written, on the processor."""
    shape = (size, *like.shape[1:])
    if like.device.type != "cpu":
        return like.new_zeros(shape)
    length = int(torch.Size(shape).numel()) * like.element_size()
    pages = mmap.mmap(-1, max(length, 1), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    return _tensor(pages, like, shape)


def _is_lazy(like: State) -> bool:
    """Whether room for such values takes up no memory until they are there."""
    return all(value.device.type == "cpu" for value in like.values())


def _tensor(pages: mmap.mmap, like: Tensor, shape: tuple[int, ...]) -> Tensor:
    length = int(torch.Size(shape).numel()) * like.element_size()
    return torch.frombuffer(pages, dtype=torch.uint8)[:length].view(like.dtype).reshape(shape)


def _join(a: Any, b: Any) -> Any:
    return Rows.cat([a, b]) if isinstance(a, Rows) else torch.cat([a, b])


def _write(target: Any, index: torch.Tensor, value: Any) -> None:
    if isinstance(target, Rows):
        for block, new in zip(target.blocks, value.blocks, strict=True):
            block.index_copy_(0, index, new)
    else:
        target.index_copy_(0, index, value)
