"""Splits added to one another: one says who owns what, the others change it."""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from bespokefl.core.errors import InputError
from bespokefl.data.splits.iid import IID
from bespokefl.data.splits.split import Assignment, Change, Split

if TYPE_CHECKING:
    from bespokefl.data.dataset import Dataset


@dataclass(frozen=True)
class Together(Split):
    """At most one split that says who owns what, iid if there is none, and changes, which work in their order."""

    kind: ClassVar[str] = "together"

    members: tuple[Split, ...]

    def __post_init__(self) -> None:
        owners = [str(one) for one in self.unfolded if not isinstance(one, Change)]
        if len(owners) > 1:
            raise InputError(
                f"only one split can say who owns which example, got {' and '.join(owners)}; leave one out"
            )
        names = [one.kind for one in self.unfolded]
        twice = next((one for one in names if names.count(one) > 1), None)
        if twice is not None:
            raise InputError(f"each split can be added once, got {twice} twice; leave one out")

    @property
    def parts(self) -> tuple[Split, ...]:
        return self.members

    @property
    def unfolded(self) -> tuple[Split, ...]:
        return tuple(one for member in self.members for one in member.unfolded)

    @property
    def num_clients(self) -> int | None:
        return next((one.num_clients for one in self.members if one.num_clients is not None), None)

    def likeness(self, dataset: "Dataset") -> np.ndarray:
        return self._owner.likeness(dataset)

    def assign(self, dataset: "Dataset", clients: int, seed: int) -> Assignment:
        changes = [one for one in self.unfolded if isinstance(one, Change)]
        chosen = np.ones(len(dataset), dtype=bool)
        for one in sorted(changes, key=lambda one: one.turn):
            chosen = one.before(dataset, chosen, seed)
        places = np.flatnonzero(chosen)
        found = self._owner.assign(dataset.take(places), clients, seed)
        owner = np.full(len(dataset), -1, dtype=np.int64)
        owner[places] = found.owner
        found = replace(found, owner=owner)
        likeness = self.likeness(dataset)
        for one in changes:
            found = one.after(dataset, found, likeness, seed)
        return found

    @property
    def _owner(self) -> Split:
        """The split that says who owns what."""
        return next((one for one in self.unfolded if not isinstance(one, Change)), IID())

    def __str__(self) -> str:
        return " + ".join(map(str, self.members))
