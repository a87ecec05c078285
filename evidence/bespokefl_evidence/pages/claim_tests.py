"""Test one comparison of a claim by the stored cells.

Every comparison gives a number with a region in which the claim wants it. It holds if the number and its 95 % interval
are in the region, holds in part if only the number is, and does not hold otherwise. Without an interval (one number of
one seed) it holds in part at best. It is not tested if cells are missing.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy.stats import rankdata

from bespokefl.core.errors import InputError
from bespokefl.metrics import fairness_choice
from bespokefl.metrics.communication import SYSTEMS, round_time
from bespokefl.metrics.improvement import quantum
from bespokefl_evidence.pages.intervals import Estimate, Figure, estimate, interval
from bespokefl_evidence.pages.outcomes import outcome
from bespokefl_evidence.pages.scores import METRICS, Array, clients, metric
from bespokefl_evidence.studies.cells import Cell, CellStore
from bespokefl_evidence.studies.experiment import Experiment
from bespokefl_evidence.studies.selffl_synthetic import SyntheticStudy

HOLDS, IN_PART, FAILS, UNTESTED = "holds", "holds in part", "does not hold", "not tested"
NEARLY_ALL = 0.9  # of the clients are better off: "every client" then holds in part
TARGET_SHARE = 0.95  # of the smaller final accuracy: the accuracy to reach in a comparison of times
ABOVE_ZERO = float(np.nextafter(0, 1))


@dataclass(frozen=True)
class Comparison:
    """What a claim says of two rows, or of one, in a scenario of an experiment."""

    experiment: str
    scenario: str
    a: str  # the row of which something is claimed
    b: str = ""  # the row it is compared with
    kind: str = "difference"
    metric: str = "personal"
    relation: str = "above"  # or "below", "at least" (within `points` below), "within" (`points` of it)
    points: float = 0.0
    than: str = ""  # gap: the scenario with the smaller lead
    scenarios: tuple[str, ...] = ()  # range, ratio: the scenarios over which the score should not change
    rivals: tuple[str, ...] = ()  # fairest: the other rows
    peak: int = 0  # silhouette: the number of streams with the best one
    system: str = ""  # time: the network (bespokefl.metrics.communication)
    streams: tuple[int, ...] = ()  # time: the models that the server sends to clients in a round, for a and b

    def named(self) -> Iterator[tuple[str, str]]:
        """Every scenario and row that this refers to."""
        for scenario in self.scenarios or tuple(dict.fromkeys((self.scenario, self.than or self.scenario))):
            for row in (self.a, self.b, *self.rivals):
                if row:
                    yield scenario, row


@dataclass(frozen=True)
class Finding:
    """The result of a comparison."""

    comparison: Comparison
    verdict: str
    what: str
    effect: str = ""
    interval: str = ""
    seeds: int = 0


class Evidence:
    """Cells of experiments by name, scenario and row."""

    def __init__(self, experiments: Sequence[Experiment | SyntheticStudy], store: CellStore) -> None:
        self.experiments = {one.name: one for one in experiments}
        self._store = store

    def cells(self, name: str, scenario: str, row: str) -> list[Cell]:
        """The trained cells of a row; none if the experiment, the scenario or the row does not exist."""
        one = self.experiments.get(name)
        if isinstance(one, SyntheticStudy):
            return one.cells(scenario, row, self._store)
        for where, what in one.pairs() if one is not None else ():
            if where.name == scenario and what.label == row:
                assert one is not None
                return outcome(one, where, what, self._store).trained
        return []

    def figure(self, comparison: Comparison, row: str, scenario: str = "") -> Figure:
        """The comparison's metric of a row."""
        cells = self.cells(comparison.experiment, scenario or comparison.scenario, row)
        wanted = metric(comparison.metric)
        known = {cell.seed: found for cell in cells if (found := clients(cell, wanted.of)) is not None}
        return Figure(known, wanted.reduce)


def judge(comparison: Comparison, evidence: Evidence) -> Finding:
    """Test a comparison."""
    if comparison.kind not in TESTS:
        raise InputError(f"unknown kind of comparison {comparison.kind!r}; choose from {', '.join(TESTS)}.")
    found = TESTS[comparison.kind](comparison, evidence) or Finding(comparison, UNTESTED, describe(comparison))
    study = evidence.experiments.get(comparison.experiment)
    return replace(found, seeds=study.repeats) if found.seeds and isinstance(study, SyntheticStudy) else found


def describe(one: Comparison) -> str:
    """The comparison in words."""
    name = METRICS[one.metric].title if one.metric in METRICS else one.metric.replace("_", " ")
    limit = (
        {"at least": f" − {one.points:g}", "within": f" ± {one.points:g}"}.get(one.relation, "") if one.points else ""
    )
    return {
        "difference": f"{one.scenario}: {one.a} {one.relation} {one.b}{limit} ({name})",
        "gap": f"lead of {one.a} over {one.b} in {one.scenario} {one.relation} that in {one.than} ({name})",
        "range": f"{one.a}: range over {', '.join(one.scenarios)} within {one.points:g} points ({name})",
        "ratio": f"{one.a}: largest / smallest − 1 over {'; '.join(one.scenarios)} within {one.points:g} ({name})",
        "everyone": f"{one.scenario}: every client is better off with {one.a} than with {one.b} ({name})",
        "fairest": f"{one.scenario}: {one.a} is the fairest of {', '.join((one.a, *one.rivals))} by most measures",
        "silhouette": f"{one.scenario}: silhouette of {one.a} " + (f"best at k = {one.peak}" if one.peak else "falls"),
        "time": f"{one.scenario}, {one.system}: {one.a} is as accurate as {one.b} in less time",
        "correlation": f"{one.scenario}: correlation of {one.a}'s confidence with {one.metric} {one.relation} 0",
    }[one.kind]


# -- numbers with an interval


def _decide(
    one: Comparison, found: Estimate | None, statistic: Callable[[Array], Array], scale: float, unit: str
) -> Finding | None:
    """Compare a statistic of figures, (…, figures) → (…), with the region of the relation."""
    if found is None:
        return None
    low, high = {
        "above": (ABOVE_ZERO, np.inf),
        "below": (-np.inf, -ABOVE_ZERO),
        "at least": (-one.points / scale, np.inf),
        "within": (-one.points / scale, one.points / scale),
    }[one.relation]
    value = float(statistic(found.values))
    ends = interval(statistic(found.resamples)) if found.is_resampled else None
    verdict = FAILS if not low <= value <= high else IN_PART
    if verdict == IN_PART and ends is not None and low <= ends[0] and ends[1] <= high:
        verdict = HOLDS
    shown = "–" if ends is None else f"{scale * ends[0]:+.2f} to {scale * ends[1]:+.2f}"
    return Finding(one, verdict, describe(one), f"{scale * value:+.2f}{unit}", shown, len(found.seeds))


def _scale(one: Comparison) -> tuple[float, str]:
    return (METRICS[one.metric].scale, "") if one.metric in METRICS else (1.0, f" ({one.metric})")


def _difference(one: Comparison, evidence: Evidence) -> Finding | None:
    found = estimate([evidence.figure(one, one.a), evidence.figure(one, one.b)])
    return _decide(one, found, lambda values: np.asarray(values[..., 0] - values[..., 1]), *_scale(one))


def _gap(one: Comparison, evidence: Evidence) -> Finding | None:
    """Whether the lead of a row is larger in a scenario than in another."""
    pairs = [evidence.figure(one, row, scenario) for scenario in (one.scenario, one.than) for row in (one.a, one.b)]
    signs = np.array([1.0, -1.0, -1.0, 1.0])
    return _decide(one, estimate(pairs), lambda values: np.asarray(values @ signs), *_scale(one))


def _range(one: Comparison, evidence: Evidence) -> Finding | None:
    """Whether a score changes little over scenarios."""
    found = estimate([evidence.figure(one, one.a, scenario) for scenario in one.scenarios])
    return _decide(replace(one, relation="within"), found, lambda values: np.asarray(np.ptp(values, -1)), *_scale(one))


def _ratio(one: Comparison, evidence: Evidence) -> Finding | None:
    """Whether a score changes little over scenarios, relative to the smallest."""
    found = estimate([evidence.figure(one, one.a, scenario) for scenario in one.scenarios])
    relative = replace(one, relation="within")
    return _decide(relative, found, lambda values: np.asarray(values.max(-1) / values.min(-1) - 1), 1.0, "")


def _correlation(one: Comparison, evidence: Evidence) -> Finding | None:
    """Spearman's correlation over clients of the confidence with the size or with another note of the method."""
    known: dict[int, tuple[Array, Array]] = {}
    for cell in evidence.cells(one.experiment, one.scenario, one.a):
        notes = cell.results.get("notes", {}).get("clients", {})
        other = cell.results.get("sizes", {}).get("train") if one.metric == "size" else notes.get(one.metric)
        if other is not None and "confidence" in notes:
            pair = np.array([notes["confidence"], other], dtype=np.float64)
            pair = pair[:, ~np.isnan(pair).any(0)]
            known[cell.seed] = pair[0], pair[1]
    return _decide(one, estimate([Figure(known, spearman)]), lambda values: np.asarray(values[..., 0]), 1.0, "")


def spearman(first: Array, second: Array) -> Array:
    """Spearman's rank correlation over the last axis."""
    ranks = [rankdata(one, axis=-1) for one in (first, second)]
    centred = [one - one.mean(-1, keepdims=True) for one in ranks]
    norm = np.sqrt(np.prod([(one**2).sum(-1) for one in centred], axis=0))
    return np.asarray((centred[0] * centred[1]).sum(-1) / np.maximum(norm, 1e-12))


def _time(one: Comparison, evidence: Evidence) -> Finding | None:
    """The time until both are nearly as accurate as the less accurate one is at the end, in units of T_dl."""
    system = next(known for known in SYSTEMS if known.name == one.system)
    rows = [{c.seed: c for c in evidence.cells(one.experiment, one.scenario, row)} for row in (one.a, one.b)]
    differences = {}
    for seed in set(rows[0]) & set(rows[1]):
        curves = [np.array([line[:2] for line in row[seed].results["curve"]], dtype=np.float64) for row in rows]
        target = TARGET_SHARE * min(curve[-1, 1] for curve in curves)
        num = len(rows[0][seed].results["personal"])
        spent = [
            rounds_until(curve, target) * round_time(system, streams=streams, uploads=num, clients=num)
            for curve, streams in zip(curves, one.streams, strict=True)
        ]
        differences[seed] = np.array([spent[0] - spent[1]]), np.ones(1)
    found = estimate([Figure(differences, lambda values, sizes: np.asarray(values.mean(-1)))])
    return _decide(replace(one, relation="below"), found, lambda values: np.asarray(values[..., 0]), 1.0, " T_dl")


def rounds_until(curve: Array, target: float) -> float:
    """The interpolated round in which a curve of rounds and scores, (n, 2), reaches a score; at most its last round."""
    above = np.flatnonzero(curve[:, 1] >= target)
    if not len(above):
        return float(curve[-1, 0])
    at = int(above[0])
    before = curve[at - 1] if at else np.array([0.0, 0.0])
    share = (target - before[1]) / (curve[at, 1] - before[1])
    return float(before[0] + share * (curve[at, 0] - before[0]))


# -- claims of another kind


def _everyone(one: Comparison, evidence: Evidence) -> Finding | None:
    """Whether every client of every seed has a better score; in part if nearly all have."""
    pair = [evidence.figure(one, row).clients for row in (one.a, one.b)]
    sign = -1.0 if one.relation == "below" else 1.0
    gains = [sign * (pair[0][seed][0] - pair[1][seed][0]) for seed in sorted(set(pair[0]) & set(pair[1]))]
    known = np.concatenate(gains or [np.zeros(0)])
    known = known[~np.isnan(known)]
    if not len(known):
        return None
    share = float((known > 0).mean())
    verdict = HOLDS if share == 1 else IN_PART if share >= NEARLY_ALL else FAILS
    return Finding(one, verdict, describe(one), f"{100 * share:.1f} % of clients", "–", len(gains))


def _fairest(one: Comparison, evidence: Evidence) -> Finding | None:
    """Whether a row wins most fairness measures of the gains over b's global model."""
    rows = {row: evidence.figure(one, row).clients for row in (one.a, one.b, *one.rivals)}
    seeds = sorted(set.intersection(*(set(found) for found in rows.values())))
    if not seeds:
        return None
    scores = {row: np.stack([found[seed][0] for seed in seeds]) for row, found in rows.items()}
    gains = {row: quantum(scores[row], global_=scores[one.b]) for row in (one.a, *one.rivals)}
    votes = list(fairness_choice.preferred(fairness_choice.per_client(gains)).values())
    num = votes.count(one.a)
    verdict = HOLDS if 2 * num > len(votes) else IN_PART if num and 2 * num == len(votes) else FAILS
    effect = f"{num} of {len(votes)} measures" if votes else "no method performs better than " + one.b
    return Finding(one, verdict, describe(one), effect, "–", len(seeds))


def _silhouette(one: Comparison, evidence: Evidence) -> Finding | None:
    """Whether the silhouette is best at k streams in every seed; "falls": best at the smallest k, which is 2."""
    best = [
        int(np.nanargmax(curve[1:-1])) + 2
        for cell in evidence.cells(one.experiment, one.scenario, one.a)
        if (curve := silhouettes(cell)) is not None
    ]
    if not best:
        return None
    num = best.count(one.peak or 2)
    verdict = HOLDS if num == len(best) else IN_PART if num else FAILS
    return Finding(one, verdict, describe(one), f"best at k = {', '.join(map(str, best))}", "–", len(best))


def silhouettes(cell: Cell) -> Array | None:
    """The silhouette of k = 1..m streams, NaN where k was not tried; None if the method has none."""
    curve = cell.results.get("notes", {}).get("server", {}).get("silhouette")
    return None if curve is None or len(curve) < 4 else np.array(curve, dtype=np.float64)


TESTS: Mapping[str, Callable[[Comparison, Evidence], Finding | None]] = {
    "difference": _difference,
    "gap": _gap,
    "range": _range,
    "ratio": _ratio,
    "everyone": _everyone,
    "fairest": _fairest,
    "silhouette": _silhouette,
    "time": _time,
    "correlation": _correlation,
}


def comparisons(values: Mapping[str, Any]) -> list[Comparison]:
    """The comparisons of an entry of claims.toml: one for each scenario and b, where it lists several."""
    found = []
    for scenario in _listed(values.get("scenario", "")):
        for b in _listed(values.get("b", "")):
            rest = {key: tuple(value) if isinstance(value, list) else value for key, value in values.items()}
            found.append(Comparison(**{**rest, "scenario": scenario, "b": b}))
    return found


def _listed(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list | tuple) else [value]
