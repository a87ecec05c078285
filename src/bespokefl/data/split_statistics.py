"""How different the clients of a federation are, in three figures and a table of counts.

label distance      Half the sum of the differences between two clients' shares of the classes (total variation): 0 if
                    they see the classes in the same shares, 1 if they have none in common. The mean over all pairs.
size Gini           0 if all clients have equally many training examples, near 1 if one has nearly all.
effective classes   exp(entropy) of a client's shares: 10 if it sees ten classes evenly, 1 if only one. The mean over
                    clients.
All are of the training examples.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from bespokefl.data.clients import Clients


@dataclass(frozen=True)
class Heterogeneity:
    """The figures; those of labels are None for regression, the distance also for a single client."""

    label_distance: float | None
    size_gini: float
    effective_classes: float | None
    smallest: int
    median: float
    largest: int
    untested: int  # clients without test examples


def measure(clients: "Clients") -> Heterogeneity:
    """How different these clients are."""
    sizes = clients.train.sizes.numpy()
    shares = None if clients.classes is None else counts(clients) / sizes[:, None]
    return Heterogeneity(
        label_distance=None if shares is None or len(clients) < 2 else label_distance(shares),
        size_gini=gini(sizes),
        effective_classes=None if shares is None else effective_classes(shares),
        smallest=int(sizes.min()),
        median=float(np.median(sizes)),
        largest=int(sizes.max()),
        untested=int((clients.test.sizes == 0).sum()),
    )


def counts(clients: "Clients") -> np.ndarray:
    """How many training examples of each class each client has: clients × classes."""
    num = clients.classes or 1
    labels = clients.y[clients.train.indices].numpy() if clients.classes else 0
    client = np.repeat(np.arange(len(clients)), clients.train.sizes.numpy())
    found: np.ndarray = np.bincount(client * num + labels, minlength=len(clients) * num).reshape(len(clients), num)
    return found


def label_distance(shares: np.ndarray) -> float:
    """The mean over all pairs of rows of ½ Σ |difference|.

    Sorted, the i-th of n numbers exceeds i others and is exceeded by n − 1 − i: no pair has to be formed.
    """
    num = len(shares)
    ranks = 2 * np.arange(num) - (num - 1)
    differences = (np.sort(shares, axis=0) * ranks[:, None]).sum()
    return float(max(differences / (num * (num - 1)), 0.0))


def gini(sizes: np.ndarray) -> float:
    """The mean difference between two sizes, over twice their mean."""
    num = len(sizes)
    ranks = 2 * np.arange(num) - (num - 1)
    return float((np.sort(sizes) * ranks).sum() / (num * sizes.sum()))


def effective_classes(shares: np.ndarray) -> float:
    """The mean over rows of exp(−Σ p log p)."""
    logs = np.log(np.where(shares > 0, shares, 1.0))
    return float(np.exp(-(shares * logs).sum(axis=1)).mean())
