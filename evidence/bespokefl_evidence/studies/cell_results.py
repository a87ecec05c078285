"""What a cell stores of a run."""

from typing import Any

import numpy as np
import torch

from bespokefl.data.clients import Clients
from bespokefl.data.dataset import Dataset
from bespokefl.workflows.results.result import Result
from bespokefl_evidence.studies.detection import prepared

TEST_COLUMN = "test"
DIGITS = 5  # of stored scores


def tuning_results(result: Result) -> dict[str, Any]:
    """What is stored of a run for tuning: validation accuracy only, so that no choice can depend on test data."""
    sizes = result.sizes["train"]
    own = result.personal["validation_accuracy"]
    shared = None if result.global_ is None else result.global_["validation_accuracy"]
    return {
        "validation": {
            "personal": _mean(own, None),
            "weighted": _mean(own, sizes),
            "global": None if shared is None else _mean(shared, None),
        }
    }


def results(result: Result, clients: Clients, dataset: Dataset) -> dict[str, Any]:
    """What is stored of a run: scores of every client, learning curves and notes of the method."""
    found: dict[str, Any] = {
        "sizes": {part: result.sizes[part].tolist() for part in ("train", "test")},
        "personal": _rounded(result.personal["accuracy"]),
        "validation": tuning_results(result)["validation"],
        "communication": {key: result.communication[key] for key in ("up_bytes", "down_bytes")},
    }
    if result.global_ is not None:
        found["global"] = _rounded(result.global_["accuracy"])
        if TEST_COLUMN in dataset.columns:
            found["whole_test"] = whole_test_accuracy(result, clients, dataset)
    found["curve"] = [
        [
            line["round"],
            *(None if line[kind] is None else _short(line[kind]["test_accuracy"]) for kind in ("personal", "global")),
        ]
        for line in result.rounds
        if "personal" in line
    ]
    found["notes"] = _notes(result)
    if clients.groups is not None:
        found["groups"] = list(clients.groups)
    return found


def whole_test_accuracy(result: Result, clients: Clients, dataset: Dataset) -> float | None:
    """The accuracy of the global model on the whole official test set; None if clients trained on a part of it."""
    model, is_test = result.global_model(), dataset.columns[TEST_COLUMN]
    if model is None or dataset.classes is None or is_test[clients.original_parts[0].indices.numpy()].any():
        return None
    chosen = torch.from_numpy(np.flatnonzero(is_test))
    right = 0
    with torch.no_grad():
        for part in chosen.split(1000):
            right += int((model(prepared(result, dataset.x[part])).argmax(-1) == dataset.y[part]).sum())
    return round(right / len(chosen), DIGITS)


def _notes(result: Result) -> dict[str, Any]:
    """Figures that the method records: the last of each client, and the last of the server."""
    last: dict[str, dict[str, Any]] = {}
    for line in result.client_rounds:
        for key, value in line.items():
            if key not in ("round", "client"):
                last.setdefault(key, {})[line["client"]] = value
    found = {key: [_short(values.get(name)) for name in result.names] for key, values in last.items()}
    known = {"round", "phase", "trained", "reported", "lost", "up_bytes", "down_bytes", "down_streams", "up_models"}
    known |= {"workload", "seconds", "personal", "global"}
    server = {key: _short(value) for line in result.rounds for key, value in line.items() if key not in known}
    return {key: value for key, value in {"clients": found, "server": server}.items() if value}


def _short(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return [_short(one) for one in value]
    if isinstance(value, float):
        return float(f"{value:.5g}") if np.isfinite(value) else None
    return value


def _rounded(values: np.ndarray) -> list[float | None]:
    return [None if np.isnan(value) else round(float(value), DIGITS) for value in values]


def _mean(values: np.ndarray, weights: np.ndarray | None) -> float | None:
    known = ~np.isnan(values)
    if not known.any():
        return None
    return float(np.average(values[known], weights=None if weights is None else weights[known]))
