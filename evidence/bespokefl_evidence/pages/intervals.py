"""Bootstrap intervals over seeds and clients, of figures of several cells with the same seeds and clients.

A resample draws seeds with replacement and, for each drawn seed, clients with replacement. All figures of a resample
use the same draws (they are paired) where the numbers of clients are equal. With a single seed only clients are drawn.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from bespokefl.core.rng import generator
from bespokefl_evidence.pages.scores import Array, Reduce

RESAMPLES = 1000
LEVEL = 0.95


@dataclass(frozen=True)
class Figure:
    """Scores and sizes of clients by seed, and what is made of them."""

    clients: Mapping[int, tuple[Array, Array]]
    reduce: Reduce


@dataclass(frozen=True)
class Estimate:
    """Figures, and their resamples."""

    seeds: tuple[int, ...]
    values: Array  # (figures,)
    resamples: Array  # (resamples, figures)
    is_resampled: bool  # False for one number of one seed, which cannot be resampled


def estimate(figures: Sequence[Figure]) -> Estimate | None:
    """Estimate figures on their common seeds; None if there is none.

    Clients without a score in one of the figures are left out of all figures with the same number of clients.
    """
    seeds = sorted(set.intersection(*(set(one.clients) for one in figures)))
    if not seeds:
        return None
    paired = {seed: _complete([one.clients[seed] for one in figures]) for seed in seeds}
    if any(not len(values) for members in paired.values() for values, _ in members):
        return None
    per_seed = [[one.reduce(*paired[seed][at]) for at, one in enumerate(figures)] for seed in seeds]
    drawn = generator(0, "claims", "seeds", len(seeds)).integers(len(seeds), size=(RESAMPLES, len(seeds)))
    total = np.zeros((RESAMPLES, len(figures)))
    for position in range(len(seeds)):
        for number, seed in enumerate(seeds):
            chosen = np.flatnonzero(drawn[:, position] == number)
            for at, one in enumerate(figures):
                values, sizes = paired[seed][at]
                rng = generator(0, "claims", "clients", seed, position, len(values))
                index = rng.integers(len(values), size=(len(chosen), len(values)))
                total[chosen, at] += one.reduce(values[index], sizes[index])
    largest = max(len(values) for members in paired.values() for values, _ in members)
    return Estimate(tuple(seeds), np.mean(per_seed, 0), total / len(seeds), len(seeds) > 1 or largest > 1)


def interval(resamples: Array) -> tuple[float, float]:
    """The percentile interval of resampled values, (resamples,)."""
    low, high = np.quantile(resamples, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return float(low), float(high)


def _complete(members: Sequence[tuple[Array, Array]]) -> list[tuple[Array, Array]]:
    known: dict[int, Array] = {}
    for values, _ in members:
        known[len(values)] = known.get(len(values), np.ones(len(values), dtype=bool)) & ~np.isnan(values)
    return [(values[known[len(values)]], sizes[known[len(values)]]) for values, sizes in members]
