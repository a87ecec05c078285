"""Test whether methods differ by more than chance, on the same clients and seeds.

Scores are one per client, (M,), or per seed and client, (S, M). A client without a score (NaN) is left out.

`standing` compares methods by the mixed model of `mixed_model`, in which seeds and clients are random. `wilcoxon`
counts each pair of client and seed as an independent repeat, which pairs of one seed or one client are not: use it with
one value per client.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from bespokefl.core.errors import InputError
from bespokefl.core.rng import generator
from bespokefl.metrics.client_values import Array, Values, by_name, drop_missing, same_shape, to_table, to_vector
from bespokefl.metrics.mixed_model import Estimate, Interval, estimate

WORSE, EQUAL, UNCLEAR = "worse", "equal", "unclear"  # how a method compares with the best
MARGIN = 0.01  # scores closer than this count as equal: one percentage point
LOSS_MARGIN_SHARE = 0.02  # the same for scores of which lower is better, as a share of the best mean


@dataclass(frozen=True)
class Paired:
    """The result of a paired test of two methods."""

    p_value: float  # two-sided
    pairs: int  # of client and seed
    mean_difference: float  # of first − second


@dataclass(frozen=True)
class Standing:
    """The method with the best mean, and how each other method compares with it."""

    best: str
    relations: dict[str, str]  # of each other method: WORSE, EQUAL (within the margin) or UNCLEAR (too few to tell)
    p_values: dict[str, float]  # of each other method against the best
    adjusted: dict[str, float]  # the same, corrected for the number of methods
    differences: dict[str, Estimate]  # best − other, above zero where the best is better
    margin: float
    num_seeds: int
    num_clients: int  # with a score

    @property
    def ties(self) -> tuple[str, ...]:
        """Methods that are not significantly worse than the best."""
        return tuple(name for name, relation in self.relations.items() if relation != WORSE)

    def related(self, relation: str) -> tuple[str, ...]:
        """Return the methods that compare with the best like this."""
        return tuple(name for name, one in self.relations.items() if one == relation)


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


def standing(
    scores: Mapping[str, Values], *, level: float = 0.05, higher_is_better: bool = True, margin: float | None = None
) -> Standing:
    """Find the method with the best mean, and how the other methods compare with it.

    A method is *worse* if its paired difference from the best is significant (`mixed_model.estimate`), *equal* if it is
    not and the confidence interval of the difference is within ± `margin`, and *unclear* otherwise: there are too few
    clients or seeds to tell. P-values are corrected by `against_best`.

    Parameters
    ----------
    scores : mapping of str to array-like of shape (M,) or (S, M)
        Of each method on the same clients. Of methods with equal means the first is the best.
    level : float
        Of significance; intervals have the confidence level 1 − `level`.
    higher_is_better : bool
        False for losses.
    margin : float, optional
        The largest difference that counts as equal. Default: `default_margin`.

    Raises
    ------
    InputError
        If no client has a score.
    """
    arrays = by_name(scores)
    sign = 1.0 if higher_is_better else -1.0
    means = {name: sign * mean for name, array in arrays.items() if (mean := mean_score(array)) is not None}
    if not means:
        raise InputError("there is nothing to compare: no client has a score.")
    best = max(means, key=lambda name: means[name])
    margin = default_margin(sign * means[best], higher_is_better) if margin is None else margin
    found = {name: estimate(sign * (arrays[best] - array), level=level) for name, array in arrays.items()}
    differences = {name: one for name, one in found.items() if one is not None and name != best}
    p_values = {name: one.p_value for name, one in differences.items()}
    adjusted = dict(zip(p_values, against_best(list(p_values.values()), len(arrays)).tolist(), strict=True))
    relations = {}
    for name in arrays:
        one = differences.get(name)
        if one is not None and one.mean > 0 and adjusted[name] < level:
            relations[name] = WORSE
        elif one is not None and -margin <= one.interval[0] and one.interval[1] <= margin:
            relations[name] = EQUAL
        elif name != best:
            relations[name] = UNCLEAR
    table = np.atleast_2d(arrays[best])
    num_clients = int((~np.isnan(table)).any(0).sum())
    return Standing(best, relations, p_values, adjusted, differences, margin, len(table), num_clients)


def against_best(p_values: Values, num_methods: int) -> Array:
    """Return adjusted p-values of tests against the best of `num_methods` methods.

    They are Holm's, times num_methods / 2: the best is chosen by the same data, so any method could have been the one
    that the others are tested against. Of methods that do not differ, at most `level` of comparisons call one worse.
    """
    return np.minimum(1.0, holm(p_values) * max(1.0, num_methods / 2))


def default_margin(best_mean: float, higher_is_better: bool) -> float:
    """Return the difference that counts as equal: 0.01 (one point of accuracy); of losses 2 % of the best mean."""
    return MARGIN if higher_is_better else LOSS_MARGIN_SHARE * abs(best_mean)


def mean_score(scores: Array) -> float | None:
    """Return the mean over clients, then over seeds, as tables show it; None without scores."""
    seeds = [float(one.mean()) for row in np.atleast_2d(scores) if len(one := drop_missing(row))]
    return float(np.mean(seeds)) if seeds else None


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
