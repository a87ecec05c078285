"""A run's rounds as compare.json has them: in columns, thinned where there are many."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from bespokefl.metrics.communication import SYSTEMS, times
from bespokefl.workflows.results.result import Result

MOST_ROUNDS, MOST_NOTES = 400, 60  # rounds of a history, and of a method's own notes, that compare.json holds
# What every line of rounds.jsonl has; all else are the method's own notes.
EVERY_ROUND = {
    *("round", "phase", "trained", "reported", "up_bytes", "down_bytes", "down_streams", "up_models", "workload"),
    *("seconds", "personal", "global"),
}

Page = dict[str, Any]


def history(run: Result) -> Page:
    """A run's rounds in columns; what was sent, and how long it took, up to each of them."""
    rounds = run.rounds
    if len(rounds) > MOST_ROUNDS:
        scored = [at for at, line in enumerate(rounds) if "personal" in line]
        kept = _thinned(scored if len(scored) > 1 else range(len(rounds)), MOST_ROUNDS)
    else:
        kept = list(range(len(rounds)))

    def column(values: Sequence[Any]) -> list[Any]:
        return [values[at] for at in kept]

    def total(name: str) -> list[Any]:
        return column(np.cumsum([line[name] for line in rounds]).tolist())

    def means(kind: str, measure: str) -> list[float | None]:
        return column([(line.get(kind) or {}).get(measure) for line in rounds])

    known = all("down_streams" in line for line in rounds)
    return {
        "round": column([line["round"] for line in rounds]),
        "phase": column([line["phase"] for line in rounds]),
        "accuracy": means("personal", "test_accuracy"),
        "loss": means("personal", "test_loss"),
        "validation_accuracy": means("personal", "validation_accuracy"),
        "validation_loss": means("personal", "validation_loss"),
        "global_accuracy": means("global", "test_accuracy"),
        "global_loss": means("global", "test_loss"),
        "up_bytes": total("up_bytes"),
        "down_bytes": total("down_bytes"),
        "model_time": {one.name: column(np.cumsum(times(rounds, one)).tolist()) for one in SYSTEMS} if known else None,
        "seconds": total("seconds"),
    }


def own_notes(run: Result) -> Page | None:
    """What the method itself wrote down, by name: of rounds, and of rounds and clients."""
    of_rounds: dict[str, dict[int, Any]] = {}
    for line in run.rounds:
        for name, value in line.items():
            if name not in EVERY_ROUND:
                of_rounds.setdefault(name, {})[line["round"]] = value
    position = {client: at for at, client in enumerate(run.names)}
    of_clients: dict[str, dict[int, list[Any]]] = {}
    for row in run.client_rounds:
        for name, value in row.items():
            if name not in ("round", "client"):
                everybody = of_clients.setdefault(name, {}).setdefault(row["round"], [None] * len(position))
                everybody[position[row["client"]]] = value
    if not of_rounds and not of_clients:
        return None
    return {"rounds": _columns(of_rounds), "clients": _columns(of_clients)}


def _columns(found: Mapping[str, Mapping[int, Any]]) -> Page:
    kept = {name: _thinned(sorted(values), MOST_NOTES) for name, values in found.items()}
    return {name: {"round": rounds, "values": [found[name][at] for at in rounds]} for name, rounds in kept.items()}


def _thinned(values: Sequence[int], most: int) -> list[int]:
    """At most so many of them, evenly, the first and the last among them."""
    if len(values) <= most:
        return list(values)
    return [values[at] for at in np.linspace(0, len(values) - 1, most).round().astype(int)]
