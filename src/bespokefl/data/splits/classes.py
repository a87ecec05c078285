"""Every client sees only k of the classes, and all clients have equally many examples.

1. Each class is handed to about clients · k / classes clients, to fewer only where it has fewer examples than that;
   a client's k classes are otherwise random.
2. Each client's shares of its classes are random; they are bent where a class would be asked for much more than it
   has, so that about nine tenths of the data are used (all of them would leave the shares no freedom).
3. The clients' common total is as large as the classes can serve with about these shares.

Every step is bounded, and a request that step 1 admits succeeds. Classes of very different sizes make the common
total small: the rarest classes limit it.
"""

from bisect import bisect_right
from dataclasses import dataclass
from numbers import Integral
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from bespokefl.core import rng as chance
from bespokefl.core.errors import InputError
from bespokefl.data.splits.split import Assignment, Split, check_enough, class_labels, numbered

if TYPE_CHECKING:
    from bespokefl.data.dataset import Dataset

USED_SHARE = 0.9
BENDS = 50  # measured: the total gains less than a percent from more


@dataclass(frozen=True)
class Classes(Split):
    """k random classes per client, equal totals, random counts per class."""

    kind: ClassVar[str] = "classes"

    k: int

    def __post_init__(self) -> None:
        if isinstance(self.k, bool) or not isinstance(self.k, Integral) or self.k < 1:
            raise InputError(f"k must be a whole number >= 1, got {self.k!r} (classes per client)")
        object.__setattr__(self, "k", int(self.k))

    def assign(self, dataset: "Dataset", clients: int, seed: int) -> Assignment:
        labels, classes = class_labels(self, dataset)
        if self.k > classes:
            raise InputError(
                f"k must be at most the number of classes, {classes} in {dataset.name!r}, got {self.k}; "
                f"use classes(k={classes}) or less"
            )
        check_enough(self, dataset, clients, each=self.k)
        rng = chance.generator(seed, "split", self.kind)
        pools = np.bincount(labels, minlength=classes)
        holders = self._holders(pools, clients, rng, dataset.label_names)
        held = _hand_out(holders, clients, self.k, rng)
        room = np.where(holders > 0, pools - holders, 0)  # one example of each class it holds is promised to a client
        counts = 1 + _counts(held, room, _shares(held, room, rng))
        owner = np.full(len(labels), -1, dtype=np.int64)
        for label in range(classes):
            client, place = np.nonzero(held == label)
            owned = np.repeat(client, counts[client, place])
            owner[rng.permutation(np.flatnonzero(labels == label))[: len(owned)]] = owned
        return Assignment(owner, numbered(clients))

    def _holders(self, pools: np.ndarray, clients: int, rng: np.random.Generator, names: tuple[str, ...]) -> np.ndarray:
        """How many clients hold each class: equal but for one, or all that its pool or the federation allows."""
        limit = np.minimum(pools, clients)
        places = clients * self.k
        if limit.sum() < places:
            rare = int(pools.argmin())
            raise InputError(
                f"{self} needs {places} places for {clients} clients, but class {names[rare]!r} runs out after "
                f"{pools[rare]} clients and all classes together serve {limit.sum()}; use fewer clients or a smaller k"
            )
        level = bisect_right(range(clients + 1), places, key=lambda n: np.minimum(limit, n).sum()) - 1
        holders: np.ndarray = np.minimum(limit, level)
        more = rng.permutation(np.flatnonzero(limit > level))[: places - holders.sum()]
        holders[more] += 1
        return holders


def _hand_out(holders: np.ndarray, clients: int, k: int, rng: np.random.Generator) -> np.ndarray:
    """k different classes for each client: clients × k.

    Each takes the k classes with most places left, ties at random. No class ever has more places left than there are
    clients to come (those that have as many are among the k taken), so the last client finds k classes, too.
    """
    left = holders.astype(np.float64)
    held = np.empty((clients, k), dtype=np.int64)
    ties = rng.random((clients, len(holders)))
    for client in range(clients):
        held[client] = np.argsort(-(left + ties[client]), kind="stable")[:k]
        left[held[client]] -= 1
    return rng.permutation(held)


def _shares(held: np.ndarray, room: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Each client's shares of its k classes; rows add up to 1."""
    clients, k = held.shape
    goal = USED_SHARE * room.sum() / clients
    shares = rng.dirichlet(np.ones(k), size=clients)
    for _ in range(BENDS):
        wanted = goal * np.bincount(held.ravel(), shares.ravel(), minlength=len(room))
        bend = np.minimum(1, room / np.maximum(wanted, 1e-9))
        shares = shares * bend[held]
        total = shares.sum(axis=1, keepdims=True)
        shares = np.where(total > 0, shares / np.where(total > 0, total, 1), 1 / k)
    return shares


def _counts(held: np.ndarray, room: np.ndarray, shares: np.ndarray) -> np.ndarray:
    """Whole numbers near the shares, with the same sum, as large as can be found by halving, for every client."""
    counts = np.zeros(held.shape, dtype=np.int64)
    low, high = 0, int(room.sum()) // len(held)
    while low < high:
        total = (low + high + 1) // 2
        rounded = _rounded(total, held, room, shares)
        if rounded is None:
            high = total - 1
        else:
            low, counts = total, rounded
    return counts


def _rounded(total: int, held: np.ndarray, room: np.ndarray, shares: np.ndarray) -> np.ndarray | None:
    """The shares of this total, rounded down; what a client then lacks it takes where most is left. None: no room."""
    counts: np.ndarray = np.floor(total * shares).astype(np.int64)
    left = room - np.bincount(held.ravel(), counts.ravel(), minlength=len(room)).astype(np.int64)
    if left.min() < 0:
        return None
    remaining: list[int] = left.tolist()
    lacks = total - counts.sum(axis=1)
    for client in np.flatnonzero(lacks).tolist():
        classes: list[int] = held[client].tolist()
        for _ in range(int(lacks[client])):
            place = max(range(len(classes)), key=lambda one: remaining[classes[one]])
            if remaining[classes[place]] == 0:
                return None
            remaining[classes[place]] -= 1
            counts[client, place] += 1
    return counts
