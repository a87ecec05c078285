"""What every transport offers to the round loop, and what passes between them.

A round is the same everywhere; only the way in which messages reach clients and uploads come back differs. A transport
also knows where clients' states are: with the transport itself in a simulation, at the nodes in a deployment.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor

from bespokefl.core.method import Message, Round, State
from bespokefl.core.rows import Rows
from bespokefl.engines.cohorts.chunks import Executor
from bespokefl.engines.evaluation import Scores
from bespokefl.engines.storage.checkpoint_format import LoadedCheckpoint
from bespokefl.engines.storage.client_states import StatesSnapshot


@dataclass(frozen=True)
class Draw:
    """The clients of a round, as positions in the federation's canonical order."""

    round: Round
    trains: list[int]
    reports: list[int]  # whose uploads are wanted
    dropped: tuple[int, ...] = ()  # drawn, but known to be absent
    all_train: bool = False  # every client trains, whoever reports: a lost upload does not undo the training


@dataclass(frozen=True)
class TrainRequest:
    """Asks some clients to train."""

    clients: list[int]
    round: Round
    message: Callable[[], Message]  # made when it is sent, so that few messages are in memory at once
    reports: frozenset[int] = frozenset()


@dataclass(frozen=True)
class TrainReply:
    """Uploads of some clients, one row each."""

    clients: list[int]
    upload: State = field(default_factory=dict)
    notes: dict[str, Tensor] = field(default_factory=dict)
    broken: Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.bool))  # weights not finite, or huge
    work: Tensor | None = None  # of all these clients, as in `WorkCounter.take`; None: unknown


@dataclass(frozen=True)
class ScoreRequest:
    """Asks some clients to score their personal models and the global one on their own data."""

    clients: list[int]
    round: Round
    message: Callable[[], Message] | None  # None: the global model is everybody's personal model
    global_model: Rows | None
    final: bool  # the last evaluation of a run: more metrics, and the personal models are kept


@dataclass(frozen=True)
class ScoreReply:
    """Scores of some clients, one value each."""

    clients: list[int]
    personal: Scores | None  # None: those of the global model
    globally: Scores | None
    work: Tensor | None = None  # of making the personal models, in the final evaluation
    constant: Scores | None = None  # of constant predictors; in the final evaluation only
    refused: bool = False  # these clients give no scores


@dataclass(frozen=True)
class Execution:
    """How a transport computes; stored with the results."""

    executor: Executor
    workers: int
    states: str  # where clients' states are: "memory", "files" or "nodes"
    placement: tuple[int, ...] = ()  # the number of clients whose data each node of a cluster holds, largest ones first


class Transport(Protocol):
    """Carries messages to where clients live and brings their uploads back."""

    remote: bool
    """Whether clients are on other machines: they may stay away or send nonsense, and one of them must not end the run.
    Every round is then saved before the next one starts, because nodes delete states that are no longer needed."""

    def open(self) -> None:
        """Get ready to exchange messages."""

    def close(self) -> None:
        """Release processes and memory. Closing twice is allowed."""

    def partition(self, clients: Sequence[int], *, scoring: bool = False) -> list[list[int]]:
        """Cut clients into the groups that requests are addressed to. The cut does not depend on timing."""

    def exchange(self, requests: Sequence[TrainRequest]) -> Iterator[TrainReply]:
        """Send requests and yield replies in a fixed order; clients that do not answer in time are left out."""

    def evaluate(self, requests: Sequence[ScoreRequest]) -> Iterator[ScoreReply]:
        """Send requests and yield scores in any order; clients that do not answer in time are left out."""

    def personal_models(self, first: int, count: int) -> Rows | None:
        """The models of these clients in the final evaluation; None if they stay at the nodes."""

    def commit(self, draw: Draw, lost: Mapping[int, str]) -> None:
        """Make the new states of the clients of this round permanent.

        `lost` are the clients whose uploads were not used. They return to their previous state, unless all clients
        train whether they report or not.
        """

    def snapshot(self) -> tuple[StatesSnapshot, dict[str, Any]]:
        """What a checkpoint needs to know of clients' states: the states, or a record of where they are."""

    def restore(self, checkpoint: LoadedCheckpoint) -> None:
        """Return to the states of a checkpoint."""

    def execution(self) -> Execution:
        """Describe how this transport computes."""
