"""Clients with k neighbouring classes and very different numbers of examples: few have many, many have few.

FedProx's MNIST (Li et al., MLSys 2020, arXiv:1812.06127, and its code, data/mnist/generate_niid.py), which pFedMe and
PersFL's DS-3 took over. Client u holds the classes u, u + 1, … u + k − 1 (modulo the number of classes).
1. Each client gets `least` examples of each of its classes.
2. The rest of a class is divided among its holders in log-normal shares, rounded down. (Shares add up to one, so μ
   cancels out.)
With `shares=False` the draws are numbers of examples instead, as in FedProx's NIST: client u has about
LogNormal(μ, σ) + least of them, equally many of each of its classes. Where FedProx uses examples again once a class
has run out, this is refused.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from bespokefl.core import rng as chance
from bespokefl.core.errors import InputError
from bespokefl.data.splits.split import Assignment, Split, class_labels, numbered, real, truth, whole

if TYPE_CHECKING:
    from bespokefl.data.dataset import Dataset


@dataclass(frozen=True)
class LogNormal(Split):
    """k classes per client, in turn, and log-normal sizes."""

    kind: ClassVar[str] = "lognormal"

    k: int
    mu: float = 0.0  # μ, of the logarithm
    sigma: float = 2.0  # σ, of the logarithm
    least: int = 5  # of each class first; in all with shares=False
    shares: bool = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "k", whole("k", self.k, 1, "classes per client"))
        object.__setattr__(self, "mu", real("mu", self.mu, "mean of the sizes' logarithm", positive=False))
        object.__setattr__(self, "sigma", real("sigma", self.sigma, "spread of the sizes' logarithm"))
        object.__setattr__(self, "least", whole("least", self.least, 1, "examples to begin with"))
        truth("shares", self.shares)

    def assign(self, dataset: "Dataset", clients: int, seed: int) -> Assignment:
        labels, classes = class_labels(self, dataset)
        held = in_turn(self, dataset, clients, self.k)
        rng = chance.generator(seed, "split", self.kind)
        pools = np.bincount(labels, minlength=classes)
        if self.shares:
            check_pools(self, dataset, held, np.full(held.shape, self.least))
            rest = pools - self.least * np.bincount(held.ravel(), minlength=classes)
            logs = rng.normal(self.mu, self.sigma, held.shape)
            largest = np.full(classes, -np.inf)
            np.maximum.at(largest, held.ravel(), logs.ravel())
            draws = np.exp(logs - largest[held])  # a class's draws may be scaled, and so cannot overflow
            total = np.bincount(held.ravel(), draws.ravel(), minlength=classes)
            counts = self.least + np.floor(rest[held] * (draws / total[held])).astype(np.int64)
        else:
            sizes = np.minimum(rng.lognormal(self.mu, self.sigma, clients) + self.least, len(labels))
            counts = np.repeat(np.maximum(sizes.astype(np.int64) // self.k, 2)[:, None], self.k, axis=1)
        check_pools(self, dataset, held, counts)
        return Assignment(deal_counts(labels, held, counts, rng), numbered(clients))


def in_turn(split: Split, dataset: "Dataset", clients: int, k: int) -> np.ndarray:
    """The k classes of each client, u, u + 1, …: clients × k."""
    _, classes = class_labels(split, dataset)
    if k > classes:
        raise InputError(
            f"k must be at most the number of classes, {classes} in {dataset.name!r}, got {k}; use k={classes} or less"
        )
    return (np.arange(clients)[:, None] + np.arange(k)[None, :]) % classes


def check_pools(split: Split, dataset: "Dataset", held: np.ndarray, counts: np.ndarray) -> None:
    """Refuse counts that a class cannot serve."""
    labels, classes = class_labels(split, dataset)
    pools = np.bincount(labels, minlength=classes)
    wanted = np.bincount(held.ravel(), counts.ravel(), minlength=classes).astype(np.int64)
    short = int((wanted - pools).argmax())
    if wanted[short] > pools[short]:
        raise InputError(
            f"{split} needs {wanted[short]} examples of class {dataset.label_names[short]!r} for {len(held)} clients, "
            f"got {pools[short]} in {dataset.name!r}; use fewer clients or ask for fewer examples"
        )


def deal_counts(labels: np.ndarray, held: np.ndarray, counts: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Each example's owner: `counts` of the classes `held`, both clients × k, drawn from shuffled classes."""
    k = held.shape[1]
    owner = np.full(len(labels), -1, dtype=np.int64)
    order = np.argsort(held.ravel(), kind="stable")
    owned = np.repeat(order // k, counts.ravel()[order])  # owners of the first class, then of the second, …
    ends = np.bincount(held.ravel(), counts.ravel()).astype(np.int64).cumsum()
    for label, (start, end) in enumerate(zip([0, *ends[:-1].tolist()], ends.tolist(), strict=True)):
        pool = rng.permutation(np.flatnonzero(labels == label))
        owner[pool[: end - start]] = owned[start:end]
    return owner
