"""Splits made of other splits: sums, and those of papers with their names and numbers of clients."""

from dataclasses import dataclass, replace
from itertools import chain

import numpy as np

from bespokefl.core.errors import InputError
from bespokefl.data.dataset import Dataset
from bespokefl.data.splits.label_free import IID
from bespokefl.data.splits.split import Assignment, Change, Split


@dataclass(frozen=True)
class Composed(Split, kind="composed"):
    """A sum: at most one split that assigns the examples (by default iid) and any number of changes, in order."""

    members: tuple[Split, ...]

    def __post_init__(self) -> None:
        flat = (one.members if isinstance(one, Composed) else (one,) for one in self.members)
        object.__setattr__(self, "members", tuple(chain.from_iterable(flat)))
        owners = [str(one) for one in self.expanded if not isinstance(one, Change)]
        if len(owners) > 1:
            raise InputError(f"only one split can assign the examples, got {' and '.join(owners)}; leave one out")
        names = [one.kind for one in self.expanded]
        twice = next((one for one in names if names.count(one) > 1), None)
        if twice is not None:
            raise InputError(f"each split can be added once, got {twice} twice; leave one out")

    @property
    def expanded(self) -> tuple[Split, ...]:
        return tuple(one for member in self.members for one in member.expanded)

    @property
    def num_clients(self) -> int | None:
        return next((one.num_clients for one in self.members if one.num_clients is not None), None)

    def test_key(self, dataset: Dataset) -> np.ndarray:
        return self._owner.test_key(dataset)

    def assign(self, dataset: Dataset, clients: int, seed: int) -> Assignment:
        changes = [one for one in self.expanded if isinstance(one, Change)]
        chosen = np.ones(len(dataset), dtype=bool)
        for one in sorted(changes, key=lambda one: one.order):
            chosen = one.select(dataset, chosen, seed)
        indices = np.flatnonzero(chosen)
        assignment = self._owner.assign(dataset.take(indices), clients, seed)
        owner = np.full(len(dataset), -1, dtype=np.int64)
        owner[indices] = assignment.owner
        assignment = replace(assignment, owner=owner)
        test_key = self.test_key(dataset)
        for one in changes:
            assignment = one.modify(dataset, assignment, test_key, seed)
        return assignment

    @property
    def _owner(self) -> Split:
        """The split that assigns the examples."""
        return next((one for one in self.expanded if not isinstance(one, Change)), IID())

    def __str__(self) -> str:
        return " + ".join(map(str, self.members))


@dataclass(frozen=True)
class Preset(Split, kind="preset"):
    """A split with a name, a number of clients and the papers that use it."""

    name: str
    split: Split
    clients: int
    origin: str

    def assign(self, dataset: Dataset, clients: int, seed: int) -> Assignment:
        return self.split.assign(dataset, clients, seed)

    def test_key(self, dataset: Dataset) -> np.ndarray:
        return self.split.test_key(dataset)

    @property
    def num_clients(self) -> int:
        return self.clients

    @property
    def expanded(self) -> tuple[Split, ...]:
        return self.split.expanded

    def __str__(self) -> str:
        return self.name
