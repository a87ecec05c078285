"""What a split is: a rule that says which client owns which example."""

from abc import ABC, abstractmethod
from dataclasses import MISSING, dataclass, fields
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from bespokefl.core.errors import InputError

if TYPE_CHECKING:
    from bespokefl.data.dataset import Dataset


@dataclass(frozen=True)
class Assignment:
    """Who owns what. One owner per example, so no example can be used twice."""

    owner: np.ndarray  # int64, one per example: the position of its client, -1 where the example is left out
    names: tuple[str, ...]
    groups: tuple[int, ...] | None = None  # each client's true group, where the split makes groups


@dataclass(frozen=True)
class Split(ABC):
    """One kind of split with its settings; `str(split)` is how it is written on the command line."""

    kind: ClassVar[str]

    @abstractmethod
    def assign(self, dataset: "Dataset", clients: int, seed: int) -> Assignment:
        """Hand the examples out to the clients; the same arguments always give the same."""

    def __str__(self) -> str:
        shown = [
            f"{field.name}={getattr(self, field.name)!r}"
            for field in fields(self)
            if field.default is MISSING or getattr(self, field.name) != field.default
        ]
        return f"{self.kind}({', '.join(shown)})" if shown else self.kind


def numbered(clients: int) -> tuple[str, ...]:
    """Names for clients that have none: "00" to "19" for twenty."""
    width = len(str(clients - 1))
    return tuple(f"{number:0{width}}" for number in range(clients))


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
