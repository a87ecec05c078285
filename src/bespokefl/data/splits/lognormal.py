"""Clients have k consecutive classes and log-normal sizes: a few clients have many examples, most have few.

FedProx's MNIST (Li et al., MLSys 2020, arXiv:1812.06127, and its code, data/mnist/generate_niid.py), also used by
pFedMe and PersFL's DS-3. Client u holds the classes u, u + 1, … u + k − 1 (modulo the number of classes).
1. Each client gets `least` examples of each of its classes.
2. The rest of a class is divided among its holders in log-normal proportions, rounded down. (They are normalized, so μ
   cancels out.)
With `shares=False` the draws are numbers of examples instead, as in FedProx's NIST: client u has about
LogNormal(μ, σ) + least examples, equally many of each of its classes. FedProx reuses examples once a class runs out;
this split fails instead.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from bespokefl.data.dataset import Dataset
from bespokefl.data.splits.allocation import assign_counts, check_class_sizes, consecutive_classes
from bespokefl.data.splits.split import Assignment, Split, class_labels, setting


@dataclass(frozen=True)
class LogNormal(Split):
    """k consecutive classes per client and log-normal sizes.

    Parameters
    ----------
    k : int
        Classes per client.
    mu, sigma : float
        Mean and standard deviation of the logarithm of the sizes.
    least : int
        Minimum number of examples: of each class, or in total with ``shares=False``.
    shares : bool
        Whether draws are proportions of a class (FedProx's MNIST) or numbers of examples (FedProx's NIST).
    """

    kind: ClassVar[str] = "lognormal"

    k: int = setting(least=1, meaning="classes per client")
    mu: float = setting(0.0, meaning="mean of the sizes' logarithm", positive=False)
    sigma: float = setting(2.0, meaning="standard deviation of the sizes' logarithm")
    least: int = setting(5, least=1, meaning="minimum number of examples")
    shares: bool = setting(True)

    def assign(self, dataset: Dataset, clients: int, seed: int) -> Assignment:
        labels, classes = class_labels(self, dataset)
        held = consecutive_classes(self, dataset, clients, self.k)
        rng = self.generator(seed)
        if self.shares:
            check_class_sizes(self, dataset, held, np.full(held.shape, self.least))
            sizes = np.bincount(labels, minlength=classes)
            rest = sizes - self.least * np.bincount(held.ravel(), minlength=classes)
            logs = rng.normal(self.mu, self.sigma, held.shape)
            largest = np.full(classes, -np.inf)
            np.maximum.at(largest, held.ravel(), logs.ravel())
            draws = np.exp(logs - largest[held])  # scaled per class, so that they cannot overflow
            total = np.bincount(held.ravel(), draws.ravel(), minlength=classes)
            counts = self.least + np.floor(rest[held] * (draws / total[held])).astype(np.int64)
        else:
            wanted = np.minimum(rng.lognormal(self.mu, self.sigma, clients) + self.least, len(labels))
            counts = np.repeat(np.maximum(wanted.astype(np.int64) // self.k, 2)[:, None], self.k, axis=1)
        check_class_sizes(self, dataset, held, counts)
        return Assignment.numbered(assign_counts(labels, held, counts, rng), clients)
