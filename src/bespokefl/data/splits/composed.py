"""A sum of splits: one of them assigns the examples, the others modify the result."""

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from bespokefl.core.errors import InputError
from bespokefl.data.dataset import Dataset
from bespokefl.data.splits.iid import IID
from bespokefl.data.splits.split import Assignment, Change, Split


@dataclass(frozen=True)
class Composed(Split):
    """At most one split that assigns the examples (by default iid) and any number of changes, applied in order."""

    kind: ClassVar[str] = "composed"

    members: tuple[Split, ...]

    def __post_init__(self) -> None:
        owners = [str(one) for one in self.expanded if not isinstance(one, Change)]
        if len(owners) > 1:
            raise InputError(f"only one split can assign the examples, got {' and '.join(owners)}; leave one out")
        names = [one.kind for one in self.expanded]
        twice = next((one for one in names if names.count(one) > 1), None)
        if twice is not None:
            raise InputError(f"each split can be added once, got {twice} twice; leave one out")

    @property
    def parts(self) -> tuple[Split, ...]:
        return self.members

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
