"""Each client sees only k of the classes, and all clients have the same number of examples.

1. Each class is given to about clients · k / classes clients, to fewer only if it has fewer examples than that.
   Otherwise the k classes of a client are random.
2. Each client's proportions of its classes are random. Where a class would be asked for much more than it has, the
   proportions are reduced, so that about 90 % of the data are used.
3. The number of examples per client is as large as the classes allow with about these proportions.

Every step is bounded, and a request that passes step 1 succeeds. If classes differ much in size, the smallest ones
limit the number of examples per client.
"""

from bisect import bisect_right
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from bespokefl.core.errors import InputError
from bespokefl.data.dataset import Dataset
from bespokefl.data.splits.allocation import assign_counts
from bespokefl.data.splits.split import Assignment, Split, check_enough, class_labels, setting

USED_SHARE = 0.9
ITERATIONS = 50  # measured: more of them increase the clients' sizes by less than a percent


@dataclass(frozen=True)
class Classes(Split):
    """k random classes per client, equal totals, random counts per class.

    Parameters
    ----------
    k : int
        Classes per client.
    """

    kind: ClassVar[str] = "classes"

    k: int = setting(least=1, meaning="classes per client")

    def assign(self, dataset: Dataset, clients: int, seed: int) -> Assignment:
        labels, classes = class_labels(self, dataset)
        if self.k > classes:
            raise InputError(
                f"k must be at most the number of classes, {classes} in {dataset.name!r}, got {self.k}; "
                f"use classes(k={classes}) or less"
            )
        check_enough(self, dataset, clients, each=self.k)
        rng = self.generator(seed)
        sizes = np.bincount(labels, minlength=classes)
        holders = self._holders(sizes, clients, rng, dataset.label_names)
        held = _draw_classes(holders, clients, self.k, rng)
        free = np.where(holders > 0, sizes - holders, 0)  # each holder of a class gets at least one example of it
        counts = 1 + _largest_counts(held, free, _draw_shares(held, free, rng))
        return Assignment.numbered(assign_counts(labels, held, counts, rng), clients)

    def _holders(self, sizes: np.ndarray, clients: int, rng: np.random.Generator, names: tuple[str, ...]) -> np.ndarray:
        """The number of clients that hold each class: equal to within one, unless a class is too small."""
        limit = np.minimum(sizes, clients)
        needed = clients * self.k
        if limit.sum() < needed:
            rare = int(sizes.argmin())
            raise InputError(
                f"{self} needs {needed} (client, class) pairs for {clients} clients, but class {names[rare]!r} runs "
                f"out after {sizes[rare]} clients and all classes together allow {limit.sum()}; use fewer clients or a "
                "smaller k"
            )
        level = bisect_right(range(clients + 1), needed, key=lambda n: np.minimum(limit, n).sum()) - 1
        holders: np.ndarray = np.minimum(limit, level)
        more = rng.permutation(np.flatnonzero(limit > level))[: needed - holders.sum()]
        holders[more] += 1
        return holders


def _draw_classes(holders: np.ndarray, clients: int, k: int, rng: np.random.Generator) -> np.ndarray:
    """k different classes for each client: (clients, k).

    Each client takes the k classes with the most holders missing, with random ties. No class ever misses more holders
    than there are clients to come, because such classes are among the k taken, so the last client finds k classes.
    """
    left = holders.astype(np.float64)
    held = np.empty((clients, k), dtype=np.int64)
    ties = rng.random((clients, len(holders)))
    for client in range(clients):
        held[client] = np.argsort(-(left + ties[client]), kind="stable")[:k]
        left[held[client]] -= 1
    return rng.permutation(held)


def _draw_shares(held: np.ndarray, free: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Each client's proportions of its k classes; rows add up to 1."""
    clients, k = held.shape
    goal = USED_SHARE * free.sum() / clients
    shares = rng.dirichlet(np.ones(k), size=clients)
    for _ in range(ITERATIONS):
        wanted = goal * np.bincount(held.ravel(), shares.ravel(), minlength=len(free))
        factor = np.minimum(1, free / np.maximum(wanted, 1e-9))
        shares = shares * factor[held]
        total = shares.sum(axis=1, keepdims=True)
        shares = np.where(total > 0, shares / np.where(total > 0, total, 1), 1 / k)
    return shares


def _largest_counts(held: np.ndarray, free: np.ndarray, shares: np.ndarray) -> np.ndarray:
    """Integers near the shares with the same sum for every client, the largest that bisection finds."""
    counts = np.zeros(held.shape, dtype=np.int64)
    low, high = 0, int(free.sum()) // len(held)
    while low < high:
        total = (low + high + 1) // 2
        rounded = _round_shares(total, held, free, shares)
        if rounded is None:
            high = total - 1
        else:
            low, counts = total, rounded
    return counts


def _round_shares(total: int, held: np.ndarray, free: np.ndarray, shares: np.ndarray) -> np.ndarray | None:
    """The shares of `total`, rounded down; a client takes the rest from its classes with the most examples left.

    Returns None if the classes do not have enough examples.
    """
    counts: np.ndarray = np.floor(total * shares).astype(np.int64)
    left = free - np.bincount(held.ravel(), counts.ravel(), minlength=len(free)).astype(np.int64)
    if left.min() < 0:
        return None
    remaining: list[int] = left.tolist()
    missing = total - counts.sum(axis=1)
    for client in np.flatnonzero(missing).tolist():
        classes: list[int] = held[client].tolist()
        for _ in range(int(missing[client])):
            column = max(range(len(classes)), key=lambda one: remaining[classes[one]])
            if remaining[classes[column]] == 0:
                return None
            remaining[classes[column]] -= 1
            counts[client, column] += 1
    return counts
