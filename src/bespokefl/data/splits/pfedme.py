"""pFedMe's clients: k neighbouring classes, sizes log-normal with much added to them.

Dinh et al., NeurIPS 2020, arXiv:2006.08848, by its code (data/Cifar10); Self-FL's CIFAR-10 is this with 20 clients
and k = 3. Client u holds the classes u, u + 1, … u + k − 1 (modulo the number of classes), ten examples of each.
Then, client after client, and class after class, come ⌊share⌋ · U{1..10} + U{10..200} + 200 more, twice that for 20
clients or fewer, where share is the class's examples times a log-normal share; none if the class has too few left.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from bespokefl.core import rng as chance
from bespokefl.data.splits.lognormal import check_pools, deal_counts, in_turn
from bespokefl.data.splits.split import Assignment, Split, class_labels, numbered, whole

if TYPE_CHECKING:
    from bespokefl.data.dataset import Dataset

FIRST = 10  # of each class
FEW = 20  # clients or fewer get twice as many


@dataclass(frozen=True)
class PFedMe(Split):
    """k classes per client, in turn."""

    kind: ClassVar[str] = "pfedme"

    k: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "k", whole("k", self.k, 1, "classes per client"))

    def assign(self, dataset: "Dataset", clients: int, seed: int) -> Assignment:
        labels, classes = class_labels(self, dataset)
        held = in_turn(self, dataset, clients, self.k)
        counts = np.full(held.shape, FIRST)
        check_pools(self, dataset, held, counts)
        pools = np.bincount(labels, minlength=classes)
        left = pools - FIRST * np.bincount(held.ravel(), minlength=classes)
        rng = chance.generator(seed, "split", self.kind)
        draws = rng.lognormal(0, 2, (classes, clients, self.k))
        shares = (pools - clients)[:, None, None] * draws / draws.sum(axis=(1, 2), keepdims=True)
        times, more = rng.integers(1, 11, held.shape), rng.integers(10, 201, held.shape)
        for client in range(clients):
            for place, label in enumerate(held[client].tolist()):
                share = max(int(shares[label, client, place]), 0)
                wanted = share * int(times[client, place]) + int(more[client, place]) + 200
                wanted *= 2 if clients <= FEW else 1
                if wanted < left[label]:
                    left[label] -= wanted
                    counts[client, place] += wanted
        return Assignment(deal_counts(labels, held, counts, rng), numbered(clients))
