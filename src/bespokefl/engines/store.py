"""Clients' states between rounds: a row exists only once a client has been active."""

from collections.abc import Callable, Sequence
from typing import Any

import torch

from bespokefl.core.method import State
from bespokefl.core.rows import Rows


class Store:
    """Rows and tensors of all clients that have been active, by client."""

    def __init__(self, start: Callable[[Sequence[int]], State]) -> None:
        self._start = start  # the state of clients that were never active
        self._slots: dict[int, int] = {}
        self._held: State = {}

    def __len__(self) -> int:
        return len(self._slots)

    def get(self, clients: Sequence[int]) -> State:
        """Their states, one row each, in the order given."""
        new = [client for client in clients if client not in self._slots]
        if len(new) == len(clients):
            return self._begin(new)
        known = [client for client in clients if client in self._slots]
        index = torch.tensor([self._slots[client] for client in known])
        state = {name: _take(value, index) for name, value in self._held.items()}
        if not new:
            return state
        fresh = self._begin(new)
        place = {client: at for at, client in enumerate([*known, *new])}
        order = torch.tensor([place[client] for client in clients])
        return {name: _take(_join(state[name], fresh[name]), order) for name in state}

    def put(self, clients: Sequence[int], state: State) -> None:
        """Replace these clients' states."""
        if not state:
            return
        new = [at for at, client in enumerate(clients) if client not in self._slots]
        if new:
            self._grow(len(self._slots) + len(new), state)
            for at in new:
                self._slots[clients[at]] = len(self._slots)
        index = torch.tensor([self._slots[client] for client in clients])
        for name, value in state.items():
            _write(self._held[name], index, value)

    def _begin(self, clients: Sequence[int]) -> State:
        state = self._start(clients)
        size = len(clients)
        return {
            name: value.expand(size) if isinstance(value, Rows) and len(value) == 1 else value
            for name, value in state.items()
        }

    def _grow(self, need: int, like: State) -> None:
        capacity = len(next(iter(self._held.values()))) if self._held else 0
        if need <= capacity:
            return
        size = max(need, 2 * capacity)
        for name, value in like.items():
            if isinstance(value, Rows):
                blocks = [block.new_zeros((size, *block.shape[1:])) for block in value.blocks]
                bigger: Any = Rows(value.layout, blocks, size=size)
            else:
                bigger = value.new_zeros((size, *value.shape[1:]))
            if capacity:
                _write(bigger, torch.arange(capacity), self._held[name])
            self._held[name] = bigger


def _take(value: Any, index: torch.Tensor) -> Any:
    return value[index]


def _join(a: Any, b: Any) -> Any:
    return Rows.cat([a, b]) if isinstance(a, Rows) else torch.cat([a, b])


def _write(target: Any, index: torch.Tensor, value: Any) -> None:
    if isinstance(target, Rows):
        for block, new in zip(target.blocks, value.blocks, strict=True):
            block.index_copy_(0, index, new)
    else:
        target.index_copy_(0, index, value)
