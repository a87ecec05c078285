"""The base classes of all splits: a split decides which client owns which example.

Split               assigns each example to a client
├── Change          modifies another split: rotates images, permutes labels, sets test data apart
├── Composed        a sum of splits: "dirichlet(alpha=8.0) + rotation(groups=4)"
└── Preset          a split under the name that a paper gave it: "ds-1"
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import MISSING, dataclass, field, fields
from numbers import Integral, Real
from typing import Any, ClassVar, get_args

import numpy as np

from bespokefl.core import rng
from bespokefl.core.errors import InputError
from bespokefl.data.dataset import Dataset
from bespokefl.data.splits.transform import Transform

TEST_COLUMN = "test"  # marks the official test examples


@dataclass(frozen=True)
class Assignment:
    """The owner of each example. There is one owner per example, so no example is used twice for training."""

    owner: np.ndarray  # int64, one per example: the index of its client, -1 where the example is unused
    names: tuple[str, ...]
    groups: tuple[int, ...] | None = None  # each client's true group, if the split creates groups
    transforms: tuple[Transform, ...] | None = None  # applied to each client's examples
    tests: tuple[np.ndarray, ...] | None = None  # each client's test examples, if they are not its own

    @classmethod
    def numbered(cls, owner: np.ndarray, clients: int, groups: tuple[int, ...] | None = None) -> "Assignment":
        """An assignment to clients with default names."""
        return cls(owner, client_names(clients), groups)


@dataclass(frozen=True)
class Split(ABC):
    """A kind of split with its settings; `str(split)` is the form used on the command line.

    Splits are added with `+`: ``Dirichlet(alpha=8) + Rotation(groups=4)``.
    """

    kind: ClassVar[str]

    def __init_subclass__(cls, kind: str = "") -> None:
        cls.kind = kind or getattr(cls, "kind", "")

    def __post_init__(self) -> None:
        for one in fields(self):
            value = getattr(self, one.name)
            if "options" in one.metadata and not (value is None and one.default is None):
                check = CHECKS[(get_args(one.type) or (one.type,))[0]]
                object.__setattr__(self, one.name, check(one.name, value, **one.metadata["options"]))

    @abstractmethod
    def assign(self, dataset: Dataset, clients: int, seed: int) -> Assignment:
        """Assign the examples to clients, deterministically for given arguments."""

    def test_key(self, dataset: Dataset) -> np.ndarray:
        """One value per example: a client is tested on official test examples that share a value with its own."""
        return dataset.y.numpy() if dataset.classes is not None else np.zeros(len(dataset), dtype=np.int64)

    def generator(self, seed: int) -> np.random.Generator:
        """The random generator of this kind of split."""
        return rng.generator(seed, "split", self.kind)

    @property
    def num_clients(self) -> int | None:
        """The number of clients of the paper that defines the split; None if there is none."""
        return None

    @property
    def expanded(self) -> "tuple[Split, ...]":
        """The splits that are added, with presets replaced by their definitions."""
        return (self,)

    def __add__(self, other: "Split") -> "Split":
        from bespokefl.data.splits.composed import Composed

        return Composed((self, other)) if isinstance(other, Split) else NotImplemented

    def __str__(self) -> str:
        shown = [
            f"{one.name}={getattr(self, one.name)!r}"
            for one in fields(self)
            if one.default is MISSING or getattr(self, one.name) != one.default
        ]
        return f"{self.kind}({', '.join(shown)})" if shown else self.kind


@dataclass(frozen=True)
class Change(Split):
    """A split that assigns no owners; used without another split it means "iid + change"."""

    order: ClassVar[int] = 0  # `select` is called in ascending order

    def select(self, dataset: Dataset, chosen: np.ndarray, seed: int) -> np.ndarray:
        """The subset of the chosen examples (a boolean mask) that is assigned to clients."""
        return chosen

    def modify(self, dataset: Dataset, assignment: Assignment, test_key: np.ndarray, seed: int) -> Assignment:
        """The modified assignment."""
        return assignment

    def assign(self, dataset: Dataset, clients: int, seed: int) -> Assignment:
        from bespokefl.data.splits.composed import Composed

        return Composed((self,)).assign(dataset, clients, seed)


def client_names(clients: int) -> tuple[str, ...]:
    """Default names: "00" to "19" for twenty clients."""
    width = len(str(clients - 1))
    return tuple(f"{number:0{width}}" for number in range(clients))


# -- settings


def setting(default: Any = MISSING, **options: Any) -> Any:
    """A field whose value is checked by its type, with these options; None is valid if it is the default."""
    return field(default=default, metadata={"options": options})


def integer(name: str, value: Any, least: int, meaning: str = "") -> int:
    """Check a setting that is an integer."""
    if isinstance(value, bool) or not isinstance(value, Integral) or value < least:
        raise InputError(f"{name} must be an integer >= {least}, got {value!r}{f' ({meaning})' if meaning else ''}")
    return int(value)


def real(name: str, value: Any, meaning: str, *, positive: bool = True) -> float:
    """Check a setting that is a finite number."""
    fits = not isinstance(value, bool) and isinstance(value, Real) and math.isfinite(value)
    if not fits or (positive and value <= 0):
        raise InputError(f"{name} must be {'> 0' if positive else 'a finite number'}, got {value!r} ({meaning})")
    return float(value)


def boolean(name: str, value: Any) -> bool:
    """Check a setting that is True or False."""
    if not isinstance(value, bool):
        raise InputError(f"{name} must be True or False, got {value!r}")
    return value


def column_name(name: str, value: Any) -> str:
    """Check a setting that names a column."""
    if not isinstance(value, str):
        raise InputError(f"{name} must be the name of a column, got {value!r}")
    return value


CHECKS: dict[Any, Callable[..., Any]] = {int: integer, float: real, bool: boolean, str: column_name}


# -- what splits need from the data


def check_enough(split: Split, dataset: Dataset, clients: int, each: int = 1) -> None:
    """Check that every client can get `each` examples."""
    if clients * each > len(dataset):
        wanted = f"{each} for each of {clients} clients" if each > 1 else f"one for each of {clients} clients"
        raise InputError(
            f"{split} needs at least {clients * each} examples ({wanted}), got {len(dataset)} in {dataset.name!r}; "
            "use fewer clients"
        )


def class_labels(split: Split, dataset: Dataset, k: int = 1) -> tuple[np.ndarray, int]:
    """The labels and the number of classes; data without classes, or with fewer than k, are rejected."""
    if dataset.classes is None:
        raise InputError(
            f"{split} needs data with classes, got real-valued targets in {dataset.name!r}; use iid or by_column"
        )
    if k > dataset.classes:
        raise InputError(
            f"k must be at most the number of classes, {dataset.classes} in {dataset.name!r}, got {k}; "
            f"use {split.kind}(k={dataset.classes}) or less"
        )
    return dataset.y.numpy(), dataset.classes


def column_values(split: Split, dataset: Dataset, name: str, meaning: str) -> np.ndarray:
    """A column of the data; data without it are rejected."""
    if name not in dataset.columns:
        known = ", ".join(sorted(dataset.columns)) or "none"
        raise InputError(
            f"{split} needs data with the column {name!r} ({meaning}), but {dataset.name!r} has: {known}; "
            "add it, or use another split"
        )
    return dataset.columns[name]
