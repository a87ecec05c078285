"""Only a random subset of the data is used, as in papers that take ten thousand examples of a larger data set."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from bespokefl.core.errors import InputError
from bespokefl.data.dataset import Dataset
from bespokefl.data.splits.split import Change, class_labels, setting


@dataclass(frozen=True)
class Sample(Change):
    """Assign only a random subset of the examples.

    Parameters
    ----------
    examples : int
        The size of the subset.
    balanced : bool
        Whether the subset has equally many examples of each class.
    """

    kind: ClassVar[str] = "sample"
    order: ClassVar[int] = 1  # draws from what the other changes leave

    examples: int = setting(least=1, meaning="how many are used")
    balanced: bool = setting(False)

    def select(self, dataset: Dataset, chosen: np.ndarray, seed: int) -> np.ndarray:
        available = self.generator(seed).permutation(np.flatnonzero(chosen))
        kept = np.zeros(len(chosen), dtype=bool)
        if not self.balanced:
            if len(available) < self.examples:
                raise InputError(
                    f"{self} needs that many examples, got {len(available)} in {dataset.name!r}; ask for fewer"
                )
            kept[available[: self.examples]] = True
            return kept
        labels, classes = class_labels(self, dataset)
        each = self.examples // classes
        if each == 0:
            raise InputError(f"{self} needs at least one example for each of {classes} classes; ask for more")
        for label in range(classes):
            pool = available[labels[available] == label]
            if len(pool) < each:
                raise InputError(
                    f"{self} needs {each} examples of each class, got {len(pool)} of class "
                    f"{dataset.label_names[label]!r} in {dataset.name!r}; ask for fewer"
                )
            kept[pool[:each]] = True
        return kept
