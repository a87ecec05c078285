"""Only some of the data are used: for papers that took ten thousand examples of a larger set."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from bespokefl.core import rng as chance
from bespokefl.core.errors import InputError
from bespokefl.data.splits.split import Change, class_labels, truth, whole

if TYPE_CHECKING:
    from bespokefl.data.dataset import Dataset


@dataclass(frozen=True)
class Sample(Change):
    """So many examples, drawn at random, are handed out; with `balanced`, equally many of each class."""

    kind: ClassVar[str] = "sample"
    turn: ClassVar[int] = 1  # it draws from what the others leave

    examples: int
    balanced: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "examples", whole("examples", self.examples, 1, "how many are handed out"))
        truth("balanced", self.balanced)

    def before(self, dataset: "Dataset", chosen: np.ndarray, seed: int) -> np.ndarray:
        rng = chance.generator(seed, "split", self.kind)
        there = rng.permutation(np.flatnonzero(chosen))
        kept = np.zeros(len(chosen), dtype=bool)
        if not self.balanced:
            if len(there) < self.examples:
                raise InputError(
                    f"{self} needs that many examples, got {len(there)} in {dataset.name!r}; ask for fewer"
                )
            kept[there[: self.examples]] = True
            return kept
        labels, classes = class_labels(self, dataset)
        each = self.examples // classes
        if each == 0:
            raise InputError(f"{self} needs at least one example for each of {classes} classes; ask for more")
        for label in range(classes):
            pool = there[labels[there] == label]
            if len(pool) < each:
                raise InputError(
                    f"{self} needs {each} examples of each class, got {len(pool)} of class "
                    f"{dataset.label_names[label]!r} in {dataset.name!r}; ask for fewer"
                )
            kept[pool[:each]] = True
        return kept
