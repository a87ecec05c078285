"""A stand-in for Flower's Grid in this process: the same nodes, and all messages pass as bytes."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from flwr.app import Error, Message

from bespokefl.core.method import Method
from bespokefl.core.task import Task
from bespokefl.engines.client import ClientSide, Data
from bespokefl.engines.cohorts.chunks import prepare_task
from bespokefl.engines.protection.clipping import Privacy
from bespokefl.engines.settings import Settings
from bespokefl.engines.transports.flower.messenger import NodeMessenger
from bespokefl.engines.transports.flower.node.node import Node, Prepared
from bespokefl.engines.transports.flower.node.score_policy import ScorePolicy
from bespokefl.engines.transports.flower.run_plan import RunPlan, fingerprint
from bespokefl.engines.transports.flower.server import Server
from bespokefl.engines.transports.flower.services.supernode import answer
from bespokefl.engines.transports.flower.timeouts import Timeouts
from tests.engines.transports.flower.flower_internals import through_bytes
from tests.federations import BATCH, CLASSES, mlp

QUICK = Timeouts(timeout=30, gather=5, give_up=40, resend=10, poll=0.001)
NODES = {"north": (0, 2), "south": (1,), "west": (3, 4, 5)}  # clients by position; one node has several
Tamper = Callable[[Message], Message | None]


@dataclass
class NodeInfo:
    node_id: int
    name: str
    last_activated_at: str = ""


@dataclass
class LocalGrid:
    """Nodes by id. A message is answered when the answer is fetched."""

    nodes: dict[int, Node]
    names: dict[int, str] = field(default_factory=dict)
    away: set[int] = field(default_factory=set)
    on_reply: dict[int, Tamper] = field(default_factory=dict)  # what happens to a node's answers
    sent: list[Message] = field(default_factory=list)
    waiting: dict[str, Message] = field(default_factory=dict)

    def get_nodes(self) -> list[NodeInfo]:
        return [NodeInfo(id, self.names.get(id, "")) for id in self.nodes if id not in self.away]

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        arrived = [through_bytes(message) for message in messages]
        self.sent += arrived
        for message in arrived:
            self.waiting[message.metadata.message_id] = message
        return [message.metadata.message_id for message in arrived]

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        replies = []
        for id in reversed(list(message_ids)):  # answers come in another order
            message = self.waiting.get(id)
            if message is None:
                continue
            node = message.metadata.dst_node_id
            if node in self.away:
                del self.waiting[id]
                replies.append(Message(Error(code=3, reason="gone"), reply_to=message))
                continue
            reply: Message | None = answer(self.nodes[node], message)
            if node in self.on_reply:
                reply = self.on_reply[node](reply)
            del self.waiting[id]
            if reply is not None:
                replies.append(reply if reply.has_error() else through_bytes(reply))
        return replies


@dataclass
class TestHost:
    """A node of a test: some clients of a federation, and the method as it is."""

    __test__ = False
    name: str
    data: Data
    method: Method
    chunk: int | None = None
    factory: Callable[[], Any] = mlp
    secret: bool = False  # noise as at a real node; else of the seed, so that it can be compared

    def about(self, missing: str = "refuse") -> dict[str, Any]:
        parts = {part: getattr(self.data, part).sizes.tolist() for part in ("train", "validation", "test")}
        return {
            "clients": {
                name: {part: sizes[at] for part, sizes in parts.items()}
                | ({} if self.data.groups is None else {"group": self.data.groups[at]})
                for at, name in enumerate(self.data.names)
            },
            "features": {
                "columns": [{"name": "x", "kind": "array", "values": []}],
                "shape": list(self.data.x.shape[1:]),
                "label": None,
                "client": None,
            },
            "missing": missing,
            "tokens": None,
            "sums": None,
            "labels": [str(label) for label in range(CLASSES)],
            "version": "0",
        }

    def prepare(self, plan: RunPlan) -> Prepared:
        task = Task(self.factory, "cross_entropy", dtype=self.data.x.dtype, seed=plan.seed)
        mark = fingerprint(task, warm=plan.warm)
        executor = prepare_task(task, self.data, Settings(batch_size=plan.batch_size, chunk=self.chunk), CLASSES)
        privacy = Privacy(plan.clip, plan.noise, secret=self.secret)
        side = ClientSide(self.method, task, self.data, plan.settings, privacy)
        return Prepared(side, executor, mark)


def only(data: Data, clients: Iterable[int]) -> Data:
    """What one node has: its own clients' examples, and nothing else of the federation."""
    clients = list(clients)
    parts = [getattr(data, part).take(clients) for part in ("train", "validation", "test")]
    groups = None if data.groups is None else tuple(data.groups[at] for at in clients)
    return Data(data.x, data.y, tuple(data.names[at] for at in clients), *parts, groups)


def deployment(
    method: Method,
    data: Data,
    folder: Path,
    *,
    timeouts: Timeouts = QUICK,
    hosts: dict[str, TestHost] | None = None,
    run: str = "run",
    grid: LocalGrid | None = None,
    **settings: Any,
) -> tuple[Server, LocalGrid]:
    """Three nodes and a server that has met them."""
    grid = local_grid(method, data, folder, hosts=hosts) if grid is None else grid
    messenger = NodeMessenger(grid, timeouts)
    messenger.gather(lambda known: len(known) == len(grid.nodes) - len(grid.away))
    task = Task(mlp, "cross_entropy", dtype=data.x.dtype)
    chosen = Settings(**({"rounds": 2, "batch_size": BATCH} | settings))
    return Server(method, task, chosen, messenger, run, {}), grid


def local_grid(
    method: Method, data: Data, folder: Path, *, hosts: dict[str, TestHost] | None = None, first: int = 100
) -> LocalGrid:
    made = hosts or {name: TestHost(name, only(data, clients), method) for name, clients in NODES.items()}
    # as the simulation: exact scores, also in rounds in which a client does not train
    policy = ScorePolicy(scores="all", score_digits=17)
    nodes = {first + at: Node(host, folder / host.name, policy) for at, host in enumerate(made.values())}
    return LocalGrid(nodes, {first + at: host.name for at, host in enumerate(made.values())})
