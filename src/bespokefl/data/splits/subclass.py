"""The same label looks different everywhere: each client sees one subclass of every class.

pFedVEM's concept drift (Zhu et al., CVPR 2023, section 4.1, and its code), on CIFAR-100: predict the superclass; one
client's fish are all sharks, another's all trout. A shuffled list of a superclass's s subclasses serves s clients,
the next list the next s clients; sizes are from uniform cut points, as in `quantity`.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from bespokefl.core import rng as chance
from bespokefl.core.errors import InputError
from bespokefl.data.splits import split as base
from bespokefl.data.splits.quantity import deal_slices
from bespokefl.data.splits.split import Assignment, Split, class_labels, numbered, truth

if TYPE_CHECKING:
    from bespokefl.data.dataset import Dataset


@dataclass(frozen=True)
class Subclass(Split):
    """The data's label is the superclass, and a column names the subclass of each example."""

    kind: ClassVar[str] = "subclass"

    column: str = "subclass"
    equal: bool = False  # sizes

    def __post_init__(self) -> None:
        if not isinstance(self.column, str):
            raise InputError(f"column must be the name of a column, got {self.column!r}")
        truth("equal", self.equal)

    def assign(self, dataset: "Dataset", clients: int, seed: int) -> Assignment:
        labels, classes = class_labels(self, dataset)
        found, kinds = np.unique(self.likeness(dataset), return_inverse=True)
        names = tuple(map(str, found.tolist()))
        above = np.zeros(len(found), dtype=np.int64)
        above[kinds] = labels
        wrong = np.flatnonzero(above[kinds] != labels)
        if len(wrong):
            raise InputError(
                f"{self} needs subclasses of one class each, but {names[kinds[wrong[0]]]!r} is in two classes of "
                f"{dataset.name!r}; label the examples by their superclass"
            )
        rng = chance.generator(seed, "split", self.kind)
        held = np.empty((clients, classes), dtype=np.int64)
        slices = np.empty_like(held)
        for label in range(classes):
            below = np.flatnonzero(above == label)
            if len(below) == 0:
                raise InputError(f"{self} needs examples of every class, got none of {dataset.label_names[label]!r}")
            lists = -(-clients // len(below))
            held[:, label] = np.concatenate([rng.permutation(below) for _ in range(lists)])[:clients]
            slices[:, label] = np.arange(clients) // len(below)
        owner = deal_slices(self, dataset, kinds, held, slices, self.equal, rng, names)
        return Assignment(owner, numbered(clients))

    def likeness(self, dataset: "Dataset") -> np.ndarray:
        """A client is tested on the subclasses it sees."""
        return base.column(self, dataset, self.column, "the subclass of each example")
