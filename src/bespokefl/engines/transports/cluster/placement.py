"""Which node holds the data of which clients.

Clients are sorted by their number of examples and cut into one range for each node, with about equal shares of the
examples. Chunks of a round are ranges of the same order, so nearly all clients of a chunk are on one node. The rule
knows nothing but the sizes and the nodes' numbers of workers.
"""

from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate

import torch

from bespokefl.core.client_index import PARTS, ClientIndex
from bespokefl.engines.client import Data
from bespokefl.engines.cohorts import stacking
from bespokefl.engines.transports.wire import Values


def place(sizes: Sequence[int], workers: Sequence[int]) -> list[list[int]]:
    """The clients of each node, whose shares of the examples are those of the `workers`."""
    ordered = sorted(range(len(sizes)), key=lambda client: (-sizes[client], client))
    total, all_workers = sum(sizes), sum(workers)
    ends = [total * upto / all_workers for upto in accumulate(workers)]
    parts: list[list[int]] = [[] for _ in workers]
    node, done = 0, 0
    for client in ordered:
        while node + 1 < len(ends) and done + sizes[client] / 2 >= ends[node]:
            node += 1
        parts[node].append(client)
        done += sizes[client]
    return parts


def subset(data: Data, clients: Sequence[int]) -> Data:
    """The data of some clients alone."""
    taken = {part: getattr(data, part).take(clients) for part in PARTS}
    used, places = torch.cat([one.indices for one in taken.values()]).unique(return_inverse=True)
    places = iter(places.split([len(one.indices) for one in taken.values()]))
    return replace(
        data,
        x=data.x.index_select(0, used),
        y=data.y.index_select(0, used),
        names=tuple(data.names[client] for client in clients),
        **{part: ClientIndex(next(places), one.offsets) for part, one in taken.items()},
        groups=None,
        seeds=tuple(data.seeds[client] for client in clients) if data.seeds else (),
    )


def joined(first: Data, second: Data) -> Data:
    """The clients of both, one after the other."""
    both = stacking.join([first, second], [0, 0])
    return replace(both, seeds=first.seeds + second.seeds)


def to_values(data: Data) -> Values:
    """Data as named values, without the names of clients and their seeds."""
    values: Values = {"x": data.x, "y": data.y}
    for part in PARTS:
        own: ClientIndex = getattr(data, part)
        values |= {f"{part}/indices": own.indices, f"{part}/offsets": own.offsets}
    return values


def of_values(values: Values, everyone: Sequence[str], seeds: Sequence[int], clients: Sequence[int]) -> Data:
    """The data of some clients from named values, and the names and seeds of all clients."""
    return Data(
        x=values["x"],
        y=values["y"],
        names=tuple(everyone[client] for client in clients),
        train=ClientIndex(values["train/indices"], values["train/offsets"]),
        validation=ClientIndex(values["validation/indices"], values["validation/offsets"]),
        test=ClientIndex(values["test/indices"], values["test/offsets"]),
        seeds=tuple(seeds[client] for client in clients) if seeds else (),
    )
