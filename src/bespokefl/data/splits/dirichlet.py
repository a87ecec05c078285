"""Clients see the classes in different shares, drawn from a Dirichlet distribution: the usual label skew.

For each class, its examples are cut among the clients in the shares p ~ Dir(α, …, α). Small α: a class sits with few
clients, and their sizes differ as well; large α: iid. Hsu et al., arXiv:1909.06335, introduced the Dirichlet
distribution for this, over classes for each client; over clients for each class, as here, is Yurochkin et al.,
ICML 2019, arXiv:1905.12022.
"""

import math
from dataclasses import dataclass
from numbers import Integral, Real
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from bespokefl.core import rng as chance
from bespokefl.core.errors import InputError
from bespokefl.data.splits.split import Assignment, Split, check_enough, class_labels, numbered

if TYPE_CHECKING:
    from bespokefl.data.dataset import Dataset

MOST_DRAWS = 100
EQUAL = 1e32  # beyond this α the shares are equal to the last bit; numpy's sum of gammas would overflow at 1e308


@dataclass(frozen=True)
class Dirichlet(Split):
    """Redrawn, at most a hundred times, until every client has `min_examples`."""

    kind: ClassVar[str] = "dirichlet"

    alpha: float  # α, the concentration
    min_examples: int = 3  # enough for one in each of train, validation and test

    def __post_init__(self) -> None:
        alpha, least = self.alpha, self.min_examples
        if isinstance(alpha, bool) or not isinstance(alpha, Real) or not 0 < alpha < math.inf:
            raise InputError(f"alpha must be > 0, got {alpha!r} (Dirichlet concentration; 0.1 is skewed, 100 is even)")
        if isinstance(least, bool) or not isinstance(least, Integral) or least < 1:
            raise InputError(f"min_examples must be a whole number >= 1, got {least!r}")
        object.__setattr__(self, "alpha", float(alpha))
        object.__setattr__(self, "min_examples", int(least))

    def assign(self, dataset: "Dataset", clients: int, seed: int) -> Assignment:
        labels, classes = class_labels(self, dataset)
        check_enough(self, dataset, clients, each=self.min_examples)
        rng = chance.generator(seed, "split", self.kind)
        counts = self._counts(np.bincount(labels, minlength=classes), clients, rng)
        owner = np.empty(len(labels), dtype=np.int64)
        for label in range(classes):
            pool = np.flatnonzero(labels == label)
            owner[rng.permutation(pool)] = np.repeat(np.arange(clients), counts[label])
        return Assignment(owner, numbered(clients))

    def _counts(self, totals: np.ndarray, clients: int, rng: np.random.Generator) -> np.ndarray:
        """How many of each class each client gets: classes × clients."""
        alpha = np.full(clients, min(self.alpha, EQUAL))
        for _ in range(MOST_DRAWS):
            shares = rng.dirichlet(alpha, size=len(totals))
            cuts = np.floor(np.minimum(shares.cumsum(axis=1), 1) * totals[:, None]).astype(np.int64)
            cuts[:, -1] = totals
            counts: np.ndarray = np.diff(cuts, axis=1, prepend=0)
            sizes = counts.sum(axis=0)
            if sizes.min() >= self.min_examples:
                return counts
        short = int(sizes.argmin())
        raise InputError(
            f"{self} must give every client at least {self.min_examples} examples, but in each of {MOST_DRAWS} draws "
            f"one falls short (in the last, client {numbered(clients)[short]!r} got {sizes[short]}); "
            "use fewer clients, a larger alpha or a smaller min_examples"
        )
