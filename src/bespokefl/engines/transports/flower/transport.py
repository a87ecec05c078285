"""The transport of a deployment: clients live at nodes, which Flower's messages reach.

Clients' states never leave their nodes. The server only remembers which round it accepted last from each client; a
client whose reply did not count returns to its state of that round.
"""

import json
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import torch

from bespokefl.core.errors import InputError, TrainingError, listing
from bespokefl.core.rows import Rows, concatenate
from bespokefl.core.task import Task
from bespokefl.engines.client import Data
from bespokefl.engines.cohorts.chunks import Executor
from bespokefl.engines.storage.checkpoint_format import LoadedCheckpoint
from bespokefl.engines.storage.client_states import ClientStates, StatesSnapshot
from bespokefl.engines.transports import wire
from bespokefl.engines.transports.flower.messenger import NodeMessenger
from bespokefl.engines.transports.flower.node.client_state_store import LATEST_STATE
from bespokefl.engines.transports.flower.node.node import SCORE, SETUP, TRAIN
from bespokefl.engines.transports.flower.node.replies import brief, error_of, score_replies, training_replies
from bespokefl.engines.transports.flower.run_plan import RunPlan, fingerprint
from bespokefl.engines.transports.flower.schema import MalformedError
from bespokefl.engines.transports.protocol import Draw, Execution, ScoreReply, ScoreRequest, TrainReply, TrainRequest
from bespokefl.engines.transports.wire import Values, pack_message

log = logging.getLogger("bespokefl")

Q = TypeVar("Q")
R = TypeVar("R")
JOINED_BYTES = 1 << 30  # of uploads that are joined into one matrix


class FlowerTransport:
    """Exchanges messages with the nodes that a messenger knows.

    `clients_by_node` has the clients' names. `data` has numbers of examples, but no examples. The model in `task` is
    compared with the nodes' and sent as start.
    """

    remote = True

    def __init__(
        self,
        messenger: NodeMessenger,
        clients_by_node: Mapping[str, Sequence[str]],
        data: Data,
        task: Task,
        plan: RunPlan,
    ) -> None:
        self.messenger, self.clients_by_node = messenger, clients_by_node
        self.data, self.task, self.plan = data, task, plan
        self.accepted = dict.fromkeys(data.names, 0)  # by client: the round of the state that it continues from
        position = {name: at for at, name in enumerate(data.names)}
        self._node_of = {position[name]: node for node, names in clients_by_node.items() for name in names}
        self._answered: set[int] = set()  # clients whose replies of the current round have come
        self._refusing: set[str] = set()  # nodes that have refused scores, which is said once
        self._head = {"plan": plan.text(), "fingerprint": fingerprint(task, warm=plan.warm)}

    # -- Transport

    def open(self) -> None:
        """Have every node build the model: a node whose model differs is found before the first round."""
        answers = self.messenger.exchange(dict.fromkeys(self.clients_by_node, {"what": SETUP} | self._head), 0)
        silent = [name for name in self.clients_by_node if name not in answers]
        if silent:
            log.warning("nodes %s have not answered yet", listing(silent))
        errors = [error for error in map(error_of, answers.values()) if error is not None]
        if errors:
            raise InputError(errors[0])

    def close(self) -> None:
        """Nodes stay connected: they may serve another run."""

    def partition(self, clients: Sequence[int], *, scoring: bool = False) -> list[list[int]]:
        """One group for each node, in canonical order."""
        by_node: dict[str, list[int]] = {}
        for client in sorted(clients):
            by_node.setdefault(self._node_of[client], []).append(client)
        return [by_node[node] for node in sorted(by_node)]

    def exchange(self, requests: Sequence[TrainRequest]) -> Iterator[TrainReply]:
        by_node = {self._node_of[one.clients[0]]: one for one in requests}
        answers = self._ask(by_node, {node: self._train_values(one) for node, one in by_node.items()}, required=True)
        replies: list[TrainReply] = []
        for node, answer in answers.items():
            replies += self._read(node, answer, training_replies, by_node[node])
        self._answered = {client for reply in replies for client in reply.clients}
        yield from in_canonical_order(replies, self.data.train.sizes.tolist())

    def evaluate(self, requests: Sequence[ScoreRequest]) -> Iterator[ScoreReply]:
        by_node = {self._node_of[one.clients[0]]: one for one in requests}
        answers = self._ask(by_node, {node: self._score_values(one) for node, one in by_node.items()}, required=False)
        for node, request in by_node.items():
            answer = answers.get(node, {})
            if "refused" in answer and node not in self._refusing:
                self._refusing.add(node)
                log.warning("node %s gives no scores: %s", node, brief(answer["refused"]))
            yield from self._read(node, answer, score_replies, request)

    def personal_models(self, first: int, count: int) -> Rows | None:
        return None

    def commit(self, draw: Draw, lost: Mapping[int, str]) -> None:
        number, names = draw.round.number, self.data.names
        for client in draw.trains:
            if client in self._answered and (draw.all_train or client not in lost):
                self.accepted[names[client]] = number
            elif draw.all_train:  # clients that train in every round never return to an earlier state
                self.accepted[names[client]] = LATEST_STATE
        if lost:
            reasons = "; ".join(f"{names[client]}: {reason}" for client, reason in lost.items())
            log.warning("round %d: uploads not used: %s", number, reasons)

    def snapshot(self) -> tuple[StatesSnapshot, dict[str, Any]]:
        return ClientStates(lambda clients: {}).snapshot(), {"accepted": dict(self.accepted)}

    def restore(self, checkpoint: LoadedCheckpoint) -> None:
        self.accepted = dict(checkpoint.record["accepted"])

    def execution(self) -> Execution:
        return Execution(Executor(0, False, "the nodes choose for themselves"), len(self.clients_by_node), "nodes")

    # -- requests

    def _train_values(self, request: TrainRequest) -> Values:
        reports = torch.tensor([client in request.reports for client in request.clients])
        return {"what": TRAIN} | self._addressed(request) | {"reports": reports} | pack_message(request.message())

    def _score_values(self, request: ScoreRequest) -> Values:
        values = {"what": SCORE, "keep": request.final} | self._addressed(request)
        if request.global_model is not None:
            values["common"] = request.global_model
        return values | ({} if request.message is None else pack_message(request.message()))

    def _addressed(self, request: TrainRequest | ScoreRequest) -> Values:
        """What every request carries: the plan, the round, the clients, and the states they continue from."""
        names = [self.data.names[client] for client in request.clients]
        accepted = [self.accepted[name] for name in names]
        # given weights, for clients that have no state yet
        start = {"start": self.task.start} if self.plan.warm and 0 in accepted else {}
        round = {"number": request.round.number, "phase": request.round.phase}
        return self._head | start | {"clients": json.dumps(names), "accepted": torch.tensor(accepted)} | round

    def _read(self, node: str, answer: Values, read: Callable[[Q, Values], list[R]], request: Q) -> list[R]:
        """What a node replied; nothing if it reports an error, or if its reply is malformed."""
        if not answer or ("error" in answer and not answer.get("damaged")):  # the messenger has logged the error
            return []
        try:
            if "error" in answer:
                raise MalformedError(str(answer["error"]))
            return read(request, answer)
        except MalformedError as error:
            log.warning("node %s: its reply is rejected because it is malformed: %s", node, brief(error))
        return []

    def _ask(
        self, requests: Mapping[str, TrainRequest | ScoreRequest], values: Mapping[str, Values], *, required: bool
    ) -> dict[str, Values]:
        """Send requests and wait until enough clients have answered in time, but at most until it is time to give up.

        Too few answers are an error if they are required.
        """
        timeouts = self.messenger.timeouts
        number = next((one.round.number for one in requests.values()), 0)
        needed = min(timeouts.minimum, sum(len(one.clients) for one in requests.values()))
        warned = False

        def num_clients(answers: Mapping[str, Values]) -> int:
            return sum(len(requests[node].clients) for node, answer in answers.items() if "error" not in answer)

        def is_over(answers: Mapping[str, Values], seconds: float) -> bool:
            nonlocal warned
            if seconds < timeouts.timeout:
                return False
            count = num_clients(answers)
            if count >= needed or seconds >= timeouts.give_up:
                return True
            if not warned:
                log.warning("round %d has %d of at least %d clients and keeps waiting", number, count, needed)
                warned = True
            return False

        answers = self.messenger.exchange(values, number, is_over)
        if required and num_clients(answers) < needed:
            errors = [f"node {node}: {error_of(answer)}" for node, answer in answers.items() if "error" in answer]
            why = errors[0] if errors else f"start the other nodes (waited {timeouts.give_up:g} seconds)"
            raise TrainingError(
                f"only {num_clients(answers)} of at least {needed} clients answered in round {number}; "
                f"{why.rstrip('.')}, then resume the run."
            )
        return answers


def in_canonical_order(replies: Sequence[TrainReply], sizes: Sequence[int]) -> list[TrainReply]:
    """Join replies and sort clients as the simulation does, largest first, whatever the order of arrival.

    Replies of different shapes, or too large to be joined, stay apart.
    """
    groups: dict[object, list[TrainReply]] = {}
    for reply in replies:
        large = wire.size(reply.upload)[0] > JOINED_BYTES / len(replies)
        groups.setdefault((_shape(reply.upload), reply.clients[0] if large else None), []).append(reply)
    found = []
    for group in groups.values():
        clients = [client for reply in group for client in reply.clients]
        order = sorted(range(len(clients)), key=lambda at: (-sizes[clients[at]], clients[at]))
        index = torch.tensor(order)
        upload = {name: concatenate([reply.upload[name] for reply in group])[index] for name in group[0].upload}
        broken = torch.cat([reply.broken for reply in group])[index]
        known = [reply.work for reply in group if reply.work is not None]
        work = torch.stack(known).sum(0) if len(known) == len(group) else None
        found.append(TrainReply([clients[at] for at in order], upload, {}, broken, work))
    return sorted(found, key=lambda reply: reply.clients[0])


def _shape(values: Values) -> object:
    """The shapes and dtypes of rows and tensors, without the number of clients."""
    return tuple(
        (name, value.layout, tuple(block.dtype for block in value.blocks))
        if isinstance(value, Rows)
        else (name, tuple(value.shape[1:]), value.dtype)
        for name, value in sorted(values.items())
    )
