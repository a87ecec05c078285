"""Clients in groups that hold their pictures differently: upright, or turned by 90, 180 or 270 degrees.

User-Centric FL's covariate shift (Mestoukirdi et al., arXiv:2304.12930, section V-A): "users are clustered in 4
groups, and at each group images are rotated". It is added to any split of the labels.
"""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from bespokefl.core.errors import InputError
from bespokefl.data.splits.split import Assignment, Change, whole
from bespokefl.data.splits.transform import UNCHANGED, Transform

if TYPE_CHECKING:
    from bespokefl.data.dataset import Dataset


@dataclass(frozen=True)
class Rotation(Change):
    """The first clients are upright, the next are turned by 90° counter-clockwise, and so on: groups of equal size."""

    kind: ClassVar[str] = "rotation"

    groups: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "groups", whole("groups", self.groups, 1, "one for each quarter turn, at most 4"))
        if self.groups > 4:
            raise InputError(f"groups must be at most 4, one for each quarter turn, got {self.groups}")

    def after(self, dataset: "Dataset", assignment: Assignment, likeness: np.ndarray, seed: int) -> Assignment:
        if len(dataset.shape) < 2 or dataset.shape[-1] != dataset.shape[-2]:
            raise InputError(
                f"{self} needs square pictures to turn, got examples of shape {dataset.shape} in {dataset.name!r}"
            )
        group = in_groups(self, assignment, self.groups)
        return joined(assignment, group, [Transform(turns=one) for one in range(self.groups)])


def in_groups(split: Change, assignment: Assignment, groups: int) -> np.ndarray:
    """Each client's group: neighbours together, sizes that differ by one at most.

    Where clients are in groups already, each of those is cut, so that the two are crossed and can be told apart.
    """
    clients = len(assignment.names)
    if groups > clients:
        raise InputError(f"{split} needs a client for each of the {groups} groups, got {clients}; use more clients")
    known = np.zeros(clients, dtype=np.int64) if assignment.groups is None else np.array(assignment.groups)
    found = np.empty(clients, dtype=np.int64)
    for one in np.unique(known):
        own = np.flatnonzero(known == one)
        found[own] = np.arange(len(own)) * groups // len(own)
    return found


def joined(assignment: Assignment, group: np.ndarray, transforms: list[Transform]) -> Assignment:
    """The assignment with one more transform for each group; groups that were there before are divided further."""
    clients = len(assignment.names)
    old = (UNCHANGED,) * clients if assignment.transforms is None else assignment.transforms
    new = tuple(one.then(transforms[at]) for one, at in zip(old, group.tolist(), strict=True))
    known = np.zeros(clients, dtype=np.int64) if assignment.groups is None else np.array(assignment.groups)
    _, together = np.unique(np.stack([known, group]), axis=1, return_inverse=True)
    return replace(assignment, transforms=new, groups=tuple(together.ravel().tolist()))
