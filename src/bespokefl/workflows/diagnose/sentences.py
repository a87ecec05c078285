"""A diagnosis in words."""

from typing import TYPE_CHECKING

import numpy as np

from bespokefl.core.errors import count
from bespokefl.metrics.metric import METRICS
from bespokefl.workflows.diagnose.recommendation import IN_GROUP, STAY, WITH_ALL, percent, show_score
from bespokefl.workflows.diagnose.similarity import ALIKE, GROUPS, PARTLY_GROUPED, SINGLE

if TYPE_CHECKING:
    from bespokefl.workflows.diagnose.result import Diagnosis


def of(found: "Diagnosis") -> list[str]:
    """Return how the clients differ, what the trials showed, and what averaging can do."""
    return [_differences(found), *_kinds(found), *_trials(found), _noise(found), *_survey(found)]


def _differences(found: "Diagnosis") -> str:
    share, surety = percent(found.share), found.surety
    if found.likeness == ALIKE:
        deviations = "" if surety is None else f", {surety:.1f} standard deviations from 0"
        return (
            f"The clients cannot be told apart: {share} of the variance of their models is between them, which is no "
            f"more than chance{deviations}."
        )
    deviations = "" if surety is None else f", {surety:.1f} standard deviations above chance"
    groups = f"They form {found.streams} groups, which explain {percent(found.explained)} of that"
    structure = {
        GROUPS: f"{groups}.",
        PARTLY_GROUPED: f"{groups}; members of a group differ, too.",
        SINGLE: "There are no clear groups: each client differs in its own way.",
    }[found.likeness]
    return f"{share} of the variance of their models is between clients{deviations}. {structure}"


def _kinds(found: "Diagnosis") -> list[str]:
    known, by_class = found.details, found.details.get("as_labelled") is not None
    share = {name: percent(value) for name, value in found.kinds.items()}
    sentences = {
        "label": f"Label skew: {share['label']} of the targets' variance is between clients.",
        "size": f"Size disparity: from {known['smallest']:.0f} to {known['largest']:.0f} training examples, Gini "
        f"{known['size_gini']:.2f}.",
        "feature": f"Feature shift: {share['feature']} of the inputs' variance is between clients.",
        "concept": "Concept shift: the inputs are alike, but what is learnt from them is not.",
        "shift": f"Feature or concept shift: {share['shift']} of the variance within a class is between clients, but "
        "labels are too skewed to tell whether inputs look different or have different labels.",
    }
    if known.get("label_distance") is not None:
        sentences["label"] = (
            f"Label skew: the label distributions of two clients differ by {known['label_distance']:.2f} on average; "
            f"by chance it would be {known['label_distance_by_chance']:.2f}."
        )
    if by_class:
        sentences["feature"] = (
            f"Feature shift: {share['feature']} of the variance within a class is between clients, even if labels are "
            "matched as well as possible: the same classes look different."
        )
        sentences["concept"] = (
            f"Concept shift: {percent(known['as_labelled'])} of the variance within a class is between clients, and "
            f"{percent(known['as_matched'])} once labels are matched: similar inputs have different labels."
        )
    listed = [sentence for name, sentence in sentences.items() if name in found.present]
    return listed or ["There is no notable label skew, size disparity, feature shift or concept shift."]


def _trials(found: "Diagnosis") -> list[str]:
    trials = found.trials
    if trials is None:
        return ["No trials were made: what federating gives in accuracy is not predicted."]
    listed = [
        f"{one.method} "
        + ("diverged" if one.score is None else f"{show_score(one.score, trials.metric)} (lr {one.lr:g})")
        for one in trials.candidates
    ]
    advice = [one.advice for one in found.clients if one.predicted is not None]
    better, worse = len([one for one in advice if one in (WITH_ALL, IN_GROUP)]), advice.count(STAY)
    rest = len(found.clients) - len(advice)
    return [
        f"Trials of {count(trials.rounds, 'round')} with {trials.steps} local steps, judged on held-out data, mean "
        f"{METRICS[trials.metric].title} of the clients: {', '.join(listed)}.",
        f"With {trials.rival.method} instead of Local, {better} of {count(len(advice), 'client')} would be better off "
        f"and {worse} worse off beyond noise; for {len(advice) - better - worse} it is too close to call"
        + (f", and {rest} had too few examples to tell." if rest else "."),
    ]


def _noise(found: "Diagnosis") -> str:
    low, middle, high = np.quantile(found.gains, [0.1, 0.5, 0.9])
    return (
        f"Averaging with similar clients can shrink the variance of a model by a factor of {middle:.2f} (median), from "
        f"{low:.2f} (10th percentile) to {high:.2f} (90th). This is about noise only and promises no accuracy."
    )


def _survey(found: "Diagnosis") -> list[str]:
    survey = found.survey
    if survey is None:
        return []
    best = max((one for one in survey.silhouettes if one is not None), default=0.0)
    return [
        f"User-Centric FL's own rule, on gradients at the initial weights, would take "
        f"{count(survey.streams, 'stream')} (silhouette {best:.2f}); suggested here: {found.streams}."
    ]
