"""Every client gets the same number of examples, drawn from all: the federation without differences."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from bespokefl.core import rng
from bespokefl.data.splits.split import Assignment, Split, check_enough, numbered

if TYPE_CHECKING:
    from bespokefl.data.dataset import Dataset


@dataclass(frozen=True)
class IID(Split):
    """Shuffled and dealt like cards; sizes differ by one at most."""

    kind: ClassVar[str] = "iid"

    def assign(self, dataset: "Dataset", clients: int, seed: int) -> Assignment:
        check_enough(self, dataset, clients)
        owner = np.empty(len(dataset), dtype=np.int64)
        owner[rng.generator(seed, "split", self.kind).permutation(len(owner))] = np.arange(len(owner)) % clients
        return Assignment(owner, numbered(clients))
