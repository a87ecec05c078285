"""Two kinds of clients: half see the first classes evenly, the others one of these and much of one they do not see.

Fallah et al. (Per-FedAvg), NeurIPS 2020, arXiv:2002.07948; PersFL's DS-4. Of n clients
- the first half have k examples of each of the first five classes (in general: of the first half of the classes),
- each of the others has k/2 of one of these and 2k of one of the remaining five.
The papers have k = 196 for MNIST and 68 for CIFAR-10, with 50 clients. Which class a client of the second kind has
is random, but each of the five is taken equally often, to within one.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from bespokefl.core import rng as chance
from bespokefl.core.errors import InputError
from bespokefl.data.splits.lognormal import check_pools, deal_counts
from bespokefl.data.splits.split import Assignment, Split, class_labels, numbered, whole

if TYPE_CHECKING:
    from bespokefl.data.dataset import Dataset

PUBLISHED = {"mnist": 196, "cifar10": 68}


@dataclass(frozen=True)
class Fallah(Split):
    """k examples of each class for the first half of the clients, k/2 and 2k for the others."""

    kind: ClassVar[str] = "fallah"

    k: int | None = None  # None: as published for the data

    def __post_init__(self) -> None:
        if self.k is not None:
            object.__setattr__(self, "k", whole("k", self.k, 2, "examples per class; half of it is one, too"))

    def assign(self, dataset: "Dataset", clients: int, seed: int) -> Assignment:
        labels, classes = class_labels(self, dataset)
        k = self._published(dataset) if self.k is None else self.k
        half = classes // 2
        even = clients // 2
        rng = chance.generator(seed, "split", self.kind)
        held = np.zeros((clients, max(half, 2)), dtype=np.int64)
        counts = np.zeros(held.shape, dtype=np.int64)
        held[:even, :half], counts[:even, :half] = np.arange(half), k
        held[even:, 0], counts[even:, 0] = _in_turn(clients - even, 0, half, rng), k // 2
        held[even:, 1], counts[even:, 1] = _in_turn(clients - even, half, classes, rng), 2 * k
        check_pools(self, dataset, held, counts)
        return Assignment(deal_counts(labels, held, counts, rng), numbered(clients))

    def _published(self, dataset: "Dataset") -> int:
        if dataset.name not in PUBLISHED:
            told = ", ".join(f"{k} for {name}" for name, k in PUBLISHED.items())
            raise InputError(
                f"fallah knows k only for the papers' data ({told}), got {dataset.name!r}; write fallah(k=...)"
            )
        return PUBLISHED[dataset.name]


def _in_turn(clients: int, first: int, end: int, rng: np.random.Generator) -> np.ndarray:
    """One class for each client, all equally often, in random order."""
    order = rng.permutation(np.arange(first, end))
    chosen: np.ndarray = rng.permutation(order[np.arange(clients) % len(order)])
    return chosen
