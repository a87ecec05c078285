"""Clients in groups that call the same things by different names: each group has its own order of the labels.

User-Centric FL's concept shift (Mestoukirdi et al., arXiv:2304.12930, section V-A): "for each group we apply a
different random label permutation", such that two groups agree on no label.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from bespokefl.core import rng as chance
from bespokefl.core.errors import InputError
from bespokefl.data.splits.rotation import in_groups, joined
from bespokefl.data.splits.split import Assignment, Change, class_labels, whole
from bespokefl.data.splits.transform import Transform

if TYPE_CHECKING:
    from bespokefl.data.dataset import Dataset


@dataclass(frozen=True)
class PermutedLabels(Change):
    """Neighbouring clients form groups of equal size; no label means the same in two of them."""

    kind: ClassVar[str] = "permuted_labels"

    groups: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "groups", whole("groups", self.groups, 1, "one label permutation for each"))

    def after(self, dataset: "Dataset", assignment: Assignment, likeness: np.ndarray, seed: int) -> Assignment:
        _, classes = class_labels(self, dataset)
        if self.groups > classes:
            raise InputError(
                f"{self} needs a class for each group, so that no label means the same in two of them, "
                f"got {classes} classes in {dataset.name!r}; use groups={classes} or less"
            )
        group = in_groups(self, assignment, self.groups)
        rng = chance.generator(seed, "split", self.kind)
        # c -> after[before[c] + shift]: permutations that differ in their shift differ everywhere
        before, after = rng.permutation(classes), rng.permutation(classes)
        shifts = rng.permutation(classes)[: self.groups]
        orders = [after[(before + shift) % classes] for shift in shifts]
        return joined(assignment, group, [Transform(labels=tuple(one.tolist())) for one in orders])
