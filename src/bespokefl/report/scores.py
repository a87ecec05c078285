"""Scores and gains of each client, averaged over the seeds of a method."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from bespokefl.report.document import Document


def finished_runs(method: Mapping[str, Any]) -> list[Document]:
    """Return the runs of a method that have not failed."""
    return [run for run in method["runs"] if not run.get("failed")]


def client_scores(method: Mapping[str, Any], score: str) -> np.ndarray:
    """Return each client's score, averaged over seeds; NaN where there is none."""
    return _mean_over_seeds([run["personal"][score] for run in finished_runs(method)])


def client_gains(method: Mapping[str, Any]) -> np.ndarray | None:
    """Return each client's gain, averaged over seeds; None if the method was not compared with a baseline."""
    gains = [run["gain"] for run in finished_runs(method) if run.get("gain") is not None]
    return _mean_over_seeds(gains) if gains else None


def oriented(scores: Sequence[np.ndarray], higher_is_better: bool) -> np.ndarray:
    """Stack scores, (methods, clients), so that higher is better and a missing one is -inf."""
    stacked = np.stack(scores) if higher_is_better else -np.stack(scores)
    return np.where(np.isnan(stacked), -np.inf, stacked)


def to_array(rows: Sequence[Sequence[float | None]]) -> np.ndarray:
    """Return rows as a float array, with NaN for None."""
    return np.array(rows, dtype=np.float64)


def _mean_over_seeds(rows: Sequence[Sequence[float | None]]) -> np.ndarray:
    values = to_array(rows)
    present = ~np.isnan(values)
    count = present.sum(0)
    mean = np.full(values.shape[1], np.nan)
    np.divide(np.where(present, values, 0.0).sum(0), count, out=mean, where=count > 0)
    return mean
