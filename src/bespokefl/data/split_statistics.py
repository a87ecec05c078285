"""Measures how different the clients of a federation are, on their training examples.

label distance      The mean over all pairs of clients of the total variation distance between their class proportions:
                    0 if the proportions are equal, 1 if the clients have no class in common.
size Gini           0 if all clients have equally many training examples, near 1 if one client has nearly all.
effective classes   The mean over clients of exp(entropy) of the class proportions: 10 for ten classes in equal
                    proportions, 1 for a single class.
"""

from dataclasses import dataclass

import numpy as np

from bespokefl.data.clients import Clients


@dataclass(frozen=True)
class SplitStatistics:
    """The statistics; those of labels are None for regression, the distance also for a single client."""

    label_distance: float | None
    size_gini: float
    effective_classes: float | None
    smallest: int
    median: float
    largest: int
    untested: int  # clients without test examples


def measure(clients: Clients) -> SplitStatistics:
    """Measure how different the clients are."""
    sizes = clients.train.sizes.numpy()
    shares = None if clients.classes is None else class_counts(clients) / sizes[:, None]
    return SplitStatistics(
        label_distance=None if shares is None or len(clients) < 2 else label_distance(shares),
        size_gini=gini(sizes),
        effective_classes=None if shares is None else effective_classes(shares),
        smallest=int(sizes.min()),
        median=float(np.median(sizes)),
        largest=int(sizes.max()),
        untested=int((clients.test.sizes == 0).sum()),
    )


def class_counts(clients: Clients) -> np.ndarray:
    """The number of training examples of each class for each client: (clients, classes)."""
    num = clients.classes or 1
    labels = clients.y[clients.train.indices].numpy() if clients.classes else 0
    client = np.repeat(np.arange(len(clients)), clients.train.sizes.numpy())
    found: np.ndarray = np.bincount(client * num + labels, minlength=len(clients) * num).reshape(len(clients), num)
    return found


def label_distance(shares: np.ndarray) -> float:
    """The mean over all pairs of rows of ½ Σ |difference|."""
    num = len(shares)
    return float(max(_sum_of_differences(shares) / (num * (num - 1)), 0.0))


def gini(sizes: np.ndarray) -> float:
    """The mean difference between two sizes, divided by twice their mean."""
    return float(_sum_of_differences(sizes[:, None]) / (len(sizes) * sizes.sum()))


def _sum_of_differences(values: np.ndarray) -> float:
    """Σ |difference| over all pairs of rows, without forming the pairs.

    The i-th of n sorted numbers is added i times and subtracted n − 1 − i times.
    """
    ranks = 2 * np.arange(len(values)) - (len(values) - 1)
    return (np.sort(values, axis=0) * ranks[:, None]).sum()  # type: ignore[no-any-return]


def effective_classes(shares: np.ndarray) -> float:
    """The mean over rows of exp(−Σ p log p)."""
    logs = np.log(np.where(shares > 0, shares, 1.0))
    return float(np.exp(-(shares * logs).sum(axis=1)).mean())
