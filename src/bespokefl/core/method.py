"""The interface of a method: a few functions for the server and for its clients, in one file.

The server holds a dict of rows and tensors, and so does every client. They exchange messages (down) and uploads (up),
which consist of named rows, tensors and numbers. All functions are pure: they return new values.
"""

import inspect
import warnings
from abc import ABCMeta, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cache
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from bespokefl.core import rng
from bespokefl.core.cohort_data import CohortData as CohortData
from bespokefl.core.errors import InputError, listing
from bespokefl.core.rows import Rows as Rows
from bespokefl.core.rows import concatenate
from bespokefl.core.task import Task as Task
from bespokefl.core.uploads import Declarations
from bespokefl.core.user_input import hyper_parameters
from bespokefl.core.user_input.hyper_parameters import Limits

Value = Rows | Tensor | float | int
State = dict[str, Any]  # names to Rows or tensors, one row per client
Update = tuple[State, State]  # a client's upload and its new state
ALL, SAMPLE, NONE = "all", "sample", "none"  # which clients train or report in a phase
FORMER_DECLARATIONS = ("origin", "possible", "positive", "undefined", "choices")  # of uploads, before `upload` had all


@dataclass(frozen=True)
class Phase:
    """A number of rounds in which the same clients train and report.

    Parameters
    ----------
    name : str
        A method finds it in `Round.phase`.
    rounds : int
    trains : {"sample", "all"}
        Which clients run `Method.local_update`: the sample drawn for the round, or all.
    reports : {"sample", "all", "none"}
        Whose uploads reach the server.
    sampling : {"uniform", "bernoulli"}
        How the sample is drawn: a fixed number of clients, or each client with probability `participation`.
    """

    name: str
    rounds: int
    trains: str = SAMPLE
    reports: str = SAMPLE
    sampling: str = "uniform"


@dataclass(frozen=True)
class Round:
    """What server and clients know about a round."""

    number: int  # counts from 1 over all phases; 0 before the first round
    phase: str
    seed: int  # of the run
    names: tuple[str, ...]  # all clients of the federation, in canonical order
    participation: float = 1.0  # the share of clients drawn for a round
    reporting: tuple[int, ...] = ()  # positions in `names` of the clients whose uploads count
    warm: bool = False  # whether the run started from given weights, not from random ones
    groups: tuple[int, ...] | None = None  # the true groups of the split, for methods with `needs_groups`
    notes: dict[str, Any] = field(default_factory=dict)
    client_notes: dict[str, Tensor] = field(default_factory=dict)

    def generator(self, purpose: str) -> np.random.Generator:
        """Return the server's random generator for a purpose in this round."""
        return rng.generator(self.seed, purpose, self.number)

    def note(self, **values: Any) -> None:
        """Record numbers or tensors of this round in the run directory."""
        self.notes.update(values)

    def note_clients(self, **values: Tensor) -> None:
        """Record tensors with one entry per client on each axis, (N,) or (N, N), in the order of `names`."""
        self.client_notes.update(values)


@dataclass(frozen=True)
class Message:
    """What the server sends to a cohort.

    Parameters
    ----------
    shared : mapping of str to Rows, Tensor or number
        Values that are the same for all clients.
    own : mapping of str to Rows or Tensor
        Values with one row per client.
    stream : Tensor or None
        If several clients receive the same rows in `own`: an integer per client, equal for equal rows. It is used to
        count how much a server must send, and is not sent itself.
    """

    shared: Mapping[str, Value] = field(default_factory=dict)
    own: Mapping[str, Value] = field(default_factory=dict)
    stream: Tensor | None = None

    def __getitem__(self, name: str) -> Any:
        return self.own[name] if name in self.own else self.shared[name]

    def __contains__(self, name: str) -> bool:
        return name in self.own or name in self.shared


class Uploads:
    """The uploads that the server received in a round, in canonical order.

    Iterating yields them in chunks, as often as needed.
    """

    def __init__(self, clients: Sequence[int], examples: Tensor, chunks: Sequence[State]) -> None:
        self.clients = tuple(clients)  # positions in `Round.names`
        self.examples = examples  # n_k, the number of training examples of each client, (K,)
        self.chunks = chunks

    def __len__(self) -> int:
        return len(self.clients)

    def __iter__(self) -> Iterator[State]:
        return iter(self.chunks)

    def __contains__(self, name: str) -> bool:
        return bool(self.chunks) and name in self.chunks[0]

    def __getitem__(self, name: str) -> Any:
        """Return the rows or tensors of this name of all clients, concatenated."""
        return concatenate([chunk[name] for chunk in self.chunks])

    def shares(self, by: str | Tensor = "examples") -> Tensor:
        """Return weights that sum to one: by "examples" (n_k / n), "equal", or proportional to given numbers."""
        if isinstance(by, Tensor):
            raw = by.double()
        else:
            raw = self.examples.double() if by == "examples" else torch.ones(len(self), dtype=torch.float64)
        return raw / raw.sum()

    def mean(self, name: str, by: str | Tensor = "examples") -> Rows:
        """Return the mean of some rows, weighted by `shares(by)`, as one row.

        It is summed chunk by chunk, so that memory grows with the model and not with the number of clients.
        """
        shares = self.shares(by)
        total: Rows | None = None
        at = 0
        for chunk in self.chunks:
            rows: Rows = chunk[name]
            part = shares[at : at + len(rows)].unsqueeze(0) @ rows
            total = part if total is None else total + part
            at += len(rows)
        assert total is not None
        return total


class _AcceptsFormerNames(ABCMeta):
    """Lets a method be built with former names of its hyper-parameters, with a warning."""

    def __call__(cls, *args: Any, **hyper: Any) -> Any:
        return super().__call__(*args, **cls.rename(hyper))  # type: ignore[attr-defined]


@dataclass(frozen=True, kw_only=True)
class Method(metaclass=_AcceptsFormerNames):
    """A personalized federated learning method.

    A subclass is a frozen dataclass whose fields are the hyper-parameters. Only `local_update` and `newcomer` are
    required; the defaults of the other functions are those of a single global model called "weights".

    Attributes
    ----------
    name : str
        The name on the command line.
    citation : str
        The BibTeX entry of the paper.
    limits : mapping of str to Limit
        The valid values of hyper-parameters, see `core.user_input.hyper_parameters`.
    former_names : mapping of str to str
        Former names of hyper-parameters and their present names.

    Raises
    ------
    InputError
        If a hyper-parameter has a wrong type or an invalid value.
    """

    name: ClassVar[str] = ""
    citation: ClassVar[str] = ""
    limits: ClassVar[Limits] = {}
    former_names: ClassVar[Mapping[str, str]] = {}

    @classmethod
    def rename(cls, hyper: Mapping[str, Any]) -> dict[str, Any]:
        """Replace former names of hyper-parameters, as in `former_names`, by the present ones."""
        for name in hyper.keys() & cls.former_names.keys():
            warnings.warn(f"{name} of {cls.name} is now {cls.former_names[name]}", FutureWarning, stacklevel=3)
        return {cls.former_names.get(name, name): value for name, value in hyper.items()}

    def __post_init__(self) -> None:
        _reject_former_declarations(type(self))
        for name, value in hyper_parameters.converted(self.hyper(), type(self), self._title).items():
            object.__setattr__(self, name, value)
        self.check()

    def check(self) -> None:
        """Raise an InputError if hyper-parameters are invalid. Extend it for rules that `limits` cannot express."""
        hyper_parameters.check(self.hyper(), self.limits, self._title)

    @property
    def _title(self) -> str:
        return self.name or type(self).__name__

    @classmethod
    def summary(cls) -> str:
        """Return the first line of the docstring."""
        return (cls.__doc__ or "").strip().splitlines()[0]

    def hyper(self) -> dict[str, Any]:
        """Return the hyper-parameters by name."""
        return {f.name: getattr(self, f.name) for f in fields(self)}

    @property
    def sgd(self) -> dict[str, Any]:
        """The hyper-parameters momentum and weight_decay, if the method has them, as options of `local_sgd`."""
        return {name: value for name, value in self.hyper().items() if name in ("momentum", "weight_decay")}

    @property
    def needs_groups(self) -> bool:
        """Whether the method uses the true groups of the split. Only then does `Round.groups` have them."""
        return False

    def within_budget(self) -> "Method":
        """Return the method with at most the run's number of local steps per client and round, if it sets its own."""
        return self

    # -- the plan of a run

    def phases(self, rounds: int) -> list[Phase]:
        """Return the phases of a run of this many rounds."""
        return [Phase("train", rounds)]

    # -- initial states

    def start_server(self, start: Rows, round: Round) -> State:
        """Return the server's state before the first round, from the initial weights (one row)."""
        return {"weights": start}

    def start_clients(self, start: Rows, cohort: Sequence[str]) -> State:
        """Return the state of clients that become active for the first time, one row each."""
        return {}

    # -- a round

    def message(self, server: State, cohort: Sequence[int], round: Round) -> Message:
        """Return what the server sends to these clients (positions in `round.names`)."""
        return Message(shared={"weights": server["weights"]})

    @abstractmethod
    def local_update(self, task: Task, message: Message, state: State, data: CohortData, round: Round) -> Update:
        """Train a cohort of clients.

        Returns
        -------
        upload, state : dict, dict
            What is sent to the server, and the clients' new state: one row per client.
        """

    def upload(self, message: Message) -> Declarations | None:
        """Declare what `local_update` uploads: a `Weights`, `Scalar` or `Choice` per name.

        The server rejects uploads that do not match, and clipping and noise follow from it. Without a declaration
        (None) the uploads of the majority decide what a valid upload looks like. A subclass that overrides
        `local_update` must declare its own `upload`.
        """
        return None

    def aggregate(self, server: State, uploads: Uploads, round: Round) -> State:
        """Return the server's new state."""
        return server

    def workload(self, server: State, round: Round) -> float:
        """Return how many models a client trains in this round, for estimates of a round's duration."""
        return 1.0

    # -- results

    def personal(self, task: Task, message: Message, state: State, data: CohortData) -> Rows:
        """Return the model that each client uses: one row each, or one row for all."""
        return message["weights"]

    def global_model(self, server: State) -> Rows | None:
        """Return the global model as one row; by default the server's "weights", or None if it has none."""
        return server.get("weights")

    @abstractmethod
    def newcomer(self, task: Task, server: State, data: CohortData) -> Rows:
        """Return personal models for clients that never took part, from the server's final state and their data."""


@cache
def _reject_former_declarations(method: type[Method]) -> None:
    """Raise an InputError for a method that declares its uploads in the form of earlier versions."""
    hyper = {one.name for one in fields(method)}
    found = [name for name in FORMER_DECLARATIONS if name not in hyper and hasattr(method, name)]
    if len(inspect.signature(method.upload).parameters) != 2:
        found.append("upload(self, start, server, round)")
    if found:
        raise InputError(
            f"{method.__name__} declares its uploads by {listing(found)}, which earlier versions used: define "
            '`upload(self, message)` to return a Weights, Scalar or Choice per name, as in {"weights": Weights()}.'
        )
