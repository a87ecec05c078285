"""Decide which method performs best and which is fairest, and say in a sentence how certain that is.

The best performing method has the best mean. Of methods that a paired test cannot distinguish from it, the one with the
most clients better off is chosen (as in PersFL's Table 5.1). The fairest method wins most of the four fairness measures
of the gains of clients that are better off, among the methods that perform, because fairness without performance is of
no use (PersFL, section 6.9). A method performs if its mean gain is above zero and at least half that of the best such
method, and if at least as many clients are better off as worse off.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from bespokefl.core.errors import count, listing
from bespokefl.metrics import fairness
from bespokefl.metrics.client_values import Array, Values, by_name, drop_missing
from bespokefl.metrics.improvement import improved_share, improvements
from bespokefl.metrics.significance import bootstrap, draws, resampled, standing

MIN_GAIN_SHARE = 0.5  # of the best mean gain; a method below it does not perform
FEW_PAIRS = 6  # with fewer, Wilcoxon's two-sided p-value is always above .05


@dataclass(frozen=True)
class Verdict:
    """The chosen method and the reasons."""

    method: str | None  # None if no method performs
    ties: tuple[str, ...] = ()  # not distinguished from it by the paired test, or with as many fairness measures
    support: float | None = None  # share of resamples of clients and seeds in which the method comes first
    votes: dict[str, str] = field(default_factory=dict)  # the method that each fairness measure prefers
    sentence: str = ""


def best_performing(
    scores: Mapping[str, Values],
    gains: Mapping[str, Values] | None = None,
    *,
    level: float = 0.05,
    seed: int = 0,
    resamples: int = 2000,
    higher_is_better: bool = True,
    percent: bool = False,
) -> Verdict:
    """Choose the best performing method.

    Parameters
    ----------
    scores : mapping of str to array-like of shape (M,) or (S, M)
        The clients' scores with each method.
    gains : mapping of str to array-like, optional
        The clients' gains over the baselines, which decide between tied methods.
    level : float
        The level of significance for ties.
    seed, resamples : int
        Of the bootstrap.
    higher_is_better : bool
        False for losses.
    percent : bool
        Whether the sentence prints scores in percent.
    """
    found = standing(scores, level=level, higher_is_better=higher_is_better)
    arrays = by_name(scores)
    tied = (found.best, *found.ties)
    helped = {name: improved_share(gains[name]) or 0.0 for name in tied if name in gains} if gains else {}
    most = max(helped, key=lambda name: helped[name], default=found.best)
    chosen = most if helped.get(most, 0.0) > helped.get(found.best, 0.0) else found.best
    sign = 1.0 if higher_is_better else -1.0
    means = resampled(arrays, seed=seed, resamples=resamples)
    stacked = np.stack([np.nan_to_num(sign * one, nan=-np.inf) for one in means.values()])
    support = float((np.array(list(means))[stacked.argmax(0)] == chosen).mean())
    ties = tuple(name for name in tied if name != chosen)

    def show(value: float) -> str:
        return f"{100 * value:.1f} %" if percent else f"{value:.4g}"

    interval = bootstrap(arrays[chosen], seed=seed)
    mean = f"mean {show(drop_missing(arrays[chosen]).mean())}"
    if interval is not None:
        mean += f", 95 % interval {show(interval[0]).removesuffix(' %')} to {show(interval[1])}"
    pairs = len(drop_missing(arrays[chosen]))
    few = f" (with {count(pairs, 'pair')} no difference can be significant)" if pairs < FEW_PAIRS else ""
    if len(arrays) == 1:
        sentence = f"{chosen} is the only method ({mean})."
    elif not ties:
        sentence = f"{chosen} performs best ({mean}), significantly ahead of all others; {_certainty(support)}."
    elif chosen == found.best:
        sentence = (
            f"{chosen} performs best ({mean}), but does not differ significantly from {listing(ties)}{few}; "
            f"{_certainty(support)}."
        )
    else:
        rivals = listing([one for one in (chosen, *ties) if one != found.best])
        highest = show(drop_missing(arrays[found.best]).mean())
        sentence = (
            f"{chosen} performs best ({mean}): {found.best} has the best mean, {highest}, but does not differ "
            f"significantly from {rivals}{few}, and of these {chosen} leaves most clients better off, "
            f"{helped[chosen]:.3g} %; it has the best mean in {100 * support:.3g} % of resamples."
        )
    return Verdict(chosen, ties, support, {}, sentence)


def performing(gains: Mapping[str, Values]) -> list[str]:
    """Return the methods that perform, as defined above, by their clients' gains, (M,) or (S, M)."""
    return _performing(_per_client(by_name(gains, "gains")))


def fairest(gains: Mapping[str, Values], *, seed: int = 0, resamples: int = 200) -> Verdict:
    """Choose the fairest of the methods that perform, by the majority of the four fairness measures.

    `gains` has the clients' gains with each method, which are averaged over seeds. Of methods with equally many votes,
    the one with the higher mean gain is chosen. `seed` and `resamples` are those of the bootstrap.
    """
    arrays = by_name(gains, "gains")
    averaged = _per_client(arrays)
    candidates = _performing(averaged)
    winner, votes = _majority(averaged)
    if winner is None:
        reason = "none leaves clients better off on average, and at least as many better off as worse off"
        return Verdict(None, sentence=f"No method is fairest, as none performs: {reason}.")
    seeds, clients = draws(next(iter(arrays.values())).shape, seed=seed, resamples=resamples)
    num_first = 0
    for seed_counts, client_counts in zip(seeds, clients, strict=True):
        means = _per_client(arrays, seed_counts)
        drawn = {name: np.repeat(one, client_counts.astype(int)) for name, one in means.items()}
        num_first += _majority(drawn)[0] == winner
    support = num_first / resamples
    won = [measure for measure, method in votes.items() if method == winner]
    ties = tuple(name for name in candidates if name != winner and list(votes.values()).count(name) == len(won))
    others = [f"{_measure_name(measure)} prefers {method}" for measure, method in votes.items() if method != winner]
    measures = listing([_measure_name(one) for one in won])
    reason = f"{len(won)} of {len(votes)} measures ({measures}) prefer it among {len(candidates)} methods that perform"
    if len(candidates) == 1:
        reason = "it is the only method that performs"
    sentence = "; ".join([f"{winner} is fairest: {reason}", *others, f"{_certainty(support)}."])
    return Verdict(winner, ties, support, votes, sentence)


def _performing(gains: Mapping[str, Array]) -> list[str]:
    means = {name: float(one.mean()) for name, array in gains.items() if len(one := drop_missing(array))}
    helpful = [name for name, mean in means.items() if mean > 0 and np.sum(gains[name] > 0) >= np.sum(gains[name] < 0)]
    best = max((means[name] for name in helpful), default=0.0)
    return [name for name in helpful if means[name] >= MIN_GAIN_SHARE * best]


def _majority(gains: Mapping[str, Array]) -> tuple[str | None, dict[str, str]]:
    """Return the method with the most votes, and the votes."""
    names = sorted(_performing(gains), key=lambda name: -drop_missing(gains[name]).mean())
    if not names:
        return None, {}
    found = {name: fairness.measures(improvements(gains[name])) for name in names}
    votes = {}
    for measure in found[names[0]]:
        sign = -1.0 if measure in fairness.LOWER_IS_FAIRER else 1.0
        value = {name: sign * round(one[measure] or 0.0, 12) for name, one in found.items()}
        votes[measure] = max(names, key=lambda name, value=value: value[name])  # type: ignore[misc]
    return max(names, key=lambda name: list(votes.values()).count(name)), votes


def _per_client(tables: Mapping[str, Array], counts: Array | None = None) -> dict[str, Array]:
    """Return the mean of each client over seeds, (M,), weighted by `counts`; NaN for a client without a value."""
    means = {}
    for name, array in tables.items():
        rows = np.atleast_2d(array)
        weights = np.ones(len(rows)) if counts is None else counts
        present = ~np.isnan(rows)
        total, num = weights @ np.where(present, rows, 0.0), weights @ present
        means[name] = np.divide(total, num, out=np.full(rows.shape[1], np.nan), where=num > 0)
    return means


def _certainty(support: float) -> str:
    return f"it comes first in {100 * support:.3g} % of resamples"


def _measure_name(measure: str) -> str:
    return {"jain": "Jain's index"}.get(measure, measure.replace("_", " "))
