"""Which method performs best, which is fairest, and how sure that is: in words.

Best performing is the best mean; of methods that the paired test cannot tell from it, the one that leaves most clients
better off (the choice of PersFL's Table 5.1). Fairest is what most of the four measures say of the gains of those that
are better off, among methods that also perform: fair without performance is not fair (PersFL, section 6.9). A method
performs if its mean gain is above zero and at least half that of the best such method, and if at least as many clients
are better off as worse off.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from bespokefl.core.errors import InputError, listing
from bespokefl.metrics import fairness
from bespokefl.metrics.improvement import decreased_share, improved_share, improvements
from bespokefl.metrics.significance import bootstrap, draws, resampled, standing
from bespokefl.metrics.vectors import Array, Values, alike, known

ENOUGH = 0.5  # of the best mean gain: less is no performance
FEW_PAIRS = 6  # with fewer, Wilcoxon's two-sided p is above .05 whatever they are


@dataclass(frozen=True)
class Verdict:
    """A method, and why."""

    method: str | None  # None where no method performs
    ties: tuple[str, ...] = ()  # what cannot be told from it: by the paired test; by as many votes
    support: float | None = None  # in what share of resamples of clients and seeds it comes out first
    votes: dict[str, str] = field(default_factory=dict)  # a measure of fairness -> the method it prefers
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
    """The best method by its scores, (M,) or (S, M) for each, and by who is better off where gains are given.

    level    of significance, for ties
    percent  the scores are shares, and the sentence tells them in per cent
    """
    found = standing(scores, level=level, higher_is_better=higher_is_better)
    arrays = dict(zip(scores, alike(*scores.items()), strict=True))
    equals = (found.best, *found.ties)
    helped = {name: improved_share(gains[name]) or 0.0 for name in equals if name in gains} if gains else {}
    most = max(helped, key=lambda name: helped[name], default=found.best)
    chosen = most if helped.get(most, 0.0) > helped.get(found.best, 0.0) else found.best
    sign = 1.0 if higher_is_better else -1.0
    drawn = resampled(arrays, seed=seed, resamples=resamples)
    stacked = np.stack([np.nan_to_num(sign * one, nan=-np.inf) for one in drawn.values()])
    support = float((np.array(list(drawn))[stacked.argmax(0)] == chosen).mean())
    ties = tuple(name for name in equals if name != chosen)
    interval = bootstrap(arrays[chosen], seed=seed)
    words = _performance(arrays, chosen, found.best, ties, helped, support, interval, percent)
    return Verdict(chosen, ties, support, {}, words)


def performing(gains: Mapping[str, Values]) -> list[str]:
    """The methods that perform, by the clients' gains over the better of FedAvg and Local, (M,) or (S, M) for each."""
    return _performing(_per_client(_tables(gains)))


def fairest(gains: Mapping[str, Values], *, seed: int = 0, resamples: int = 200) -> Verdict:
    """The fairest of the methods that perform, by the majority of the four measures on gains, (M,) or (S, M) for each.

    Seeds are averaged client by client. On equal votes the higher mean gain decides.
    """
    arrays = _tables(gains)
    found = _per_client(arrays)
    there = _performing(found)
    winner, votes = _majority(found)
    if winner is None:
        return Verdict(
            None,
            sentence="No method is fairest, as none performs: none leaves clients better off on average, and at least "
            "as many better off as worse off.",
        )
    seeds, clients = draws(next(iter(arrays.values())).shape, seed=seed, resamples=resamples)
    again = 0
    for own, counts in zip(seeds, clients, strict=True):
        drawn = {name: np.repeat(one, counts.astype(int)) for name, one in _per_client(arrays, own).items()}
        again += _majority(drawn)[0] == winner
    support = again / resamples
    won = [measure for measure, method in votes.items() if method == winner]
    ties = tuple(name for name in there if name != winner and list(votes.values()).count(name) == len(won))
    others = [f"{_words(measure)} prefers {method}" for measure, method in votes.items() if method != winner]
    who = "the only method that performs" if len(there) == 1 else f"{len(there)} methods that perform"
    says = f"{len(won)} of {len(votes)} measures ({listing([_words(one) for one in won])}) say so among {who}"
    sentence = "; ".join([f"{winner} is fairest: {says}", *others, f"{_sure(support)}."])
    return Verdict(winner, ties, support, votes, sentence)


def _performing(gains: Mapping[str, Array]) -> list[str]:
    means = {name: float(one.mean()) for name, array in gains.items() if len(one := known(array))}
    helpful = [
        name
        for name, mean in means.items()
        if mean > 0 and (improved_share(gains[name]) or 0.0) >= (decreased_share(gains[name]) or 0.0)
    ]
    best = max((means[name] for name in helpful), default=0.0)
    return [name for name in helpful if means[name] >= ENOUGH * best]


def _majority(gains: Mapping[str, Array]) -> tuple[str | None, dict[str, str]]:
    """Who gets most votes, and the votes."""
    names = sorted(_performing(gains), key=lambda name: -known(gains[name]).mean())
    if not names:
        return None, {}
    found = {name: fairness.measures(improvements(gains[name])) for name in names}
    votes = {}
    for measure in found[names[0]]:
        sign = -1.0 if measure in fairness.LOWER_IS_FAIRER else 1.0
        value = {name: sign * round(one[measure] or 0.0, 12) for name, one in found.items()}
        votes[measure] = max(names, key=lambda name, value=value: value[name])  # type: ignore[misc]
    return max(names, key=lambda name: list(votes.values()).count(name)), votes


def _tables(gains: Mapping[str, Values]) -> dict[str, Array]:
    if not gains:
        raise InputError("there is nothing to judge: give the gains of at least one method.")
    return dict(zip(gains, alike(*gains.items()), strict=True))


def _per_client(tables: Mapping[str, Array], counts: Array | None = None) -> dict[str, Array]:
    """Means over seeds, each counted so many times, (M,); NaN for a client without a value."""
    found = {}
    for name, array in tables.items():
        rows = np.atleast_2d(array)
        weights = np.ones(len(rows)) if counts is None else counts
        there = ~np.isnan(rows)
        total, num = weights @ np.where(there, rows, 0.0), weights @ there
        found[name] = np.divide(total, num, out=np.full(rows.shape[1], np.nan), where=num > 0)
    return found


def _performance(
    arrays: Mapping[str, Array],
    chosen: str,
    best: str,
    ties: Sequence[str],
    helped: Mapping[str, float],
    support: float,
    interval: tuple[float, float] | None,
    percent: bool,
) -> str:
    """best_performing's sentence."""

    def told(value: float) -> str:
        return f"{100 * value:.1f}" if percent else f"{value:.4g}"

    unit = " %" if percent else ""
    mean = f"mean {told(known(arrays[chosen]).mean())}{unit}"
    if interval is not None:
        mean += f", 95 % interval {told(interval[0])} to {told(interval[1])}{unit}"
    if len(arrays) == 1:
        return f"{chosen} is the only method ({mean})."
    pairs = len(known(arrays[chosen]))
    few = f" (with {_count(pairs, 'pair')} no difference can be significant)" if pairs < FEW_PAIRS else ""
    if not ties:
        return f"{chosen} performs best ({mean}), significantly ahead of all others; {_sure(support)}."
    if chosen == best:
        return f"{chosen} performs best ({mean}), but cannot be told from {listing(ties)}{few}; {_sure(support)}."
    rivals = listing([one for one in (chosen, *ties) if one != best])
    highest = told(known(arrays[best]).mean()) + unit
    return (
        f"{chosen} performs best ({mean}): {best} has the best mean, {highest}, but cannot be told from "
        f"{rivals}{few}, and of these {chosen} leaves most clients better off, {helped[chosen]:.3g} %; "
        f"it has the best mean in {100 * support:.3g} % of resamples."
    )


def _sure(support: float) -> str:
    return f"it comes out first in {100 * support:.3g} % of resamples"


def _words(measure: str) -> str:
    return {"jain": "Jain's index"}.get(measure, measure.replace("_", " "))


def _count(num: int, what: str) -> str:
    return f"{num} {what}{'' if num == 1 else 's'}"
