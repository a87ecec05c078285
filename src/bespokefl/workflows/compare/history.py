"""The rounds of a run as columns for compare.json, thinned out if there are many."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from bespokefl.metrics.communication import SYSTEMS, times
from bespokefl.workflows.results.result import Result

MAX_ROUNDS, MAX_METHOD_ROUNDS = 400, 60  # kept in compare.json: of the history, and of what a method itself recorded
# Keys of every line of rounds.jsonl; all others are recorded by the method.
COMMON_KEYS = {
    *("round", "phase", "trained", "reported", "up_bytes", "down_bytes", "down_streams", "up_models", "workload"),
    *("seconds", "personal", "global"),
}


def history(run: Result) -> dict[str, Any]:
    """Return a run's rounds in columns; bytes, time and seconds are cumulative."""
    rounds = run.rounds
    scored = [at for at, line in enumerate(rounds) if "personal" in line]
    all_rounds = len(rounds) <= MAX_ROUNDS or len(scored) < 2
    kept = _thinned(range(len(rounds)) if all_rounds else scored, MAX_ROUNDS)

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


def method_records(run: Result) -> dict[str, Any] | None:
    """Return what the method itself recorded, by name: per round, and per round and client."""
    of_rounds: dict[str, dict[int, Any]] = {}
    for line in run.rounds:
        for name in (name for name in line if name not in COMMON_KEYS):
            of_rounds.setdefault(name, {})[line["round"]] = line[name]
    position = {client: at for at, client in enumerate(run.names)}
    of_clients: dict[str, dict[int, list[Any]]] = {}
    for row in run.client_rounds:
        for name in (name for name in row if name not in ("round", "client")):
            values = of_clients.setdefault(name, {}).setdefault(row["round"], [None] * len(position))
            values[position[row["client"]]] = row[name]
    if not of_rounds and not of_clients:
        return None
    return {"rounds": _columns(of_rounds), "clients": _columns(of_clients)}


def _columns(found: Mapping[str, Mapping[int, Any]]) -> dict[str, Any]:
    kept = {name: _thinned(sorted(values), MAX_METHOD_ROUNDS) for name, values in found.items()}
    return {name: {"round": rounds, "values": [found[name][at] for at in rounds]} for name, rounds in kept.items()}


def _thinned(values: Sequence[int], most: int) -> list[int]:
    """Keep at most this many values, evenly spaced, including the first and the last."""
    if len(values) <= most:
        return list(values)
    return [values[at] for at in np.linspace(0, len(values) - 1, most).round().astype(int)]
