"""Two kinds of clients: half have the first classes in equal numbers, the others two classes in unequal numbers.

Fallah et al. (Per-FedAvg), NeurIPS 2020, arXiv:2002.07948; PersFL's DS-4.
- The first half of the clients have k examples of each of the first five classes (in general: the first half of them).
- Each other client has k/2 examples of one of these classes and 2k of one of the remaining ones.
The papers use k = 196 for MNIST and 68 for CIFAR-10, with 50 clients. The classes of the second half are random, and
each class is used equally often, to within one.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from bespokefl.core.errors import InputError
from bespokefl.data.dataset import Dataset
from bespokefl.data.splits.allocation import assign_counts, check_class_sizes
from bespokefl.data.splits.split import Assignment, Split, class_labels, setting

PUBLISHED_K = {"mnist": 196, "cifar10": 68}


@dataclass(frozen=True)
class Fallah(Split):
    """k examples of each class for the first half of the clients, k/2 and 2k for the others.

    Parameters
    ----------
    k : int, optional
        Examples per class; by default the published value for MNIST and CIFAR-10.
    """

    kind: ClassVar[str] = "fallah"

    k: int | None = setting(None, least=2, meaning="examples per class, of which some clients get half")

    def assign(self, dataset: Dataset, clients: int, seed: int) -> Assignment:
        labels, classes = class_labels(self, dataset)
        k = self._published_k(dataset) if self.k is None else self.k
        half = classes // 2
        even = clients // 2
        rng = self.generator(seed)
        held = np.zeros((clients, max(half, 2)), dtype=np.int64)
        counts = np.zeros(held.shape, dtype=np.int64)
        held[:even, :half], counts[:even, :half] = np.arange(half), k
        held[even:, 0], counts[even:, 0] = _draw_balanced(clients - even, 0, half, rng), k // 2
        held[even:, 1], counts[even:, 1] = _draw_balanced(clients - even, half, classes, rng), 2 * k
        check_class_sizes(self, dataset, held, counts)
        return Assignment.numbered(assign_counts(labels, held, counts, rng), clients)

    def _published_k(self, dataset: Dataset) -> int:
        if dataset.name not in PUBLISHED_K:
            known = ", ".join(f"{k} for {name}" for name, k in PUBLISHED_K.items())
            raise InputError(
                f"fallah knows k only for the papers' data ({known}), got {dataset.name!r}; write fallah(k=...)"
            )
        return PUBLISHED_K[dataset.name]


def _draw_balanced(clients: int, first: int, end: int, rng: np.random.Generator) -> np.ndarray:
    """One class from [first, end) for each client, all equally often, in random order."""
    order = rng.permutation(np.arange(first, end))
    chosen: np.ndarray = rng.permutation(order[np.arange(clients) % len(order)])
    return chosen
