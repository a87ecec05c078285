"""Train several federations as one: repeats and seeds of small problems are only more rows.

Every federation keeps its own server, draws and clients. Their clients are computed in common chunks, one row each, so
each federation gets the result that it would get alone, up to rounding.
"""

from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate, groupby, pairwise
from typing import Any

import torch
from torch import Tensor

from bespokefl.core.client_index import ClientIndex
from bespokefl.core.method import Message
from bespokefl.core.rows import Rows, concatenate
from bespokefl.engines.client import Data
from bespokefl.engines.transports.protocol import TrainReply


class Members:
    """The federations of a stack, and which of the joint clients belong to which."""

    def __init__(self, sizes: Sequence[int]) -> None:
        self.offsets = list(accumulate(sizes, initial=0))[:-1]
        self._owner = [member for member, size in enumerate(sizes) for _ in range(size)]

    def joint(self, member: int, clients: Sequence[int]) -> list[int]:
        """Positions among all clients of positions in one federation."""
        offset = self.offsets[member]
        return [offset + client for client in clients] if offset else list(clients)

    def split(self, clients: Sequence[int]) -> list[tuple[int, list[int]]]:
        """Joint positions as positions in their own federations."""
        if len(self.offsets) == 1:
            return [(0, list(clients))]
        groups = groupby(clients, key=self._owner.__getitem__)
        return [(member, [client - self.offsets[member] for client in own]) for member, own in groups]


def join(members: Sequence[Data], seeds: Sequence[int]) -> Data:
    """Concatenate the clients of all federations; each keeps its name and its own federation's seed."""
    first = members[0]
    if len(members) == 1:
        return first
    common = all(data.x is first.x and data.y is first.y for data in members)
    shifts = [0] * len(members) if common else list(accumulate((len(data.y) for data in members[:-1]), initial=0))

    def parts(name: str) -> ClientIndex:
        own = [getattr(data, name) for data in members]
        sizes = torch.cat([part.sizes for part in own])
        indices = torch.cat([part.indices + shift for part, shift in zip(own, shifts, strict=True)])
        return ClientIndex(indices, torch.cat([torch.zeros(1, dtype=torch.int64), sizes.cumsum(0)]))

    return replace(
        first,
        x=first.x if common else torch.cat([data.x for data in members]),
        y=first.y if common else torch.cat([data.y for data in members]),
        names=tuple(name for data in members for name in data.names),
        train=parts("train"),
        validation=parts("validation"),
        test=parts("test"),
        groups=None,
        seeds=tuple(seed for data, seed in zip(members, seeds, strict=True) for _ in data.names),
    )


def mergeable(message: Message) -> bool:
    """Whether a message can share a chunk with another federation's: its shared values are single rows or numbers."""
    return all(
        len(value) == 1 if isinstance(value, Rows) else not isinstance(value, Tensor) or value.dim() == 0
        for value in message.shared.values()
    )


def merge(messages: Sequence[Message], counts: Sequence[int]) -> Message:
    """Join messages of several federations: what a federation shares becomes each of its clients' own."""
    if len(messages) == 1:
        return messages[0]
    own = {name: concatenate([message.own[name] for message in messages]) for name in messages[0].own}
    for name in messages[0].shared:
        shared = [message.shared[name] for message in messages]
        rows = [value if isinstance(value, Rows) else torch.as_tensor(value) for value in shared]
        own[name] = concatenate([value.expand(count) for value, count in zip(rows, counts, strict=True)])
    return Message(own=own)


def divide(reply: TrainReply, groups: Sequence[tuple[int, list[int]]]) -> list[tuple[int, TrainReply]]:
    """Split a reply into those of its federations, with positions in each; of several, the work of each is unknown."""
    if len(groups) == 1:
        ((member, clients),) = groups
        return [(member, replace(reply, clients=clients))]
    edges = pairwise(accumulate((len(clients) for _, clients in groups), initial=0))

    def rows(values: dict[str, Any], start: int, stop: int) -> dict[str, Any]:
        return {name: value[start:stop] for name, value in values.items()}

    return [
        (member, TrainReply(own, rows(reply.upload, *edge), rows(reply.notes, *edge), reply.broken[slice(*edge)]))
        for (member, own), edge in zip(groups, edges, strict=True)
    ]
