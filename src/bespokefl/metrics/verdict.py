"""Decide which method performs best and which is fairest, and say in a sentence what can and cannot be concluded.

A method *performs best* if it has the best mean, is significantly ahead of every other method (see `significance`), and
at least five seeds were run. Otherwise no method is called best, and the sentence says why: other methods are equal
within a margin, or there are too few clients or seeds to tell.

A method is *fairest* if its mean is within a margin of the best mean, it has the best mean of the worst tenth of the
clients of all methods, and the lowest standard deviation between clients of the methods within the margin (of all
methods, if it is alone there). No method is called fairest if these disagree, if fewer than 80 % of resamples of
clients and seeds confirm the answer, or if one of PersFL's four fairness measures, of the gains of clients that are
better off, prefers another method. The measures compare methods that perform (PersFL, section 6.9): their mean gain is
above zero and at least half that of the best such method, and at least as many clients are better off as worse off.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from bespokefl.core.errors import count
from bespokefl.metrics import fairness_choice
from bespokefl.metrics.client_values import Values, by_name
from bespokefl.metrics.fairness_choice import FairnessChoice, spread_of, support_of
from bespokefl.metrics.improvement import improved_share
from bespokefl.metrics.mixed_model import Interval, estimate
from bespokefl.metrics.significance import (
    EQUAL,
    UNCLEAR,
    Standing,
    default_margin,
    mean_score,
    resampled,
    standing,
)

MIN_SEEDS = 5  # with fewer, no method is called best
MIN_SUPPORT = 0.8  # share of resamples in which the fairest method must come first


@dataclass(frozen=True)
class Verdict:
    """The chosen method and the reasons."""

    method: str | None  # the best mean, or the fairest method; None if there is none
    ties: tuple[str, ...] = ()  # not significantly worse than the best mean
    support: float | None = None  # share of resamples of clients and seeds in which the method comes first
    votes: dict[str, str] = field(default_factory=dict)  # the method that each fairness measure of PersFL prefers
    sentence: str = ""
    conclusive: bool = False  # whether the method can be called best or fairest


def best_performing(
    scores: Mapping[str, Values],
    gains: Mapping[str, Values] | None = None,
    *,
    level: float = 0.05,
    seed: int = 0,
    resamples: int = 2000,
    higher_is_better: bool = True,
    percent: bool = False,
    margin: float | None = None,
    bounds: Interval | None = None,
    reservations: Sequence[str] = (),
) -> Verdict:
    """Choose the method with the best mean, and decide whether it can be called best.

    Parameters
    ----------
    scores : mapping of str to array-like of shape (M,) or (S, M)
        The clients' scores with each method.
    gains : mapping of str to array-like, optional
        The clients' gains over the baselines. If methods are tied, the sentence names the one that leaves most clients
        better off.
    level : float
        The level of significance.
    seed, resamples : int
        Of the bootstrap for `support`.
    higher_is_better : bool
        False for losses.
    percent : bool
        Whether the sentence prints scores in percent.
    margin : float, optional
        The largest difference that counts as equal. Default: `significance.default_margin`.
    bounds : pair of float, optional
        The range of possible scores, to which intervals are cut. Default: 0 to 1 with `percent`.
    reservations : sequence of str
        Other reasons not to call a method best, as parts of a sentence.
    """
    found = standing(scores, level=level, higher_is_better=higher_is_better, margin=margin)
    arrays = by_name(scores)
    sign = 1.0 if higher_is_better else -1.0
    means = resampled(arrays, seed=seed, resamples=resamples)
    stacked = np.stack([np.nan_to_num(sign * one, nan=-np.inf) for one in means.values()])
    support = float((np.array(list(means))[stacked.argmax(0)] == found.best).mean())
    limits = [*_too_few_seeds(found.num_seeds), *reservations]
    show, points = _formats(percent)
    own = estimate(arrays[found.best], level=level, bounds=bounds or ((0.0, 1.0) if percent else None))
    mean, confidence = show(mean_score(arrays[found.best]) or 0.0), f"{100 * (1 - level):.3g} % interval"
    if own is not None:
        mean += f", {confidence} {_between(own.interval, show)}"
    conclusive = len(arrays) > 1 and not found.ties and not limits
    if len(arrays) == 1:
        sentence = f"{found.best} is the only method (mean {mean})."
    elif found.ties:
        tied = _ties(found, points) + _helps_most(found, gains or {})
        sentence = _joined(f"No method can be called best: {found.best} has the best mean ({mean}); {tied}", limits)
    else:
        by = {name: mean_score(sign * arrays[name]) or 0.0 for name in found.differences}
        next_best = max(by, key=lambda name: by[name])
        lead = found.differences[next_best]
        ahead = (
            f"significantly ahead of all others, of {next_best} by {points(lead.mean)} "
            f"({confidence} {_between(lead.interval, points)})"
            + (f", a lead of less than {points(found.margin)}" if lead.interval[1] < found.margin else "")
        )
        if conclusive:
            runs = f"{count(found.num_seeds, 'seed')} and {count(found.num_clients, 'client')}"
            sentence = f"{found.best} performs best (mean {mean}): with {runs} it is {ahead}."
        else:
            sentence = _joined(
                f"No method is called best yet: {found.best} has the best mean ({mean}), {ahead}", limits
            )
    return Verdict(found.best, found.ties, support, {}, sentence, conclusive)


def _too_few_seeds(num_seeds: int) -> list[str]:
    if num_seeds == 1:
        return [
            "one seed says nothing about other seeds: this holds for these clients and this seed only; "
            f"run at least {MIN_SEEDS}"
        ]
    if num_seeds < MIN_SEEDS:
        return [f"{num_seeds} seeds are too few to conclude about other seeds; run at least {MIN_SEEDS}"]
    return []


def _joined(sentence: str, limits: Sequence[str]) -> str:
    return ". ".join([sentence, *(one[0].upper() + one[1:] for one in limits)]) + "."


def _formats(percent: bool) -> tuple[Callable[[float], str], Callable[[float], str]]:
    """Return how to print a score and a difference of scores."""
    if not percent:
        return (lambda value: f"{value:.4g}"), (lambda value: f"{value:.3g}")
    return (lambda value: f"{100 * value:.1f} %"), in_points


def in_points(value: float) -> str:
    """Return a difference of two shares in percentage points."""
    number = f"{100 * value:.1f}"
    return "1 point" if number == "1.0" else f"{number} points"


def _between(interval: Interval, show: Callable[[float], str]) -> str:
    """Return the ends of an interval, with their unit once."""
    low, high = map(show, interval)
    return f"{low.split()[0]} to {high}"


def _ties(found: Standing, points: Callable[[float], str]) -> str:
    parts = []
    if equal := found.related(EQUAL):
        verb = "is" if len(equal) == 1 else "are"
        parts.append(f"{_with(equal, 'and')} {verb} equal to it within {points(found.margin)}")
    if unclear := found.related(UNCLEAR):
        parts.append(f"there are too few clients or seeds to tell it from {_with(unclear, 'or')}")
    return ", and ".join(parts)


def _with(names: Sequence[str], conjunction: str) -> str:
    """Return names in a sentence: "a, b or c"."""
    return f" {conjunction} ".join([", ".join(names[:-1]), names[-1]]) if len(names) > 1 else names[0]


def _helps_most(found: Standing, gains: Mapping[str, Values]) -> str:
    """Return the tied method that leaves most clients better off, if it is not the best mean, in words."""
    helped = {name: improved_share(gains[name]) or 0.0 for name in (found.best, *found.ties) if name in gains}
    most = max(helped, key=lambda name: helped[name], default=found.best)
    if found.best not in helped or helped[most] <= helped[found.best]:  # nobody gains over a baseline by that baseline
        return ""
    return f". Of these, {most} leaves most clients better off than both Local and FedAvg, {helped[most]:.3g} %"


def performing(gains: Mapping[str, Values]) -> list[str]:
    """Return the methods that perform, as defined above, by their clients' gains, (M,) or (S, M)."""
    return fairness_choice.performing(fairness_choice.per_client(by_name(gains, "gains")))


def fairest(
    gains: Mapping[str, Values],
    scores: Mapping[str, Values] | None = None,
    *,
    seed: int = 0,
    resamples: int = 200,
    higher_is_better: bool = True,
    margin: float | None = None,
    percent: bool = False,
    reservations: Sequence[str] = (),
) -> Verdict:
    """Choose the fairest method, as defined above.

    Parameters
    ----------
    gains : mapping of str to array-like of shape (M,) or (S, M)
        The clients' gains with each method, for the four measures of PersFL; averaged over seeds.
    scores : mapping of str to array-like of shape (M,) or (S, M), optional
        The clients' scores, baselines included. Default: the gains themselves.
    seed, resamples : int
        Of the bootstrap for `support`.
    higher_is_better : bool
        False if the scores are losses.
    margin : float, optional
        How far a mean may be behind the best mean. Default: `significance.default_margin`.
    percent : bool
        Whether the sentence prints scores in percent.
    reservations : sequence of str
        Other reasons not to call a method fairest, as parts of a sentence.
    """
    averaged = fairness_choice.per_client(by_name(gains, "gains"))
    votes = fairness_choice.preferred(averaged)
    if scores is None and not votes:
        reason = "none leaves clients better off on average, and at least as many better off as worse off"
        return Verdict(None, sentence=f"No method is fairest, as none performs: {reason}.")
    sign = 1.0 if higher_is_better or scores is None else -1.0
    arrays = {name: sign * np.atleast_2d(one) for name, one in by_name(gains if scores is None else scores).items()}
    if margin is None:
        means = [mean for one in arrays.values() if (mean := mean_score(one)) is not None]
        margin = default_margin(max(means, default=0.0), higher_is_better)
    choice = FairnessChoice({name: spread_of(one) for name, one in arrays.items()}, margin)
    show, points = _formats(percent)
    within = f"within {points(margin)} of the best mean"
    compared = len(fairness_choice.performing(averaged)) > 1  # else the measures have no choice
    measures = fairness_choice.in_words(votes) if compared else ""
    winner = choice.fairest
    if winner is None:
        reason = choice.reason(within, lambda value: show(sign * value), points)
        reason += f". PersFL's measures of the gains: {measures}" if measures else ""
        return Verdict(None, (), None, votes, _joined(f"No method can be called fairest: {reason}", reservations))
    support = support_of(arrays, choice, seed, resamples)
    num = len(choice.candidates)
    figures = (
        f"it has the best mean of the worst tenth of the clients ({show(sign * choice.spreads[winner].worst_decile)}) "
        f"and the lowest standard deviation between clients ({points(choice.spreads[winner].std)}, "
        + (f"of {num} methods {within})" if num > 1 else f"of all methods; no other is {within})")
    )
    against = []
    if measures and winner in averaged and set(votes.values()) != {winner}:
        against.append(f"PersFL's measures of the gains do not all prefer it: {measures}")
    if support < MIN_SUPPORT:
        against.append(f"this holds in only {100 * support:.3g} % of resamples of clients and seeds")
    limits = [*_too_few_seeds(len(arrays[winner])), *reservations]
    if against or limits:
        but = f", but {'; and '.join(against)}" if against else ""
        sentence = _joined(f"No method can be called fairest. {winner} comes closest: {figures}{but}", limits)
        return Verdict(None, (), support, votes, sentence)
    also = ", PersFL's four measures of the gains prefer it too," if measures and winner in averaged else ""
    sentence = f"{winner} is fairest: {figures}{also} and it comes first in {100 * support:.3g} % of resamples."
    return Verdict(winner, (), support, votes, sentence, conclusive=True)
