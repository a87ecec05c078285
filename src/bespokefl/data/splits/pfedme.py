"""Clients have k consecutive classes, with log-normal sizes and large offsets, as in pFedMe's code.

Dinh et al., NeurIPS 2020, arXiv:2006.08848 (data/Cifar10); Self-FL's CIFAR-10 uses 20 clients and k = 3. Client u
holds the classes u, u + 1, … u + k − 1 (modulo the number of classes), ten examples of each. Then, for each client and
each of its classes in order, ⌊share⌋ · U{1..10} + U{10..200} + 200 more are added (twice that for 20 clients or
fewer), where share is the class's size times a log-normal proportion; none if the class has too few left.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from bespokefl.data.dataset import Dataset
from bespokefl.data.splits.allocation import assign_counts, check_class_sizes, consecutive_classes
from bespokefl.data.splits.split import Assignment, Split, class_labels, setting

FIRST = 10  # examples of each class
FEW_CLIENTS = 20  # up to this many clients get twice as many


@dataclass(frozen=True)
class PFedMe(Split):
    """k consecutive classes per client, with pFedMe's sizes.

    Parameters
    ----------
    k : int
        Classes per client.
    """

    kind: ClassVar[str] = "pfedme"

    k: int = setting(least=1, meaning="classes per client")

    def assign(self, dataset: Dataset, clients: int, seed: int) -> Assignment:
        labels, classes = class_labels(self, dataset)
        held = consecutive_classes(self, dataset, clients, self.k)
        counts = np.full(held.shape, FIRST)
        check_class_sizes(self, dataset, held, counts)
        sizes = np.bincount(labels, minlength=classes)
        left = sizes - FIRST * np.bincount(held.ravel(), minlength=classes)
        rng = self.generator(seed)
        draws = rng.lognormal(0, 2, (classes, clients, self.k))
        shares = (sizes - clients)[:, None, None] * draws / draws.sum(axis=(1, 2), keepdims=True)
        factors, offsets = rng.integers(1, 11, held.shape), rng.integers(10, 201, held.shape)
        for client in range(clients):
            for column, label in enumerate(held[client].tolist()):
                share = max(int(shares[label, client, column]), 0)
                wanted = share * int(factors[client, column]) + int(offsets[client, column]) + 200
                wanted *= 2 if clients <= FEW_CLIENTS else 1
                if wanted < left[label]:
                    left[label] -= wanted
                    counts[client, column] += wanted
        return Assignment.numbered(assign_counts(labels, held, counts, rng), clients)
