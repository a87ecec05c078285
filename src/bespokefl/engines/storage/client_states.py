"""The states of clients between rounds. A client that was never active takes no space.

Each client has a slot in large tensors, in memory or in memory-mapped files. A snapshot pins the slots that it consists
of: a client that trains afterwards gets another slot, so that the snapshot stays as it is without a copy. If too many
slots are pinned, the next update waits until the snapshot is written.
"""

import logging
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bespokefl.core.errors import DiskError
from bespokefl.core.method import State
from bespokefl.core.rows import Rows, concatenate
from bespokefl.core.system import memory
from bespokefl.engines.storage.mapped_files import MappedFiles, zeros
from bespokefl.engines.transports import wire

log = logging.getLogger("bespokefl")

NOTICE = logging.INFO + 5  # log level of automatic choices that users should know of
# Slots that may hold only a snapshot's rows: a share of all rows, or as many as fit into so many bytes if that is more.
SPARE_SHARE, SPARE_BYTES = 1 / 16, 1 << 20
ALL_IN_MEMORY, MANY_TIMES = 1 << 28, 4  # bytes of all clients' models that are always in memory; see `allocate`
MEMORY_SHARE = 0.4  # of the available memory: states that may exceed it are kept in memory-mapped files


class ClientStates:
    """The states of all clients that have been active.

    start    returns the states of clients that were never active
    clients  how many clients there are, to predict the size
    folder   a directory for memory-mapped files; None: memory, unless the states may not fit into it
    """

    def __init__(
        self, start: Callable[[Sequence[int]], State], clients: int | None = None, folder: Path | None = None
    ) -> None:
        self._start, self._clients, self._folder = start, clients, folder
        self._files: MappedFiles | None = None
        self._has_chosen = False  # between memory and files
        self._slots: dict[int, int] = {}
        self._tensors: State = {}
        self._device = torch.device("cpu")  # of the clients' rows
        self._capacity = 0
        self._free: list[int] = []
        self._used = 0  # slots from here on were never used
        self._pins: Counter[int] = Counter()
        self._row_bytes = 1.0
        self.finish_snapshot: Callable[[], None] | None = None  # waits until the last snapshot is released

    def __len__(self) -> int:
        return len(self._slots)

    @property
    def mapped(self) -> bool:
        """Whether the states are in memory-mapped files."""
        return self._files is not None

    def get(self, clients: Sequence[int]) -> State:
        """The states of clients, one row each, in the given order."""
        new = [client for client in clients if client not in self._slots]
        if len(new) == len(clients):
            return repeat_single_rows(on_host(self._start(new)), len(new))
        known = [client for client in clients if client in self._slots]
        index = torch.tensor([self._slots[client] for client in known])
        state = on_device({name: value[index] for name, value in self._tensors.items()}, self._device)
        if not new:
            return state
        initial = repeat_single_rows(on_host(self._start(new)), len(new))
        position = {client: at for at, client in enumerate([*known, *new])}
        order = torch.tensor([position[client] for client in clients])
        return {name: concatenate([state[name], initial[name]])[order] for name in state}

    def update(self, clients: Sequence[int], state: State) -> None:
        """Replace the states of clients."""
        if not state:
            return
        if self.finish_snapshot is not None and self._used and self._exceeds_spare(clients):
            self.finish_snapshot()
        slots = []
        for client in clients:
            slot = self._slots.get(client)
            if slot is None or self._pins[slot]:
                slot = self._new_slot()
            self._slots[client] = slot
            slots.append(slot)
        self._grow(self._used, state)
        index = torch.tensor(slots)
        for name, value in state.items():
            _write(self._tensors[name], index, value)

    def spill(self, state: State, values: State) -> State:
        """Move a reply, of which `state` is a part, to files until the end of the round, if the states are in files."""
        if state:
            self._choose_storage(state)
        files = self._files
        if files is None:
            return values
        moved = {name: value.map(files.copy) if isinstance(value, Rows) else value for name, value in values.items()}
        memory.give_back()  # otherwise the C library keeps holes as large as the rows that come and go
        return moved

    def allocate(self, like: Rows, size: int) -> Rows:
        """Allocate rows for all clients where the states are: in memory or in a file.

        Rows that take more than 256 MB and several times the memory of the states are in a file, too, if there is room:
        most clients were never active, and their models are all alike.
        """
        files, total = self._files, size * wire.size({"rows": like[:1]})[0]
        if files is None and total > max(ALL_IN_MEMORY, MANY_TIMES * self._row_bytes * self._used):
            with suppress(DiskError):
                spare = MappedFiles(self._folder)
                return Rows(like.layout, [spare.new(block, size) for block in like.blocks], size=size)
        blocks = [zeros(block, size) if files is None else files.new(block, size) for block in like.blocks]
        return Rows(like.layout, blocks, size=size)

    # -- snapshots

    def snapshot(self) -> "StatesSnapshot":
        """The states as they are now, unaffected by later updates. The caller releases it."""
        slots = list(self._slots.values())
        self._pins.update(slots)
        return StatesSnapshot(self, list(self._slots), slots, dict(self._tensors))

    def unpin(self, slots: Sequence[int]) -> None:
        """Make the slots of a snapshot available again."""
        current = set(self._slots.values())
        for slot in slots:
            self._pins[slot] -= 1
            if not self._pins[slot]:
                del self._pins[slot]
                if slot not in current:
                    self._free.append(slot)

    # -- inside

    def _exceeds_spare(self, clients: Sequence[int]) -> bool:
        """Whether too many slots would hold only a snapshot's rows after an update of these clients."""
        pinned = sum(self._slots.get(client) in self._pins for client in clients)
        return self._used - len(self._slots) - len(self._free) + pinned > self._spare(len(self._slots))

    def _spare(self, rows: int) -> int:
        return min(rows, max(int(SPARE_SHARE * rows), int(SPARE_BYTES / self._row_bytes)))

    def _new_slot(self) -> int:
        if self._free:
            return self._free.pop()
        self._used += 1
        return self._used - 1

    def _grow(self, needed: int, like: State) -> None:
        if needed <= self._capacity:
            return
        self._choose_storage(like)
        self._device = next((value.device for value in like.values() if isinstance(value, Rows)), self._device)
        most = self._clients or 2 * needed
        size = max(needed, min(2 * self._capacity, most)) if needed <= most else needed + needed // 8
        on_cpu = all(value.device.type == "cpu" for value in like.values())  # memory is used when it is written to
        if self._clients and not self._capacity and not self.mapped and on_cpu:
            size = max(needed, most + self._spare(most))
        for name, value in like.items():
            old = _blocks(self._tensors[name]) if self._capacity else [None] * len(_blocks(value))
            pairs = enumerate(zip(_blocks(value), old, strict=True))
            new = [self._block(f"{name}.{at}", block, size, before) for at, (block, before) in pairs]
            self._tensors[name] = Rows(value.layout, new, size=size) if isinstance(value, Rows) else new[0]
        self._capacity = size

    def _block(self, name: str, like: Tensor, size: int, old: Tensor | None) -> Tensor:
        if self._files is not None:
            return self._files.resize(name, like, size)
        larger = zeros(like, size)
        if old is not None:
            larger[: len(old)] = old
        return larger

    def _choose_storage(self, like: State) -> None:
        """Choose memory, or files if they are requested or the states of all clients would not fit into memory."""
        if self._has_chosen:
            return
        self._has_chosen = True
        self._row_bytes = max(1.0, wire.size(like)[0] / max(1, len(next(iter(like.values())))))
        total = self._row_bytes * (self._clients or 0)
        if self._folder is None and total <= MEMORY_SHARE * memory.limit():
            return
        self._files = MappedFiles(self._folder)
        log.log(
            NOTICE if self._folder is None else logging.INFO,
            "clients' states (up to %.3g GB) are kept in memory-mapped files in %s",
            total / 1e9,
            self._files.folder,
        )


@dataclass
class StatesSnapshot:
    """The states of all active clients at one point in time."""

    _states: ClientStates
    clients: list[int]
    slots: list[int]
    _tensors: State

    def blocks(self) -> Iterator[tuple[str, Tensor]]:
        """Each tensor with its name and one row for each slot."""
        for name, value in self._tensors.items() if self.slots else ():
            if isinstance(value, Rows):
                yield from zip((f"{name}/{layer}" for layer in value.layout.names), value.blocks, strict=True)
            else:
                yield name, value

    @property
    def empty_states(self) -> State:
        """The states of no clients: names, types and shapes."""
        return {name: value[:0] for name, value in self._tensors.items()} if self.slots else {}

    def on_slots_needed(self, finish: Callable[[], None]) -> None:
        """Set the function that is called when the slots are needed; it must release the snapshot."""
        self._states.finish_snapshot = finish

    def release(self) -> None:
        """Release the slots; the snapshot cannot be used afterwards."""
        self._states.finish_snapshot = None
        self._states.unpin(self.slots)
        self.slots = []


def repeat_single_rows(values: Mapping[str, Any], size: int) -> State:
    """Repeat rows that a method returned once for all clients, so that each client has one."""
    return {
        name: value.expand(size) if isinstance(value, Rows) and len(value) == 1 else value
        for name, value in values.items()
    }


def on_host(values: Mapping[str, Any]) -> State:
    """The same values with numbers on the CPU, where they are between rounds; rows stay on their device."""
    return {name: value.cpu() if isinstance(value, Tensor) else value for name, value in values.items()}


def on_device(values: Mapping[str, Any], device: torch.device) -> State:
    """The same values with rows on a device; numbers stay where they are."""
    return {name: value.to(device=device) if isinstance(value, Rows) else value for name, value in values.items()}


def _blocks(value: Rows | Tensor) -> Sequence[Tensor]:
    return value.blocks if isinstance(value, Rows) else (value,)


def _write(target: Any, index: Tensor, value: Any) -> None:
    for block, new in zip(_blocks(target), _blocks(value), strict=True):
        block.index_copy_(0, index.to(block.device), new.to(block.device))
