"""What a split is: a rule that says which client owns which example, and what was done to it.

Split               says who owns what
├── Change          is added to another split: turns pictures, exchanges labels, sets test data apart
├── Together        splits added to one another: "dirichlet(alpha=8.0) + rotation(groups=4)"
└── Preset          a split by the name a paper gave it: "ds-1"
"""

import math
from abc import ABC, abstractmethod
from dataclasses import MISSING, dataclass, fields
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from bespokefl.core.errors import InputError
from bespokefl.data.splits.transform import Transform

if TYPE_CHECKING:
    from bespokefl.data.dataset import Dataset

TEST = "test"  # the column that marks the official test examples


@dataclass(frozen=True)
class Assignment:
    """Who owns what. One owner per example, so no example can be used twice for training."""

    owner: np.ndarray  # int64, one per example: the position of its client, -1 where the example is left out
    names: tuple[str, ...]
    groups: tuple[int, ...] | None = None  # each client's true group, where the split makes groups
    transforms: tuple[Transform, ...] | None = None  # what is done to each client's examples
    tests: tuple[np.ndarray, ...] | None = None  # each client's test examples, where they are not its own


@dataclass(frozen=True)
class Split(ABC):
    """One kind of split with its settings; `str(split)` is how it is written on the command line."""

    kind: ClassVar[str]

    @abstractmethod
    def assign(self, dataset: "Dataset", clients: int, seed: int) -> Assignment:
        """Hand the examples out to the clients; the same arguments always give the same."""

    def likeness(self, dataset: "Dataset") -> np.ndarray:
        """What a test example must have in common with a client's own to be a test for it: here, the label."""
        return dataset.y.numpy() if dataset.classes is not None else np.zeros(len(dataset), dtype=np.int64)

    @property
    def num_clients(self) -> int | None:
        """How many clients the split is made for, if its paper says so."""
        return None

    @property
    def parts(self) -> "tuple[Split, ...]":
        """What it is added up from."""
        return (self,)

    @property
    def unfolded(self) -> "tuple[Split, ...]":
        """Its parts, and presets as what they stand for."""
        return (self,)

    def __add__(self, other: "Split") -> "Split":
        from bespokefl.data.splits.together import Together

        return Together(self.parts + other.parts) if isinstance(other, Split) else NotImplemented

    def __str__(self) -> str:
        shown = [
            f"{field.name}={getattr(self, field.name)!r}"
            for field in fields(self)
            if field.default is MISSING or getattr(self, field.name) != field.default
        ]
        return f"{self.kind}({', '.join(shown)})" if shown else self.kind


@dataclass(frozen=True)
class Change(Split):
    """A split that says nothing about who owns what; alone it stands for "iid + change"."""

    turn: ClassVar[int] = 0  # whose `before` comes first

    def before(self, dataset: "Dataset", chosen: np.ndarray, seed: int) -> np.ndarray:
        """Which of the chosen examples (True) remain to be handed out."""
        return chosen

    def after(self, dataset: "Dataset", assignment: Assignment, likeness: np.ndarray, seed: int) -> Assignment:
        """The assignment, changed."""
        return assignment

    def assign(self, dataset: "Dataset", clients: int, seed: int) -> Assignment:
        from bespokefl.data.splits.together import Together

        return Together((self,)).assign(dataset, clients, seed)


def numbered(clients: int) -> tuple[str, ...]:
    """Names for clients that have none: "00" to "19" for twenty."""
    width = len(str(clients - 1))
    return tuple(f"{number:0{width}}" for number in range(clients))


def whole(name: str, value: Any, least: int, meaning: str = "") -> int:
    """A setting that must be a whole number."""
    if isinstance(value, bool) or not isinstance(value, Integral) or value < least:
        raise InputError(f"{name} must be a whole number >= {least}, got {value!r}{f' ({meaning})' if meaning else ''}")
    return int(value)


def real(name: str, value: Any, meaning: str, *, positive: bool = True) -> float:
    """A setting that must be a finite number."""
    fits = not isinstance(value, bool) and isinstance(value, Real) and math.isfinite(value)
    if not fits or (positive and value <= 0):
        raise InputError(f"{name} must be {'> 0' if positive else 'a finite number'}, got {value!r} ({meaning})")
    return float(value)


def truth(name: str, value: Any) -> bool:
    """A setting that must be True or False."""
    if not isinstance(value, bool):
        raise InputError(f"{name} must be True or False, got {value!r}")
    return value


def check_enough(split: Split, dataset: "Dataset", clients: int, each: int = 1) -> None:
    """Refuse a split that cannot give every client `each` examples."""
    if clients * each > len(dataset):
        wanted = f"{each} for each of {clients} clients" if each > 1 else f"one for each of {clients} clients"
        raise InputError(
            f"{split} needs at least {clients * each} examples ({wanted}), got {len(dataset)} in {dataset.name!r}; "
            "use fewer clients"
        )


def class_labels(split: Split, dataset: "Dataset") -> tuple[np.ndarray, int]:
    """The examples' classes and how many there are; refuses data without classes."""
    if dataset.classes is None:
        raise InputError(
            f"{split} needs data with classes, got real-valued targets in {dataset.name!r}; use iid or by_column"
        )
    return dataset.y.numpy(), dataset.classes


def column(split: Split, dataset: "Dataset", name: str, meaning: str) -> np.ndarray:
    """A column of the data; refuses data that do not have it."""
    if name not in dataset.columns:
        there = ", ".join(sorted(dataset.columns)) or "none"
        raise InputError(
            f"{split} needs data with the column {name!r} ({meaning}), but {dataset.name!r} has: {there}; "
            "add it, or use another split"
        )
    return dataset.columns[name]
