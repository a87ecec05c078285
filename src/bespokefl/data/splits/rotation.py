"""Groups of clients with differently rotated images: by 0, 90, 180 or 270 degrees.

User-Centric FL's covariate shift (Mestoukirdi et al., arXiv:2304.12930, section V-A): "users are clustered in 4
groups, and at each group images are rotated". It can be added to any split of the labels.
"""

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from bespokefl.core.errors import InputError
from bespokefl.data.dataset import Dataset
from bespokefl.data.splits.split import Assignment, Change, setting
from bespokefl.data.splits.transform import UNCHANGED, Transform


@dataclass(frozen=True)
class Rotation(Change):
    """Group g of the clients sees its images rotated by g · 90° counter-clockwise; groups have equal size.

    Parameters
    ----------
    groups : int
        The number of groups, at most 4.
    """

    kind: ClassVar[str] = "rotation"

    groups: int = setting(least=1, meaning="one for each quarter turn, at most 4")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.groups > 4:
            raise InputError(f"groups must be at most 4, one for each quarter turn, got {self.groups}")

    def modify(self, dataset: Dataset, assignment: Assignment, test_key: np.ndarray, seed: int) -> Assignment:
        if len(dataset.shape) < 2 or dataset.shape[-1] != dataset.shape[-2]:
            raise InputError(
                f"{self} needs square images to rotate, got examples of shape {dataset.shape} in {dataset.name!r}"
            )
        group = group_clients(self, assignment, self.groups)
        return add_transforms(assignment, group, [Transform(turns=one) for one in range(self.groups)])


def group_clients(split: Change, assignment: Assignment, groups: int) -> np.ndarray:
    """The group of each client: consecutive clients, sizes that differ by at most one.

    If the clients are in groups already, each of these is divided, so that the two groupings are crossed.
    """
    clients = len(assignment.names)
    if groups > clients:
        raise InputError(f"{split} needs a client for each of the {groups} groups, got {clients}; use more clients")
    existing = np.zeros(clients, dtype=np.int64) if assignment.groups is None else np.array(assignment.groups)
    group = np.empty(clients, dtype=np.int64)
    for one in np.unique(existing):
        members = np.flatnonzero(existing == one)
        group[members] = np.arange(len(members)) * groups // len(members)
    return group


def add_transforms(assignment: Assignment, group: np.ndarray, transforms: list[Transform]) -> Assignment:
    """The assignment with one more transform for each group; existing groups are divided further."""
    clients = len(assignment.names)
    old = (UNCHANGED,) * clients if assignment.transforms is None else assignment.transforms
    new = tuple(one.then(transforms[index]) for one, index in zip(old, group.tolist(), strict=True))
    existing = np.zeros(clients, dtype=np.int64) if assignment.groups is None else np.array(assignment.groups)
    _, crossed = np.unique(np.stack([existing, group]), axis=1, return_inverse=True)
    return replace(assignment, transforms=new, groups=tuple(crossed.ravel().tolist()))
