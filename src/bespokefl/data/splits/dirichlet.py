"""Clients have different class proportions, drawn from a Dirichlet distribution: the usual label skew.

The examples of each class are divided among the clients in proportions p ~ Dir(α, …, α). With a small α few clients
have most of a class, and client sizes differ as well; a large α approaches iid. Hsu et al., arXiv:1909.06335,
introduced the Dirichlet distribution for this, over the classes of each client; drawing over the clients for each
class, as here, is Yurochkin et al., ICML 2019, arXiv:1905.12022.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from bespokefl.core.errors import InputError
from bespokefl.data.dataset import Dataset
from bespokefl.data.splits.allocation import assign_counts
from bespokefl.data.splits.split import Assignment, Split, check_enough, class_labels, client_names, setting

MAX_DRAWS = 100
MAX_ALPHA = 1e32  # above it, all proportions are equal in float64; numpy's sum of gammas overflows at 1e308


@dataclass(frozen=True)
class Dirichlet(Split):
    """Class proportions from a Dirichlet distribution, redrawn until every client has `min_examples`.

    Parameters
    ----------
    alpha : float
        The concentration α: 0.1 is skewed, 100 is nearly even.
    min_examples : int, default 3
        Enough for one example in each of train, validation and test. After a hundred draws the split fails.
    """

    kind: ClassVar[str] = "dirichlet"

    alpha: float = setting(meaning="Dirichlet concentration; 0.1 is skewed, 100 is even")
    min_examples: int = setting(3, least=1)

    def assign(self, dataset: Dataset, clients: int, seed: int) -> Assignment:
        labels, classes = class_labels(self, dataset)
        check_enough(self, dataset, clients, each=self.min_examples)
        rng = self.generator(seed)
        counts = self._counts(np.bincount(labels, minlength=classes), clients, rng)
        held = np.tile(np.arange(classes), (clients, 1))
        return Assignment.numbered(assign_counts(labels, held, counts.T, rng), clients)

    def _counts(self, totals: np.ndarray, clients: int, rng: np.random.Generator) -> np.ndarray:
        """The number of examples of each class for each client: (classes, clients)."""
        alpha = np.full(clients, min(self.alpha, MAX_ALPHA))
        for _ in range(MAX_DRAWS):
            shares = rng.dirichlet(alpha, size=len(totals))
            cuts = np.floor(np.minimum(shares.cumsum(axis=1), 1) * totals[:, None]).astype(np.int64)
            cuts[:, -1] = totals
            counts: np.ndarray = np.diff(cuts, axis=1, prepend=0)
            sizes = counts.sum(axis=0)
            if sizes.min() >= self.min_examples:
                return counts
        short = int(sizes.argmin())
        raise InputError(
            f"{self} must give every client at least {self.min_examples} examples, but in each of {MAX_DRAWS} draws "
            f"one falls short (in the last, client {client_names(clients)[short]!r} got {sizes[short]}); "
            "use fewer clients, a larger alpha or a smaller min_examples"
        )
