"""What the server of a deployment knows of the clients: their nodes and numbers of examples."""

from typing import Any

import torch

from bespokefl.core.client_index import ClientIndex
from bespokefl.core.errors import InputError
from bespokefl.engines.client import Data
from bespokefl.engines.transports.flower.messenger import NodeMessenger


def homes(messenger: NodeMessenger) -> dict[str, list[str]]:
    """The clients of every node. Raises InputError if two nodes name the same client."""
    found: dict[str, str] = {}
    for node in sorted(messenger.known):
        for client in messenger.known[node].about["clients"]:
            if client in found:
                raise InputError(f"client {client!r} is named by two nodes, {found[client]} and {node}: rename one.")
            found[client] = node
    return {node: sorted(client for client, home in found.items() if home == node) for node in sorted(messenger.known)}


def remote_data(messenger: NodeMessenger) -> Data:
    """The clients' names and numbers of examples, without examples."""
    clients: dict[str, dict[str, Any]] = {}
    for known in messenger.known.values():
        clients |= known.about["clients"]
    names = tuple(sorted(clients))
    empty = torch.zeros(0)

    def part(kind: str) -> ClientIndex:
        return counted(torch.tensor([int(clients[name][kind]) for name in names], dtype=torch.int64))

    groups = [clients[name].get("group") for name in names]
    known_groups = None if None in groups else tuple(int(one) for one in groups if one is not None)
    return Data(empty, empty, names, part("train"), part("validation"), part("test"), known_groups)


def counted(sizes: torch.Tensor) -> ClientIndex:
    """An index of which only the numbers of examples are known."""
    return ClientIndex(
        torch.zeros(0, dtype=torch.int64), torch.cat([torch.zeros(1, dtype=torch.int64), sizes.cumsum(0)])
    )
