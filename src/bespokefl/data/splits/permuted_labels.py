"""Groups of clients with different label permutations: the same example has another label in each group.

User-Centric FL's concept shift (Mestoukirdi et al., arXiv:2304.12930, section V-A): "for each group we apply a
different random label permutation", such that two groups agree on no label.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from bespokefl.core.errors import InputError
from bespokefl.data.dataset import Dataset
from bespokefl.data.splits.rotation import add_transforms, group_clients
from bespokefl.data.splits.split import Assignment, Change, class_labels, setting
from bespokefl.data.splits.transform import Transform


@dataclass(frozen=True)
class PermutedLabels(Change):
    """Consecutive clients form groups of equal size; no label means the same in two of them.

    Parameters
    ----------
    groups : int
        The number of groups, at most the number of classes.
    """

    kind: ClassVar[str] = "permuted_labels"

    groups: int = setting(least=1, meaning="one label permutation for each")

    def modify(self, dataset: Dataset, assignment: Assignment, test_key: np.ndarray, seed: int) -> Assignment:
        _, classes = class_labels(self, dataset)
        if self.groups > classes:
            raise InputError(
                f"{self} needs a class for each group, so that no label means the same in two of them, "
                f"got {classes} classes in {dataset.name!r}; use groups={classes} or less"
            )
        group = group_clients(self, assignment, self.groups)
        rng = self.generator(seed)
        # c -> second[first[c] + shift]: permutations with different shifts differ at every label
        first, second = rng.permutation(classes), rng.permutation(classes)
        shifts = rng.permutation(classes)[: self.groups]
        permutations = [second[(first + shift) % classes] for shift in shifts]
        return add_transforms(assignment, group, [Transform(labels=tuple(one.tolist())) for one in permutations])
