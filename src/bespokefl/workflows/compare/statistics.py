"""The figures of one method in a comparison: means, spread, gains, fairness, communication and significance."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from bespokefl.metrics import fairness, improvement, spread, standard_error, summarize
from bespokefl.metrics.client_values import Array
from bespokefl.metrics.communication import SYSTEMS
from bespokefl.metrics.metric import METRICS, SHARES, metric_of
from bespokefl.metrics.mixed_model import Interval, estimate
from bespokefl.metrics.significance import EQUAL, UNCLEAR
from bespokefl.workflows.results.result import Result

if TYPE_CHECKING:
    from bespokefl.workflows.compare.result import Comparison

LEVEL = 0.05  # of significance
TEST, VALIDATION = tuple(METRICS), ("validation_accuracy", "validation_loss")
WITH_INTERVAL = ("accuracy", "loss", "f1")  # measures that get a confidence interval, besides the score compared
BEST = "best"
IMPROVEMENTS = (
    improvement.improved_share,
    improvement.decreased_share,
    improvement.median_improvement,
    improvement.mean_improvement,
    improvement.median_decrease,
    improvement.mean_decrease,
)

Figures = dict[str, Any]


def figures(found: "Comparison", name: str) -> Figures:
    """Return the figures of one method, as in compare.json."""
    entry = found.entries[name]
    runs = [entry.runs[seed] for seed in found.seeds or sorted(entry.runs)]
    train = found.sizes["train"]
    of_kind: dict[str, Figures] = {}
    for kind in ("personal", "global"):
        measured = {measure: found.scores(name, measure, kind) for measure in kept_measures(found.score)}
        of_kind[kind] = {
            measure: over_clients(one, train, higher_is_better=metric_of(measure).higher_is_better)
            | {
                "interval": _interval(one, measure)
                if kind == "personal" and measure in (*WITH_INTERVAL, found.score)
                else None
            }
            for measure, one in measured.items()
            if one is not None
        }
    gains, own = found.gains.get(name), found.known_scores(name)
    per_client = None if gains is None else _per_client(gains)
    standing = found.standing
    relations = {} if standing is None else {standing.best: BEST} | standing.relations
    relation = relations.get(name)
    return {
        **of_kind["personal"],
        "global": of_kind["global"] or None,
        "gain": None
        if gains is None
        else {"mean": _mean(gains), "interval": _interval(gains)} | {one.__name__: one(gains) for one in IMPROVEMENTS},
        "fairness": {
            "score": _fairness(_per_client(own)),
            **({"improved": None, "decreased": None} if per_client is None else fairness.of_gains(per_client)),
        },
        **{way: _mean([run.communication[way] for run in runs]) for way in ("up_bytes", "down_bytes")},
        "streams": _mean([run.communication.get("streams") for run in runs]),
        "model_time": _times(runs),
        "seconds": _mean([run.timing["seconds"] for run in runs]),
        "work": mean_work(runs),
        "rank": None,
        "best": relation == BEST,
        "tie": relation in (EQUAL, UNCLEAR),  # not significantly worse than the best
        "relation": relation,  # to the method with the best mean
        "p_value": standing and standing.p_values.get(name),
        "adjusted": standing and standing.adjusted.get(name),
        "difference": _interval(own - found.known_scores(standing.best)) if standing and relation != BEST else None,
    }


def kept_measures(score: str) -> list[str]:
    """Return the measures in compare.json if `score` is compared."""
    return list(dict.fromkeys((*TEST, *VALIDATION, f"validation_{score}")))


def constant_figures(found: "Comparison") -> Figures | None:
    """Return figures of the constant predictors: majority class, or mean value; None if the runs do not have them."""
    scores = found.constant
    if scores is None:
        return None
    return {
        measure: over_clients(scores[measure][None], found.sizes["train"], higher_is_better=metric.higher_is_better)
        | {"interval": None}
        for measure, metric in METRICS.items()
        if measure in scores
    }


def over_clients(scores: Array, sizes: Array, *, higher_is_better: bool) -> Figures:
    """Summarize a measure of shape (seeds, clients): compute each figure per seed, then average over the seeds."""
    seeds = [
        summarize(one, sizes, higher_is_better)
        | {"largest_decile": spread.largest_decile(one, sizes), "smallest_decile": spread.smallest_decile(one, sizes)}
        for one in scores
    ]
    found: Figures = {name: _mean([one[name] for one in seeds]) for name in seeds[0]}
    return found | {"sem": standard_error(np.array([one["mean"] for one in seeds], dtype=np.float64))}


def _fairness(scores: Array) -> fairness.Measures | None:
    """Return the four measures of the clients' scores; None if one is below zero, as R² can be."""
    return None if (scores < 0).any() else fairness.measures(scores)


def _per_client(scores: Array) -> Array:
    """Return means over seeds, shape (clients,); NaN for a client without a value."""
    there = ~np.isnan(scores)
    total, count = np.where(there, scores, 0.0).sum(0), there.sum(0)
    means: Array = np.divide(total, count, out=np.full(scores.shape[1], np.nan), where=count > 0)
    return means


def _interval(scores: Array, measure: str = "") -> Interval | None:
    found = estimate(scores, level=LEVEL, bounds=(0.0, 1.0) if measure in SHARES else None)
    return None if found is None else found.interval


def _mean(values: Any) -> float | None:
    """Return the mean of all values that are known; None and NaN are not."""
    array = np.asarray(values, dtype=np.float64)  # turns None into NaN
    known = array[~np.isnan(array)]
    return float(known.mean()) if known.size else None


def mean_work(runs: Sequence[Result]) -> dict[str, float | None] | None:
    """Return the mean work of runs, as in result.json; None if an earlier version did not count it."""
    found = [run.work for run in runs]
    known = [one for one in found if one is not None]
    if not known or len(known) < len(found):
        return None
    return {name: _mean([one[name] for one in known]) for name in known[0]}


def _times(runs: Sequence[Result]) -> dict[str, float | None] | None:
    found = [run.communication.get("model_time") for run in runs]
    if any(not isinstance(one, Mapping) for one in found):
        return None
    return {system.name: _mean([one[system.name] for one in found]) for system in SYSTEMS}  # type: ignore[index]
