"""Several federations trained as one: repeats and seeds of small problems are only more rows.

Every federation keeps its own server, draws and clients. What their clients compute is put into common chunks: one
row each, as ever. So each federation gets what it would have got alone, within rounding.
"""

from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate, pairwise
from typing import Any

import torch
from torch import Tensor

from bespokefl.core.client_index import ClientIndex
from bespokefl.core.rows import Rows
from bespokefl.engines.client import Data
from bespokefl.engines.transports.wire import Values


def join(members: Sequence[Data], seeds: Sequence[int]) -> Data:
    """All members' clients as one data set, end to end; each keeps its name and its own federation's seed."""
    first = members[0]
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


def mergeable(values: Values) -> bool:
    """Whether a request can share a chunk with another federation's: what all its clients get is one row or number."""
    return all(
        len(value) == 1 if isinstance(value, Rows) else not isinstance(value, Tensor) or value.dim() == 0
        for name, value in values.items()
        if name.startswith("shared/")
    )


def merge(requests: Sequence[Values], counts: Sequence[int]) -> Values:
    """Requests of several federations as one: what one federation shares becomes each of its clients' own."""
    merged: Values = {"number": requests[0]["number"], "phase": requests[0]["phase"]}
    for name in requests[0]:
        if name in merged:
            continue
        values = [request[name] for request in requests]
        if name.startswith("shared/"):
            own = [_own(value, count) for value, count in zip(values, counts, strict=True)]
            merged["own/" + name.removeprefix("shared/")] = _cat(own)
        else:
            merged[name] = _cat(values)
    return merged


def divide(values: Values, counts: Sequence[int]) -> list[Values]:
    """The answer to a merged request, federation by federation."""
    edges = list(pairwise(accumulate(counts, initial=0)))
    return [{name: value[start:stop] for name, value in values.items()} for start, stop in edges]


def _own(value: Any, count: int) -> Any:
    if isinstance(value, Rows):
        return value.expand(count)
    return torch.as_tensor(value).expand(count)


def _cat(values: Sequence[Any]) -> Any:
    return Rows.cat(values) if isinstance(values[0], Rows) else torch.cat(list(values))
