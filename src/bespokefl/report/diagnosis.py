"""The page of a diagnosis: predicted gains, similar clients, and why a method is recommended."""

import json
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from bespokefl.core.errors import InputError
from bespokefl.metrics.metric import METRICS
from bespokefl.report.curves import rounded
from bespokefl.report.figures import Figure, Section, make_figure
from bespokefl.report.method_figures import any_shared, collaboration_map
from bespokefl.report.overview import Card
from bespokefl.report.rendering import render

SOURCE_NAME, FILE_NAME, FORMAT = "diagnosis.json", "diagnosis.html", "bespoke-diagnosis-1"
GROUPED = ("groups", "partly")  # values of "likeness" with more than one group
DIFFERENCES = {
    "label": ("Label skew", "distance between the class distributions of clients, beyond chance"),
    "size": ("Size disparity", "Gini coefficient of the numbers of training examples"),
    "feature": ("Feature shift", "share of the variance within a class that lies between clients, with labels matched"),
    "concept": ("Concept shift", "the same with labels as they are, if matching the labels explains it"),
    "shift": ("Feature or concept shift", "the same, if labels are too skewed to distinguish the two"),
}


def read(file: Path) -> dict[str, Any]:
    """Return the contents of a diagnosis.json."""
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        reason = (error.strerror if isinstance(error, OSError) else None) or error
        raise InputError(f"expected a diagnosis in {str(file)!r}, which cannot be read: {reason}.") from None
    if not isinstance(found, dict) or found.get("format") != FORMAT:
        raise InputError(f"expected a diagnosis in {str(file)!r}, got something else; bespoke diagnose writes one.")
    return found


def html(diagnosis: Mapping[str, Any]) -> str:
    """Return the page of a diagnosis."""
    about, figures = diagnosis["about"], _figures(diagnosis)
    heading = f"{about['data']}, {about['split']}"
    numbers = {
        "percent": False,
        "higher": True,
        **{key: [] for key in ("methods", "references", "shown")},  # page.js expects them
        "clients": [one["name"] for one in diagnosis["clients"]],
        "sizes": [one["examples"] for one in diagnosis["clients"]],
        "parts": {one.key: one.data for one in figures if one.data},
    }
    return render(
        "diagnosis.html",
        f"Diagnosis: {heading}",
        numbers,
        diagnosis=diagnosis,
        about=about,
        heading=heading,
        facts=[(name, about[name]) for name in ("data", "split", "clients", "model")]
        + [("steps of each fit", about["steps"]), ("seed", about["seed"])],
        cards=_cards(diagnosis),
        kinds=DIFFERENCES,
        section=Section("Who resembles whom", "", figures),
        clients=_clients(diagnosis),
        grouped=diagnosis["likeness"] in GROUPED,
        trials=diagnosis.get("trials"),
        command=_command(about),
    )


def _cards(diagnosis: Mapping[str, Any]) -> list[Card]:
    advised, sentences = diagnosis["recommendation"], diagnosis["sentences"]
    differences = ", ".join(DIFFERENCES[name][0].lower() for name in diagnosis["present"]).capitalize()
    return [
        Card("Recommended", advised["method"], advised["flags"], " ".join(advised["reasons"])),
        _gain_card(diagnosis),
        Card("How clients differ", differences or "Not at all", "", sentences[0]),
    ]


def _gain_card(diagnosis: Mapping[str, Any]) -> Card:
    """Return the predicted gain; without trials, and in diagnoses of earlier versions, nothing is predicted."""
    trials = diagnosis.get("trials")
    if trials is None:
        return Card("Predicted gain", "unknown", "", "No trials were made, so that no gain in accuracy is predicted.")
    federated = [one for one in trials["candidates"] if one["gain"] is not None]
    best = max(federated, key=lambda one: one["gain"])
    metric = trials["metric"]
    interval = (
        "" if best["low"] is None else f"95 % interval {_gain(best['low'], metric)} to {_gain(best['high'], metric)}"
    )
    text = (
        f"Mean {METRICS[metric].title} of the clients with {best['method']} minus that with Local, in trials of "
        f"{trials['rounds']} rounds, on held-out training and validation data."
    )
    if interval and trials.get("coverage"):
        text += f" The interval is too narrow: {trials['coverage']}."
    verdict = diagnosis["recommendation"].get("verdict")
    return Card("Predicted gain", _gain(best["gain"], metric), ", ".join(filter(None, (verdict, interval))), text)


def _gain(value: float | None, metric: str) -> str:
    """Return a gain as it is printed: in points for accuracies."""
    if value is None:
        return "–"
    return f"{100 * value:+.1f}" if METRICS[metric].percent else f"{value:+.3f}"


def _clients(diagnosis: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the clients by decreasing gain, with the bar of the variance ratio in percent, on a logarithmic scale."""
    ordered = sorted(diagnosis["clients"], key=lambda one: (-(one.get("predicted") or 0.0), -one["gain"]))
    largest = max(max(float(np.log(one["gain"])) for one in ordered), 1e-9)
    trials = diagnosis.get("trials")
    found = []
    for one in ordered:
        shown: dict[str, Any] = {"bar": 100 * float(np.log(one["gain"])) / largest}
        if trials is not None:
            names = ("predicted", "low", "high")
            shown |= {f"{name}_text": _gain(one[name], trials["metric"]) for name in names}
        found.append(one | shown)
    return found


def _figures(diagnosis: Mapping[str, Any]) -> list[Figure]:
    groups = np.array([one["group"] for one in diagnosis["clients"]])
    weights = np.array(diagnosis["collaboration"], dtype=np.float64)
    frames = " Frames: the groups that were found." if any_shared(groups) else ""
    figures = [collaboration_map("map", weights, groups, diagnosis["true_groups"], text="diagnosis_map", frames=frames)]
    if len(diagnosis["silhouettes"]) > 1:
        chosen = diagnosis["streams"] if diagnosis["likeness"] in GROUPED else None
        values = rounded(diagnosis["silhouettes"])
        data = {"values": values, "chosen": chosen, "noun": "groups", "verb": "are suggested"}
        figures.append(make_figure("silhouette", "groups", text="diagnosis_groups", data=data))
    survey = diagnosis["survey"]
    if survey is not None and len(survey["silhouettes"]) > 1:
        data = {"values": rounded(survey["silhouettes"]), "chosen": None, "noun": "streams"}
        figures.append(make_figure("silhouette", "survey", text="diagnosis_survey", data=data))
    data = {"name": "variance ratio", "values": rounded([one["gain"] for one in diagnosis["clients"]])}
    return [*figures, make_figure("latest", "gains", text="diagnosis_gains", data=data)]


def _command(about: Mapping[str, Any]) -> str:
    if "config" not in about:
        return "It was started from Python, by bespokefl.diagnose."
    options = about["config"] | {"steps": about["steps"], "lr": f"{about['lr']:g}"}
    options |= {name: about[name] for name in ("trial_rounds", "metric") if name in about}
    words = [word for name, value in options.items() for word in (f"--{name.replace('_', '-')}", str(value))]
    return shlex.join(["bespoke", "diagnose", *words])
