"""The server of a deployment: the round loop over the nodes that a messenger knows."""

from typing import Any

import torch

from bespokefl.core.client_index import ClientIndex
from bespokefl.core.errors import InputError
from bespokefl.core.method import Method
from bespokefl.core.task import Task
from bespokefl.engines.client import Data
from bespokefl.engines.federation import Federation
from bespokefl.engines.loop import RoundLoop
from bespokefl.engines.settings import Settings
from bespokefl.engines.transports.flower.messenger import NodeMessenger
from bespokefl.engines.transports.flower.run_plan import RunPlan
from bespokefl.engines.transports.flower.transport import FlowerTransport


class Server(RoundLoop):
    """One run over the nodes that a messenger knows.

    Nodes keep their states under the name `run`, and build method and model from `recipe`, which is sent as JSON.
    """

    transport: FlowerTransport

    def __init__(
        self, method: Method, task: Task, settings: Settings, messenger: NodeMessenger, run: str, recipe: Any
    ) -> None:
        self.task, self.clients_by_node, self.data = task, clients_by_node(messenger), remote_data(messenger)
        if method.needs_groups and self.data.groups is None:
            raise InputError(f"{method.name} needs the clients' true groups: every node must name them.")
        groups = self.data.groups if method.needs_groups else None
        plan = RunPlan.of(run, self.data.names, groups, settings, recipe)
        transport = FlowerTransport(messenger, self.clients_by_node, self.data, task, plan)
        super().__init__([Federation(method, task.start, self.data, settings)], transport)


def clients_by_node(messenger: NodeMessenger) -> dict[str, list[str]]:
    """The clients of every node. Raises InputError if two nodes name the same client."""
    found: dict[str, str] = {}
    for node in sorted(messenger.known):
        for client in messenger.known[node].about["clients"]:
            if client in found:
                raise InputError(f"client {client!r} is named by two nodes, {found[client]} and {node}: rename one.")
            found[client] = node
    return {node: sorted(messenger.known[node].about["clients"]) for node in sorted(messenger.known)}


def remote_data(messenger: NodeMessenger) -> Data:
    """The clients' names and numbers of examples, without examples."""
    clients = {name: sizes for node in messenger.known.values() for name, sizes in node.about["clients"].items()}
    names = tuple(sorted(clients))
    empty = torch.zeros(0)

    def part(kind: str) -> ClientIndex:
        ends = torch.tensor([0] + [int(clients[name][kind]) for name in names], dtype=torch.int64).cumsum(0)
        return ClientIndex(torch.zeros(0, dtype=torch.int64), ends)  # only the numbers of examples are known

    groups = [clients[name].get("group") for name in names]
    known_groups = None if None in groups else tuple(int(one) for one in groups if one is not None)
    return Data(empty, empty, names, part("train"), part("validation"), part("test"), known_groups)
