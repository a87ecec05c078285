"""The rounds of a run in columns: scores and cost so far, and what the method itself recorded."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from bespokefl.metrics.communication import SYSTEMS, times

Lines = Sequence[Mapping[str, Any]]

# Numbers of each round that are 0 before the first one.
ADDED_UP = ("trained", "reported", "up_bytes", "down_bytes", "down_streams", "up_models", "workload", "seconds")

COMMON_KEYS = {  # of every line of rounds.jsonl; all others are recorded by the method
    *("round", "phase", "trained", "reported", "up_bytes", "down_bytes", "down_streams", "up_models", "workload"),
    *("gradient_steps", "gradients", "head_gradients"),
    *("seconds", "personal", "global"),
}


def history(rounds: Lines, initial: Mapping[str, float | None] | None = None) -> dict[str, Any]:
    """Return the lines of rounds.jsonl in columns; bytes, time and seconds are cumulative.

    `initial` are the mean scores of the initial weights, of which round 0 consists; None or empty if they are unknown.
    """
    if initial and rounds:
        nothing = {name: 0 for name in rounds[0] if name in ADDED_UP}
        start = {
            "round": 0,
            "phase": None,
            "personal": initial,
            "global": initial if rounds[-1].get("global") else None,
        }
        rounds = [start | nothing, *rounds]

    def total(name: str) -> list[Any]:
        return list(np.cumsum([line.get(name, 0) for line in rounds]).tolist())

    def means(kind: str, measure: str) -> list[float | None]:
        return [(line.get(kind) or {}).get(measure) for line in rounds]

    scored = {name for line in rounds for kind in ("personal", "global") for name in line.get(kind) or {}}
    others = sorted(name for name in scored if name.startswith("test_") and name not in ("test_accuracy", "test_loss"))
    timed = all("down_streams" in line for line in rounds)  # else an earlier version wrote this run
    return {
        "round": [line["round"] for line in rounds],
        "phase": [line.get("phase") for line in rounds],
        "accuracy": means("personal", "test_accuracy"),
        "loss": means("personal", "test_loss"),
        **{name.removeprefix("test_"): means("personal", name) for name in others},
        "validation_accuracy": means("personal", "validation_accuracy"),
        "validation_loss": means("personal", "validation_loss"),
        "global_accuracy": means("global", "test_accuracy"),
        "global_loss": means("global", "test_loss"),
        **{f"global_{name.removeprefix('test_')}": means("global", name) for name in others},
        "up_bytes": total("up_bytes"),
        "down_bytes": total("down_bytes"),
        "model_time": {one.name: np.cumsum(times(rounds, one)).tolist() for one in SYSTEMS} if timed else None,
        "seconds": total("seconds"),
    }


def method_records(rounds: Lines, client_rounds: Lines, names: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Return what the method recorded in "rounds", and for "clients" in the order of `names`, None where it did not.

    Both map a name to the numbers of its rounds, "round", and to their "values".
    """
    of_rounds: dict[str, dict[int, Any]] = {}
    for line in rounds:
        for name in (name for name in line if name not in COMMON_KEYS):
            of_rounds.setdefault(name, {})[line["round"]] = line[name]
    position = {client: at for at, client in enumerate(names)}
    of_clients: dict[str, dict[int, list[Any]]] = {}
    for line in (line for line in client_rounds if line["client"] in position):
        for name in (name for name in line if name not in ("round", "client")):
            values = of_clients.setdefault(name, {}).setdefault(line["round"], [None] * len(position))
            values[position[line["client"]]] = line[name]
    return {
        kind: {name: {"round": list(values), "values": list(values.values())} for name, values in found.items()}
        for kind, found in {"rounds": of_rounds, "clients": of_clients}.items()
    }
