"""Is a difference more than chance? Methods compared on the same clients and seeds, pair by pair.

Scores are one per client, (M,), or per seed and client, (S, M). A client without a score (NaN) is left out.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from bespokefl.core import rng as chance
from bespokefl.core.errors import InputError
from bespokefl.metrics.vectors import Array, Values, alike, known, table, vector

Interval = tuple[float, float]


@dataclass(frozen=True)
class Paired:
    """Two methods, client by client."""

    p_value: float  # two-sided
    pairs: int
    mean_difference: float  # first − second


@dataclass(frozen=True)
class Standing:
    """Who is best, and who cannot be told from it."""

    best: str
    ties: tuple[str, ...]  # without the best
    p_values: dict[str, float]  # of each other method against the best
    adjusted: dict[str, float]  # the same, Holm


def wilcoxon(first: Values, second: Values) -> Paired | None:
    """Wilcoxon's signed-rank test over all pairs of client and seed; p is 1 if all are equal, None without pairs."""
    from scipy.stats import wilcoxon as test  # here, because it takes a while to import

    one, other = alike(("first", first), ("second", second))
    difference = known(one - other)
    if not len(difference):
        return None
    scale = np.abs(difference).max()
    if scale == 0:
        return Paired(1.0, len(difference), 0.0)
    signed = np.round(difference / scale, 9)  # .3 − .2 and .2 − .1 are a tie, which last bits would break
    return Paired(float(test(signed).pvalue), len(difference), float(difference.mean()))


def holm(p_values: Values) -> Array:
    """Holm's adjusted p-values, in the given order: compare with the level as if there were one test only."""
    array = vector(p_values, "p_values")
    if np.isnan(array).any() or (array < 0).any() or (array > 1).any():
        raise InputError("p_values must be in [0, 1], got something else.")
    order = np.argsort(array, kind="stable")
    steps = np.minimum(1.0, array[order] * np.arange(len(array), 0, -1))
    adjusted = np.empty(len(array))
    adjusted[order] = np.maximum.accumulate(steps)
    return adjusted


def bootstrap(values: Values, *, seed: int = 0, level: float = 0.95, resamples: int = 2000) -> Interval | None:
    """A confidence interval of the mean, by percentiles; clients are drawn anew, and so are seeds if there are several.

    None for fewer than two values, of which nothing can be drawn.
    """
    if not 0 < level < 1:
        raise InputError(f"level must be between 0 and 1, got {level} (of confidence).")
    array = table(values)
    if len(known(array)) < 2:
        return None
    drawn = resampled({"values": array}, seed=seed, resamples=resamples)["values"]
    low, high = np.quantile(drawn[~np.isnan(drawn)], [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def bootstrap_difference(
    first: Values, second: Values, *, seed: int = 0, level: float = 0.95, resamples: int = 2000
) -> Interval | None:
    """The same of the mean difference, first − second, of pairs."""
    one, other = alike(("first", first), ("second", second))
    return bootstrap(one - other, seed=seed, level=level, resamples=resamples)


def standing(scores: Mapping[str, Values], *, level: float = 0.05, higher_is_better: bool = True) -> Standing:
    """The method of the best mean, and those that are not significantly apart from it (Wilcoxon, Holm).

    On pairs where both have a score; the first of equal means is the best.
    """
    if not scores:
        raise InputError("there is nothing to compare: give the scores of at least one method.")
    names = list(scores)
    arrays = dict(zip(names, alike(*scores.items()), strict=True))
    sign = 1.0 if higher_is_better else -1.0
    means = {name: sign * float(found.mean()) for name, array in arrays.items() if len(found := known(array))}
    if not means:
        raise InputError("there is nothing to compare: no client has a score.")
    best = max(means, key=lambda name: means[name])
    tested = {name: wilcoxon(arrays[name], arrays[best]) for name in names if name != best}
    p_values = {name: one.p_value for name, one in tested.items() if one is not None}
    adjusted = dict(zip(p_values, holm(list(p_values.values())).tolist(), strict=True))
    ties = tuple(name for name, p in adjusted.items() if p >= level)
    return Standing(best, ties, p_values, adjusted)


def resampled(scores: Mapping[str, Array], *, seed: int, resamples: int) -> dict[str, Array]:
    """Means of resampled scores, (resamples,) for each method, all methods on the same draws of clients and seeds."""
    shape = next(iter(scores.values())).shape
    seeds, clients = draws(shape, seed=seed, resamples=resamples)
    found = {}
    for name, array in scores.items():
        there = ~np.isnan(np.atleast_2d(array))
        filled = np.where(there, np.atleast_2d(array), 0.0)
        total, count = (((seeds @ one) * clients).sum(1) for one in (filled, there.astype(np.float64)))
        found[name] = np.divide(total, count, out=np.full(len(total), np.nan), where=count > 0)
    return found


@lru_cache(maxsize=8)  # as a comparison draws the same for every method and measure
def draws(shape: tuple[int, ...], *, seed: int, resamples: int) -> tuple[Array, Array]:
    """How often each seed, (resamples, S), and each client, (resamples, M), is drawn, with replacement."""
    if resamples < 1:
        raise InputError(f"resamples must be >= 1, got {resamples}.")
    num_seeds, num_clients = (1, *shape)[-2:]
    rng = chance.generator(seed, "bootstrap")
    counts = [
        rng.multinomial(size, np.full(size, 1 / size), size=resamples).astype(np.float64)
        for size in (num_seeds, num_clients)
    ]
    return counts[0], counts[1]
