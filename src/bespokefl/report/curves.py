"""The numbers of curves: the score of each evaluated round, rounded, which keeps the page small."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from bespokefl.metrics import standard_error
from bespokefl.report.document import Document, finished_runs

MAX_CURVE_POINTS = 150
MAX_LINES = 40  # clients with a line of their own


def rounded(values: Any, percent: bool = False) -> Any:
    """Round to two decimals of a percentage, or to five significant digits; return None for what is not finite."""
    if isinstance(values, np.ndarray | list | tuple):
        return [rounded(one, percent) for one in values]
    if values is None or not np.isfinite(values):
        return None
    short = round(100 * float(values), 2) if percent else float(f"{values:.5g}")
    return int(short) if short == int(short) else short


def followed_score(methods: Sequence[Document], score: str) -> str:
    """Return the score that curves show: the one compared, or accuracy or loss if only these were evaluated."""
    histories = [run["history"] for method in methods for run in finished_runs(method) if run.get("history")]
    known = [name for name in (score, "accuracy", "loss") if any(any_known(one.get(name)) for one in histories)]
    return known[0] if known else score


def any_known(values: Sequence[Any] | None) -> bool:
    """Return whether there is a value that is not None."""
    return any(value is not None for value in values or ())


def level_line(
    constant: Mapping[str, Any], score: str, percent: bool, curves: Sequence[Mapping[str, Any] | None]
) -> dict[str, Any] | None:
    """Return the score of the constant predictors as a curve over all rounds, which sends nothing."""
    known = [one for one in curves if one is not None]
    mean = (constant["figures"].get(score) or {}).get("mean")
    if not known or mean is None:
        return None
    ends = [min(one["round"][0] for one in known), max(one["round"][-1] for one in known)]
    value = rounded(mean, percent)
    times = [None] * len(known[0]["time"])
    return {"round": ends, "mean": [value, value], "sem": [None, None], "bytes": [0, 0], "time": times}


def client_curves(method: Mapping[str, Any], percent: bool) -> dict[str, Any] | None:
    """Return the score of every client in the evaluated rounds: of some clients, and quantiles of all of them."""
    found = method.get("client_curves")
    if not found or len(found["round"]) < 2:
        return None
    values = np.array(found["values"], dtype=np.float64)
    tested = np.flatnonzero(~np.isnan(values).any(0))
    if not len(tested):
        return None
    drawn = tested[np.unique(np.linspace(0, len(tested) - 1, min(len(tested), MAX_LINES)).round().astype(int))]
    return {
        "round": found["round"],
        "bands": [rounded(np.quantile(values[:, tested], share, axis=1), percent) for share in (0.1, 0.5, 0.9)],
        "clients": drawn.tolist(),
        "values": rounded(values[:, drawn].T, percent),
    }


def curve(method: Mapping[str, Any], score: str, percent: bool, systems: Sequence[str]) -> dict[str, Any] | None:
    """Return the score of each evaluated round, averaged over seeds, with its standard error and its cost so far."""
    histories = [run["history"] for run in finished_runs(method) if run.get("history")]
    evaluated: dict[int, list[tuple[int, int]]] = {}  # round -> positions as (history, index)
    for which, history in enumerate(histories):
        for index, (number, value) in enumerate(zip(history["round"], history[score], strict=True)):
            if value is not None:
                evaluated.setdefault(number, []).append((which, index))
    if not evaluated:
        return None
    rounds = sorted(evaluated)
    if len(rounds) > MAX_CURVE_POINTS:
        rounds = [rounds[k] for k in np.unique(np.linspace(0, len(rounds) - 1, MAX_CURVE_POINTS).round().astype(int))]

    def per_round(columns: Sequence[Sequence[float]]) -> list[list[float]]:
        return [[columns[which][index] for which, index in evaluated[number]] for number in rounds]

    def column(name: str) -> list[list[float]]:
        return per_round([history[name] for history in histories])

    values = column(score)
    sent = [np.add(up, down).mean() for up, down in zip(column("up_bytes"), column("down_bytes"), strict=True)]
    timed = all(history.get("model_time") for history in histories)
    times = [
        [float(np.mean(one)) for one in per_round([history["model_time"][system] for history in histories])]
        for system in (systems if timed else [])
    ]
    return {
        "round": rounds,
        "mean": rounded([float(np.mean(one)) for one in values], percent),
        "sem": rounded([standard_error(one) for one in values], percent),
        "bytes": [round(float(one)) for one in sent],
        "time": rounded(times) if timed else [None] * len(systems),
    }
