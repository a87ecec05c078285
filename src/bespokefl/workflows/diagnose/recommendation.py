"""Which method a diagnosis recommends: by the trials, or without them by how the clients differ."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from bespokefl.metrics.metric import METRICS, SHARES
from bespokefl.workflows.diagnose.similarity import ALIKE, GROUPS, PARTLY_GROUPED
from bespokefl.workflows.diagnose.trials import COMMON, GROUPED, LOCAL, PERSONAL, TrialResult, Trials

if TYPE_CHECKING:
    from bespokefl.workflows.diagnose.result import Diagnosis

MIN_GAIN = 1.2  # variance ratio below which, without trials, federating is not worth the effort
MIN_WEIGHT_INSIDE = 0.9  # weight of W inside a client's group, for User-Centric FL to keep groups apart
MIN_POINTS = 0.01  # a share of 1: the lead over Local from which a federated method is named, if noise could explain it

STAY, IN_GROUP, WITH_ALL, CLOSE = "stay alone", "with its group", "with everybody", "too close to call"
VERDICTS = {  # by method
    LOCAL: STAY,
    COMMON: "one common model",
    PERSONAL: "personal models",
    **dict.fromkeys(GROUPED, "a model per group"),
}
SHIFTS = {"feature", "concept", "shift"}


@dataclass(frozen=True)
class Recommendation:
    """The recommended method, the reasons, and alternatives."""

    method: str
    hyper: dict[str, Any]
    reasons: tuple[str, ...]
    alternatives: tuple[str, ...]
    verdict: str | None = None  # of the trials: one of VERDICTS, or CLOSE

    @property
    def flags(self) -> str:
        """The method as arguments of `bespoke run`."""
        return " ".join([self.method, *(f"--set {name}={value}" for name, value in self.hyper.items())])


def recommend(found: "Diagnosis") -> Recommendation:
    """Return a method by the trials, or without them by the rules that docs/diagnose.md lists."""
    by_rule = recommend_by_rule(found)
    return by_rule if found.trials is None else _by_trials(found.trials, by_rule)


def _by_trials(trials: Trials, by_rule: Recommendation) -> Recommendation:
    """Recommend what did best on held-out data; the verdict says whether its lead over Local exceeds noise."""
    local, rival = trials.candidates[0], trials.rival
    assert rival.gain is not None and local.score is not None and rival.score is not None
    close = rival.low is None or rival.high is None or rival.low <= 0 <= rival.high
    least = MIN_POINTS if close and trials.metric in SHARES else 0.0
    chosen = rival if rival.gain > least else local
    verdict = CLOSE if close else VERDICTS[chosen.method]
    interval = "" if rival.low is None else f" ({show_interval(rival.low, rival.high, trials.metric)})"
    reasons = [
        f"On held-out training and validation data, {rival.method} has {show_score(rival.score, trials.metric)} and "
        f"Local {show_score(local.score, trials.metric)}, mean over clients; the gain is "
        f"{show_gain(rival.gain, trials.metric)}{interval}."
    ]
    if close:
        reasons.append(
            f"That is within noise: too close to call. {chosen.method} is named "
            + ("because Local needs nobody else." if chosen is local else "because it is ahead.")
        )
    elif chosen is local:
        reasons.append("Local wins: federating would leave the clients worse off, with all methods that were tried.")
    others = [one.method for one in _by_score(trials.candidates) if one.method != chosen.method]
    more = [one for one in (by_rule.method, *by_rule.alternatives) if one not in (chosen.method, *others)]
    return Recommendation(chosen.method, chosen.hyper, tuple(reasons), (*others[:2], *more[:1]), verdict)


def _by_score(candidates: Sequence[TrialResult]) -> list[TrialResult]:
    """Return the candidates that were judged, by decreasing gain; Local has gain 0."""
    return sorted((one for one in candidates if one.lr is not None), key=lambda one: -(one.gain or 0.0))


def group_methods(found: "Diagnosis") -> dict[str, dict[str, Any]]:
    """Return the methods for groups that are worth a trial, with their hyper-parameters; none without groups."""
    if found.likeness not in (GROUPS, PARTLY_GROUPED):
        return {}
    by_rule = recommend_by_rule(found)
    other = {by_rule.method: by_rule.hyper} if by_rule.method in GROUPED else {}
    return {"ucfl": {"streams": found.streams}, **other}


def show_score(value: float, metric: str) -> str:
    """Return a score as it is printed."""
    return f"{100 * value:.1f} %" if METRICS[metric].percent else f"{value:.3f}"


def show_gain(value: float | None, metric: str, unit: bool = True) -> str:
    """Return a gain as it is printed: points of accuracy, or units of another metric."""
    if value is None:
        return "–"
    if not METRICS[metric].percent:
        return f"{value:+.3f}"
    return f"{100 * value:+.1f}" + " points" * unit


def show_interval(low: float | None, high: float | None, metric: str) -> str:
    """Return the interval of a gain as it is printed."""
    return f"{show_gain(low, metric, unit=False)} to {show_gain(high, metric, unit=False)}"


def recommend_by_rule(found: "Diagnosis") -> Recommendation:
    """Return a method by how the clients differ, without trials."""
    shifted = bool(SHIFTS & set(found.present))
    if found.likeness == ALIKE:
        reasons = ["The clients differ no more than by chance: one model learns from all and serves all."]
        if "size" in found.present:
            reasons.append("Sizes differ a lot: clients with few examples gain most. Weights follow the examples.")
        return Recommendation("fedavg", {}, tuple(reasons), ("fedavg-ft", "persfl"))
    if float(np.median(found.gains)) < MIN_GAIN:
        reasons = [
            f"Half of the clients have a variance ratio below {MIN_GAIN:g}: they have little in common compared with "
            "what their own data show.",
            "To federate nevertheless, let every client fine-tune the global model.",
        ]
        return Recommendation("local", {}, tuple(reasons), ("persfl", "fedavg-ft"))
    if found.likeness in (GROUPS, PARTLY_GROUPED) and shifted:
        return _by_group(found)
    if "label" in found.present and not shifted:
        reason = (
            "Label distributions differ, but a class looks the same at all clients: they can learn features together, "
            "and each then tunes the global model to its own classes."
        )
    else:
        reason = "Each client differs in its own way: it needs a personal model that learns from a global one."
    return Recommendation("persfl", {}, (reason,), ("fedavg-ft", "ditto"))


def _by_group(found: "Diagnosis") -> Recommendation:
    num, survey = found.streams, found.survey
    explained = "" if found.explained is None else f", which explain {percent(found.explained)} of their differences"
    reasons = [f"The clients form {num} groups{explained}: train one model per group instead of one for all."]
    if survey is not None and survey.inside >= MIN_WEIGHT_INSIDE:
        reasons.append(
            f"User-Centric FL's survey gives {percent(survey.inside)} of the weight to a client's own group: it finds "
            "the groups."
        )
        return Recommendation("ucfl", {"streams": num}, tuple(reasons), ("ifca", "cfl"))
    if survey is not None:
        reasons.append(
            f"User-Centric FL's survey leaves only {percent(survey.inside)} of the weight in a client's own group: "
            "its gradients are too noisy here."
        )
    if "concept" in found.present:
        reasons.append("Where labels mean different things, updates diverge, and clustered FL splits by that.")
        return Recommendation("cfl", {}, tuple(reasons), ("ifca", "persfl", "local"))
    reasons.append("The loss of each client shows which of several models fits its data: IFCA lets it choose.")
    return Recommendation("ifca", {"clusters": num}, tuple(reasons), ("cfl", "persfl"))


def percent(share: float | None) -> str:
    """Return a share as it is printed."""
    return f"{100 * (share or 0.0):.0f} %"
