"""Each client sees one subclass of every class: the same label looks different at different clients.

pFedVEM's concept drift (Zhu et al., CVPR 2023, section 4.1, and its code), on CIFAR-100: the task is to predict the
superclass; all fish of one client are sharks, all fish of another are trout. A shuffled list of the s subclasses of a
superclass serves s clients, another list the next s clients; sizes come from uniform cut points, as in `quantity`.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from bespokefl.core.errors import InputError
from bespokefl.data.dataset import Dataset
from bespokefl.data.splits.allocation import assign_slices
from bespokefl.data.splits.split import Assignment, Split, class_labels, column_values, setting


@dataclass(frozen=True)
class Subclass(Split):
    """One subclass of every class for each client; the label of the data is the superclass.

    Parameters
    ----------
    column : str, default "subclass"
        The column that names the subclass of each example.
    equal : bool
        Whether all clients of a subclass have the same size.
    """

    kind: ClassVar[str] = "subclass"

    column: str = setting("subclass")
    equal: bool = setting(False)

    def assign(self, dataset: Dataset, clients: int, seed: int) -> Assignment:
        labels, classes = class_labels(self, dataset)
        found, codes = np.unique(self.test_key(dataset), return_inverse=True)
        names = tuple(map(str, found.tolist()))
        superclass = np.zeros(len(found), dtype=np.int64)
        superclass[codes] = labels
        wrong = np.flatnonzero(superclass[codes] != labels)
        if len(wrong):
            raise InputError(
                f"{self} needs subclasses of one class each, but {names[codes[wrong[0]]]!r} is in two classes of "
                f"{dataset.name!r}; label the examples by their superclass"
            )
        rng = self.generator(seed)
        held = np.empty((clients, classes), dtype=np.int64)
        slices = np.empty_like(held)
        for label in range(classes):
            subclasses = np.flatnonzero(superclass == label)
            if len(subclasses) == 0:
                raise InputError(f"{self} needs examples of every class, got none of {dataset.label_names[label]!r}")
            lists = -(-clients // len(subclasses))
            held[:, label] = np.concatenate([rng.permutation(subclasses) for _ in range(lists)])[:clients]
            slices[:, label] = np.arange(clients) // len(subclasses)
        owner = assign_slices(self, dataset, codes, held, slices, self.equal, rng, names)
        return Assignment.numbered(owner, clients)

    def test_key(self, dataset: Dataset) -> np.ndarray:
        """A client is tested on its subclasses."""
        return column_values(self, dataset, self.column, "the subclass of each example")
