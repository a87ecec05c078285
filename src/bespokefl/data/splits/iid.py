"""Every client gets the same number of examples, drawn uniformly from all: clients that do not differ."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from bespokefl.data.dataset import Dataset
from bespokefl.data.splits.split import Assignment, Split, check_enough


@dataclass(frozen=True)
class IID(Split):
    """A uniformly random split; sizes differ by at most one."""

    kind: ClassVar[str] = "iid"

    def assign(self, dataset: Dataset, clients: int, seed: int) -> Assignment:
        check_enough(self, dataset, clients)
        owner = np.empty(len(dataset), dtype=np.int64)
        owner[self.generator(seed).permutation(len(owner))] = np.arange(len(owner)) % clients
        return Assignment.numbered(owner, clients)
