"""Which method is fairest: by mean, worst tenth and standard deviation of the scores, and by PersFL's four measures.

`verdict.fairest` combines the two and says what it means.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from bespokefl.metrics import fairness
from bespokefl.metrics.client_values import Array, drop_missing
from bespokefl.metrics.improvement import improvements
from bespokefl.metrics.significance import draws

MIN_GAIN_SHARE = 0.5  # of the best mean gain; a method below it does not perform


@dataclass(frozen=True)
class ScoreSummary:
    """Mean, mean of the worst tenth and standard deviation of a method, higher being better in the first two."""

    mean: float
    worst_decile: float
    std: float


class FairnessChoice:
    """The fairest of several methods by their scores.

    `candidates` are the methods whose mean is at most `margin` behind the best mean. `fairest` is the candidate with
    the best worst tenth of all methods and the lowest standard deviation of all candidates (of all methods, if there is
    one candidate); None if there is no such candidate, or more than one. Standard deviations of methods with a low mean
    do not count: serving all clients equally badly is not fair.
    """

    def __init__(self, spreads: Mapping[str, ScoreSummary], margin: float) -> None:
        known = {name: one for name, one in spreads.items() if np.isfinite([one.mean, one.worst_decile, one.std]).all()}
        best = max((one.mean for one in known.values()), default=0.0)
        self.spreads = known
        self.candidates = [name for name, one in known.items() if one.mean >= best - margin - 1e-12]
        self.rivals = self.candidates if len(self.candidates) > 1 else list(known)
        self.deciles = _first(list(known), {name: one.worst_decile for name, one in known.items()})
        self.stds = _first(self.rivals, {name: -known[name].std for name in self.rivals})
        both = [name for name in self.candidates if name in self.deciles and name in self.stds]
        self.fairest = both[0] if len(both) == 1 and len(known) > 1 else None
        self.equal = both if len(both) > 1 else []

    def reason(self, within: str, show: Callable[[float], str], show_std: Callable[[float], str]) -> str:
        """Return why no method is fairest, as part of a sentence."""
        if len(self.spreads) < 2:
            return "fairness needs two methods and two clients with scores"
        if self.equal:
            return f"{_listed(self.equal)} have equal worst tenths and equal standard deviations"
        decile, std = self.deciles[0], self.stds[0]
        served = f"the best mean of the worst tenth of the clients ({show(self.spreads[decile].worst_decile)})"
        even = f"the lowest standard deviation between clients ({show_std(self.spreads[std].std)}"
        have = "have" if len(self.deciles) > 1 else "has"
        other = " and" if self.deciles == self.stds else f", {_listed(self.stds)}"
        figures = f"{_listed(self.deciles)} {have} {served}{other} {even}"
        if len(self.candidates) == 1:
            return f"only {self.candidates[0]} is {within}, but of all methods {figures})"
        return f"{figures}, of {len(self.candidates)} methods {within})"


def _listed(names: Sequence[str]) -> str:
    """Return names in a sentence: "a, b and c"."""
    return f"{', '.join(names[:-1])} and {names[-1]}" if len(names) > 1 else names[0]


def _first(names: Sequence[str], values: Mapping[str, float]) -> list[str]:
    """Return the names with the highest value; values that differ in the last bits only are equal."""
    highest = max((round(values[name], 12) for name in names), default=0.0)
    return [name for name in names if round(values[name], 12) == highest]


def spread_of(scores: Array) -> ScoreSummary:
    """Return mean, mean of the worst tenth and standard deviation per seed, averaged over seeds.

    `scores`, (S, M), are higher for better; NaN is a missing score. A figure is NaN if it is undefined with some seed.
    """
    ascending = np.sort(scores, axis=-1)  # NaN comes last
    num = (~np.isnan(ascending)).sum(-1)
    filled = np.nan_to_num(ascending)
    position = np.arange(scores.shape[-1])
    tenth = -(-num // 10)
    with np.errstate(invalid="ignore", divide="ignore"):
        mean = filled.sum(-1) / num
        decile = np.where(position < tenth[..., None], filled, 0.0).sum(-1) / tenth
        squares = np.where(position < num[..., None], filled - mean[..., None], 0.0) ** 2
        std = np.sqrt(squares.sum(-1) / (num - 1))
    return ScoreSummary(float(mean.mean()), float(decile.mean()), float(std.mean()))


def support_of(arrays: Mapping[str, Array], choice: FairnessChoice, seed: int, resamples: int) -> float:
    """Return the share of resamples of clients and seeds in which the fairest method has both best figures.

    The methods that standard deviations are compared of remain the same. `arrays` have the shape (S, M).
    """
    seeds, clients = draws(next(iter(arrays.values())).shape, seed=seed, resamples=resamples)
    num_first = 0
    for seed_counts, client_counts in zip(seeds, clients, strict=True):
        rows, columns = (np.repeat(np.arange(len(one)), one.astype(int)) for one in (seed_counts, client_counts))
        drawn = {name: spread_of(arrays[name][np.ix_(rows, columns)]) for name in choice.spreads}
        worst = max(drawn, key=lambda name: drawn[name].worst_decile)
        least = min(choice.rivals, key=lambda name: drawn[name].std)
        num_first += worst == least == choice.fairest
    return num_first / resamples


# -- the four measures of PersFL


def performing(gains: Mapping[str, Array]) -> list[str]:
    """Return the methods that perform: see `verdict`. `gains`, (M,), are one per client."""
    means = {name: float(one.mean()) for name, array in gains.items() if len(one := drop_missing(array))}
    helpful = [name for name, mean in means.items() if mean > 0 and np.sum(gains[name] > 0) >= np.sum(gains[name] < 0)]
    best = max((means[name] for name in helpful), default=0.0)
    return [name for name in helpful if means[name] >= MIN_GAIN_SHARE * best]


def preferred(gains: Mapping[str, Array]) -> dict[str, str]:
    """Return the method that each of the four measures prefers, of those that perform; empty if none performs."""
    names = sorted(performing(gains), key=lambda name: -drop_missing(gains[name]).mean())
    if not names:
        return {}
    found = {name: fairness.measures(improvements(gains[name])) for name in names}
    votes = {}
    for measure in found[names[0]]:
        sign = -1.0 if measure in fairness.LOWER_IS_FAIRER else 1.0
        value = {name: sign * round(one[measure] or 0.0, 12) for name, one in found.items()}
        votes[measure] = max(names, key=lambda name, value=value: value[name])  # type: ignore[misc]
    return votes


def per_client(tables: Mapping[str, Array]) -> dict[str, Array]:
    """Return the mean of each client over seeds, (M,); NaN for a client without a value."""
    means = {}
    for name, array in tables.items():
        rows = np.atleast_2d(array)
        present = ~np.isnan(rows)
        total, num = np.where(present, rows, 0.0).sum(0), present.sum(0)
        means[name] = np.divide(total, num, out=np.full(rows.shape[1], np.nan), where=num > 0)
    return means


def in_words(votes: Mapping[str, str]) -> str:
    """Return which method each measure of PersFL prefers, in words."""
    by_method: dict[str, list[str]] = {}
    for measure, method in votes.items():
        by_method.setdefault(method, []).append(_measure_name(measure))
    parts = [f"{', '.join(names)} prefer{'s' * (len(names) == 1)} {method}" for method, names in by_method.items()]
    return "; ".join(parts)


def _measure_name(measure: str) -> str:
    return {"jain": "Jain's index"}.get(measure, measure.replace("_", " "))
