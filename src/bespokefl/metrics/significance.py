"""Test whether methods differ by more than chance, on the same clients and seeds.

Scores are one per client, (M,), or per seed and client, (S, M). A client without a score (NaN) is left out.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from bespokefl.core.errors import InputError
from bespokefl.core.rng import generator
from bespokefl.metrics.client_values import Array, Values, by_name, drop_missing, same_shape, to_table, to_vector

Interval = tuple[float, float]


@dataclass(frozen=True)
class Paired:
    """The result of a paired test of two methods."""

    p_value: float  # two-sided
    pairs: int  # of client and seed
    mean_difference: float  # of first − second


@dataclass(frozen=True)
class Standing:
    """The best method, and the methods that do not differ significantly from it."""

    best: str  # the method with the best mean
    ties: tuple[str, ...]  # other methods that do not differ significantly from it
    p_values: dict[str, float]  # of each other method against the best
    adjusted: dict[str, float]  # the same with Holm's correction


def wilcoxon(first: Values, second: Values) -> Paired | None:
    """Compare the scores of two methods with Wilcoxon's signed-rank test over all pairs of client and seed.

    The p-value is 1 if all scores are equal. The result is None without pairs.
    """
    from scipy.stats import wilcoxon as signed_rank_test  # imported here because it is slow

    one, other = same_shape(("first", first), ("second", second))
    difference = drop_missing(one - other)
    if not len(difference):
        return None
    scale = np.abs(difference).max()
    if scale == 0:
        return Paired(1.0, len(difference), 0.0)
    signed = np.round(difference / scale, 9)  # .3 − .2 and .2 − .1 are a tie, which the last bits would break
    return Paired(float(signed_rank_test(signed).pvalue), len(difference), float(difference.mean()))


def holm(p_values: Values) -> Array:
    """Return Holm's adjusted p-values in the same order; each can be compared with the level of a single test."""
    array = to_vector(p_values, "p_values")
    if np.isnan(array).any() or (array < 0).any() or (array > 1).any():
        raise InputError("p_values must be in [0, 1], got something else.")
    order = np.argsort(array, kind="stable")
    steps = np.minimum(1.0, array[order] * np.arange(len(array), 0, -1))
    adjusted = np.empty(len(array))
    adjusted[order] = np.maximum.accumulate(steps)
    return adjusted


def bootstrap(values: Values, *, seed: int = 0, level: float = 0.95, resamples: int = 2000) -> Interval | None:
    """Return a percentile bootstrap confidence interval of the mean; None for fewer than two values.

    Clients are resampled, and so are seeds if there are several. `seed` is that of the random generator, `level` the
    confidence level.
    """
    if not 0 < level < 1:
        raise InputError(f"level must be between 0 and 1, got {level} (of confidence).")
    array = to_table(values)
    if len(drop_missing(array)) < 2:
        return None
    means = resampled({"values": array}, seed=seed, resamples=resamples)["values"]
    low, high = np.quantile(means[~np.isnan(means)], [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def bootstrap_difference(
    first: Values, second: Values, *, seed: int = 0, level: float = 0.95, resamples: int = 2000
) -> Interval | None:
    """Return the `bootstrap` interval of the mean difference first − second of paired scores."""
    one, other = same_shape(("first", first), ("second", second))
    return bootstrap(one - other, seed=seed, level=level, resamples=resamples)


def standing(scores: Mapping[str, Values], *, level: float = 0.05, higher_is_better: bool = True) -> Standing:
    """Find the method with the best mean, and those that do not differ significantly from it (Wilcoxon, Holm).

    `scores` has the scores of each method on the same clients; pairs in which one is missing are left out. `level` is
    that of significance; `higher_is_better` is False for losses. Of methods with equal means the first is the best.
    """
    arrays = by_name(scores)
    sign = 1.0 if higher_is_better else -1.0
    means = {name: sign * float(found.mean()) for name, array in arrays.items() if len(found := drop_missing(array))}
    if not means:
        raise InputError("there is nothing to compare: no client has a score.")
    best = max(means, key=lambda name: means[name])
    tests = {name: wilcoxon(array, arrays[best]) for name, array in arrays.items() if name != best}
    p_values = {name: one.p_value for name, one in tests.items() if one is not None}
    adjusted = dict(zip(p_values, holm(list(p_values.values())).tolist(), strict=True))
    ties = tuple(name for name, p in adjusted.items() if p >= level)
    return Standing(best, ties, p_values, adjusted)


def resampled(scores: Mapping[str, Array], *, seed: int, resamples: int) -> dict[str, Array]:
    """Return the means of resampled scores, (resamples,) for each method, with the same resamples for all methods."""
    shape = next(iter(scores.values())).shape
    seeds, clients = draws(shape, seed=seed, resamples=resamples)
    means = {}
    for name, array in scores.items():
        present = ~np.isnan(np.atleast_2d(array))
        filled = np.where(present, np.atleast_2d(array), 0.0)
        total, count = (((seeds @ one) * clients).sum(1) for one in (filled, present.astype(np.float64)))
        means[name] = np.divide(total, count, out=np.full(len(total), np.nan), where=count > 0)
    return means


@lru_cache(maxsize=8)  # a comparison draws the same for every method and measure
def draws(shape: tuple[int, ...], *, seed: int, resamples: int) -> tuple[Array, Array]:
    """Return how often each seed, (resamples, S), and each client, (resamples, M), is drawn, with replacement."""
    if resamples < 1:
        raise InputError(f"resamples must be >= 1, got {resamples}.")
    num_seeds, num_clients = (1, *shape)[-2:]
    rng = generator(seed, "bootstrap")
    seeds, clients = (
        rng.multinomial(size, np.full(size, 1 / size), size=resamples).astype(np.float64)
        for size in (num_seeds, num_clients)
    )
    return seeds, clients
