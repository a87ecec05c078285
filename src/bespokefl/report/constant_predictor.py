"""The constant predictor of a page, majority class or mean value, in the format of a method."""

from typing import Any

import numpy as np

from bespokefl.metrics import fairness, improvement
from bespokefl.report.document import Document, finished_runs


def constant_method(document: Document) -> Document | None:
    """Return the constant predictors in the format of a method; None if they are unknown or have no such score."""
    constant, score = document.get("constant"), document["score"]
    if constant is None or (constant["figures"].get(score) or {}).get("mean") is None:
        return None
    known = ("gain", "fairness", "p_value", "adjusted", "difference", "up_bytes", "down_bytes", "model_time", "seconds")
    gains = _gains(document, constant["personal"][score])
    run = {"failed": None, "personal": constant["personal"], "gain": None}
    return {
        "name": constant["name"],
        "method": None,
        "about": "knows each client's training labels but no features",
        "baseline": False,
        "constant": True,
        "figures": dict.fromkeys(known) | {"best": False, "tie": False} | _gain_figures(gains) | constant["figures"],
        "runs": [run | {"gain": one} for one in gains] or [run],
    }


def _gains(document: Document, scores: list[float | None]) -> list[list[float]]:
    """Return each client's gain over Local and FedAvg, one list per seed that both have; empty if one is missing."""
    baselines = {
        method["method"]: {run["seed"]: run["personal"][document["score"]] for run in finished_runs(method)}
        for method in document["methods"]
        if method["baseline"] and document["kind"] == "comparison" and method["figures"] is not None
    }
    if not baselines.keys() >= {"local", "fedavg"}:
        return []
    local, common = baselines["local"], baselines["fedavg"]
    own = np.array(scores, dtype=np.float64)
    return [
        improvement.quantum(
            own,
            np.array(common[seed], float),
            np.array(local[seed], float),
            higher_is_better=document["higher_is_better"],
        ).tolist()
        for seed in sorted(local.keys() & common.keys())
    ]


def _gain_figures(gains: list[list[float]]) -> dict[str, Any]:
    if not gains:
        return {}
    values = np.array(gains)
    shares = {one.__name__: one(values) for one in (improvement.improved_share, improvement.decreased_share)}
    per_client = np.ma.masked_invalid(values).mean(0).filled(np.nan)
    return {"gain": shares, "fairness": {"score": None, **fairness.of_gains(per_client)}}
