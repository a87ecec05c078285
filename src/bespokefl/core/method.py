"""What a method is: a few functions, both halves, server and client, in one file.

The server holds a dict of rows and tensors, and so does every client. Between them go messages (down) and uploads
(up): named rows, tensors and numbers, nothing else. All functions are pure: they return what is new.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cache
from numbers import Integral, Real
from types import NoneType, UnionType
from typing import Any, ClassVar, Union, get_args, get_origin, get_type_hints

import numpy as np
import torch
from torch import Tensor

from bespokefl.core import rng
from bespokefl.core.cohort_data import CohortData
from bespokefl.core.errors import InputError, in_brief
from bespokefl.core.rows import Rows
from bespokefl.core.task import Task

Value = Rows | Tensor | float | int
State = dict[str, Any]  # names to Rows or tensors, one row per client
Update = tuple[State, State]  # a client's upload and its new state
MOST = {int: 10**9, float: 1e38}  # of a hyper-parameter: beyond, counting or float32 ends
ALL, SAMPLE, NONE = "all", "sample", "none"
# What a client uploads beside rows, for `Method.upload`: only dtype and shape count.
REAL, WHOLE = torch.zeros(1, dtype=torch.float64), torch.zeros(1, dtype=torch.int64)
# What a hyper-parameter's annotation takes: a numpy number is a number, True is none.
KINDS: dict[Any, tuple[str, Any]] = {
    bool: ("True or False", (bool, np.bool_)),
    int: ("a whole number", Integral),
    float: ("a number", Real),
    str: ("text", str),
    NoneType: ("None", NoneType),
}


@dataclass(frozen=True)
class Phase:
    """A stretch of rounds in which the same clients train and report."""

    name: str
    rounds: int
    trains: str = SAMPLE  # who runs local_update: "sample" (the round's draw) or "all"
    reports: str = SAMPLE  # whose uploads reach the server: "sample", "all" or "none"
    sampling: str = "uniform"  # or "bernoulli": each client with probability `participation`


@dataclass(frozen=True)
class Round:
    """What everybody knows about a round."""

    number: int  # 1, 2, … over all phases; 0 before the first
    phase: str
    seed: int
    names: tuple[str, ...]  # all clients of the federation, in canonical order
    participation: float = 1.0
    reporting: tuple[int, ...] = ()  # positions in `names` of the clients whose uploads count
    warm: bool = False  # the run began from given weights, not from random ones
    groups: tuple[int, ...] | None = None  # the split's true groups, for methods that declare that they need them
    notes: dict[str, Any] = field(default_factory=dict)
    client_notes: dict[str, Tensor] = field(default_factory=dict)

    def generator(self, purpose: str) -> np.random.Generator:
        """The server's own draws."""
        return rng.generator(self.seed, purpose, self.number)

    def note(self, **values: Any) -> None:
        """Keep figures of this round (numbers or tensors) for the run directory."""
        self.notes.update(values)

    def note_clients(self, **values: Tensor) -> None:
        """The same for figures with a place for every client on each axis: (N,) or (N, N), in the order of `names`."""
        self.client_notes.update(values)


@dataclass(frozen=True)
class Message:
    """What the server sends to a cohort: the same for all, and to each its own (one row per client).

    Where several clients' own rows are the same model, `stream` numbers the models, (K,): whoever has the same number
    gets the same rows, and the server needs to send them once only. It is counted, not sent.
    """

    shared: Mapping[str, Value] = field(default_factory=dict)
    own: Mapping[str, Value] = field(default_factory=dict)
    stream: Tensor | None = None

    def __getitem__(self, name: str) -> Any:
        return self.own[name] if name in self.own else self.shared[name]

    def __contains__(self, name: str) -> bool:
        return name in self.own or name in self.shared


class Uploads:
    """What the server received in a round, in canonical order, in chunks. Can be gone through more than once."""

    def __init__(self, clients: Sequence[int], examples: Tensor, chunks: Sequence[State]) -> None:
        self.clients = tuple(clients)  # positions in round.names
        self.examples = examples  # (K,) training examples, n_k
        self.chunks = chunks

    def __len__(self) -> int:
        return len(self.clients)

    def __iter__(self) -> Iterator[State]:
        return iter(self.chunks)

    def __contains__(self, name: str) -> bool:
        return bool(self.chunks) and name in self.chunks[0]

    def __getitem__(self, name: str) -> Any:
        """All clients' rows or tensors of this name, as one."""
        parts = [chunk[name] for chunk in self.chunks]
        return Rows.cat(parts) if isinstance(parts[0], Rows) else torch.cat(parts)

    def shares(self, by: str | Tensor = "examples") -> Tensor:
        """Weights that sum to one: n_k / n, equal, or in proportion to the numbers given."""
        if isinstance(by, Tensor):
            raw = by.double()
        else:
            raw = self.examples.double() if by == "examples" else torch.ones(len(self), dtype=torch.float64)
        return raw / raw.sum()

    def mean(self, name: str, by: str | Tensor = "examples") -> Rows:
        """The weighted mean as one row, summed chunk by chunk: memory follows the model, not the cohort."""
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


@dataclass(frozen=True, kw_only=True)
class Method(ABC):
    """A personalized federated learning method. Its fields are its hyper-parameters."""

    name: ClassVar[str] = ""
    citation: ClassVar[str] = ""  # BibTeX
    # What its uploads are, by name; all others are rows or real numbers.
    positive: ClassVar[tuple[str, ...]] = ()  # numbers that are not below zero: noise goes to their logarithms
    undefined: ClassVar[tuple[str, ...]] = ()  # numbers that may be NaN, which says that there is none
    choices: ClassVar[tuple[str, ...]] = ()  # which of several a client chose: what noise cannot cover

    def __post_init__(self) -> None:
        for name, kind in _kinds(type(self)).items():
            value = getattr(self, name)
            if not _fits(value, kind):
                wanted = " or ".join(KINDS[one][0] for one in kind)
                raise InputError(f"{name} of {self.name or type(self).__name__} must be {wanted}, got {value!r}.")
        self.check()

    def check(self) -> None:
        """Refuse hyper-parameters that make no sense, in one sentence."""
        for name, value in self.hyper().items():
            most = MOST.get(type(value))
            if most is not None and most < abs(value) < float("inf"):
                raise InputError(f"{name} must be at most {most:g}, got {in_brief(value)}.")
            if name.endswith("lr") and not 0 < value < float("inf"):
                raise InputError(f"{name} must be > 0, got {value} (learning rate of {self.name}).")
            if name == "momentum" and not 0 <= value < 1:
                raise InputError(f"momentum must be in [0, 1), got {value}.")
            if name == "weight_decay" and not value >= 0:
                raise InputError(f"weight_decay must be >= 0, got {value}.")
            if name == "weights" and value not in ("examples", "equal"):
                raise InputError(f"weights must be 'examples' or 'equal', got {value!r}.")

    @classmethod
    def summary(cls) -> str:
        """One line for listings: the docstring's first."""
        return (cls.__doc__ or "").strip().splitlines()[0]

    def hyper(self) -> dict[str, Any]:
        return {f.name: getattr(self, f.name) for f in fields(self)}

    @property
    def needs_groups(self) -> bool:
        """Whether it asks for the split's true groups; only such a method is told."""
        return False

    # -- the plan of a run

    def phases(self, rounds: int) -> list[Phase]:
        return [Phase("train", rounds)]

    # -- beginnings

    def start_server(self, start: Rows, round: Round) -> State:
        """The server's state before the first round (`round.number` is 0), from the initial weights (one row)."""
        return {"weights": start}

    def start_clients(self, start: Rows, cohort: Sequence[str]) -> State:
        """The state of clients that become active for the first time, one row each."""
        return {}

    # -- a round

    def message(self, server: State, cohort: Sequence[int], round: Round) -> Message:
        """What the server sends to these clients (positions in round.names)."""
        return Message(shared={"weights": server["weights"]})

    @abstractmethod
    def local_update(self, task: Task, message: Message, state: State, data: CohortData, round: Round) -> Update:
        """The client's half: an upload and its new state."""

    def aggregate(self, server: State, uploads: Uploads, round: Round) -> State:
        """The server's half: its new state."""
        return server

    def upload(self, start: Rows, server: State, round: Round) -> State | None:
        """What one client's upload looks like in this round, by name; one that looks otherwise is refused.

        `start`, or a block of it, stands for rows of these columns; REAL, WHOLE or any tensor of one row for numbers of
        that shape and dtype. None: the method does not say, and clients' uploads are to look as most of them do.
        """
        return None

    def origin(self, task: Task, message: Message, name: str) -> Rows | float | None:
        """Where an upload of this name begins, known to both sides: clipping measures how far it went from there.

        None: at zero, as a change or a gradient does.
        """
        if name not in message:
            return None
        begun: Rows = message[name]
        return begun

    def possible(self, name: str, numbers: Tensor) -> Tensor:
        """Which of the numbers that are uploaded under this name can be, one by one; others are refused."""
        return numbers >= 0 if name in self.positive else torch.ones_like(numbers, dtype=torch.bool)

    def workload(self, server: State, round: Round) -> float:
        """How many times over a client trains in this round, for the time that a round takes."""
        return 1.0

    # -- what comes out

    def personal(self, task: Task, message: Message, state: State, data: CohortData) -> Rows:
        """The model each client uses: one row each, or one row for all."""
        rows: Rows = message["weights"]
        return rows

    def global_model(self, server: State) -> Rows | None:
        """The common model, one row; None where a method has none."""
        weights: Rows | None = server.get("weights")
        return weights

    @abstractmethod
    def newcomer(self, task: Task, server: State, data: CohortData) -> Rows:
        """Personal models for clients that never took part, from the final server state and their own training data."""


@cache
def _kinds(method: type[Method]) -> dict[str, tuple[Any, ...]]:
    """What each hyper-parameter may be; those with other annotations (lists, tables) are left to the method's check."""
    hints = get_type_hints(method)
    found = {}
    for one in fields(method):
        hint = hints[one.name]
        kinds = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
        if all(kind in KINDS for kind in kinds):
            found[one.name] = kinds
    return found


def _fits(value: Any, kinds: tuple[Any, ...]) -> bool:
    if isinstance(value, bool | np.bool_):
        return bool in kinds
    return any(isinstance(value, KINDS[kind][1]) for kind in kinds)
