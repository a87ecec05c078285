"""Figures of a cell, such as the size-weighted accuracy or the accuracy of the worst client."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bespokefl_evidence.studies.cells import Cell

NO_VALUE = "–"  # in tables
Array = NDArray[np.float64]
Reduce = Callable[[Array, Array], Array]  # scores and sizes of clients, (…, M), to one number, (…)


@dataclass(frozen=True)
class Metric:
    """What is made of the scores of all clients."""

    title: str
    of: str  # the scores: a list in the results of a cell
    reduce: Reduce
    scale: float = 100.0  # of the printed number: per cent


def mean(values: Array, sizes: Array) -> Array:
    return np.asarray(values.mean(-1))


def weighted_mean(values: Array, sizes: Array) -> Array:
    return np.asarray((values * sizes).sum(-1) / sizes.sum(-1))


def worst(values: Array, sizes: Array) -> Array:
    return np.asarray(values.min(-1))


def worst_decile(values: Array, sizes: Array) -> Array:
    """The mean of the worst tenth of the clients, ⌈M/10⌉ of M."""
    return np.asarray(np.sort(values, -1)[..., : _tenth(values)].mean(-1))


def smallest_decile(values: Array, sizes: Array) -> Array:
    """The mean of the tenth of the clients with the fewest training examples."""
    order = np.argsort(sizes, -1, kind="stable")[..., : _tenth(values)]
    return np.asarray(np.take_along_axis(values, order, -1).mean(-1))


def largest_decile(values: Array, sizes: Array) -> Array:
    """The mean of the tenth of the clients with the most training examples."""
    return smallest_decile(values, -sizes)


def _tenth(values: Array) -> int:
    return -(-int(values.shape[-1]) // 10)


METRICS = {
    "personal": Metric("personal accuracy", "personal", mean),
    "weighted": Metric("personal accuracy, weighted by size", "personal", weighted_mean),
    "worst": Metric("worst client", "personal", worst),
    "worst_decile": Metric("worst tenth of clients", "personal", worst_decile),
    "smallest_decile": Metric("smallest tenth of clients", "personal", smallest_decile),
    "largest_decile": Metric("largest tenth of clients", "personal", largest_decile),
    "global": Metric("global model, mean over clients", "global", mean),
    "global_weighted": Metric("global model, weighted by size", "global", weighted_mean),
    "whole_test": Metric("global model on the whole test set", "whole_test", mean),
    "curve": Metric("mean personal accuracy over all evaluated rounds", "curve", mean),
    "own_group": Metric("weight on clients of the same group", "own_group", mean),
    "personal_error": Metric("1000 × error of the personal models", "personal", mean, 1000.0),
    "global_error": Metric("1000 × error of the global model", "global", mean, 1000.0),
}


def metric(name: str) -> Metric:
    """A metric by name; other names stand for the mean of a value that a cell has under this name."""
    return METRICS.get(name) or Metric(name.replace("_", " "), name, mean)


def clients(cell: Cell, of: str) -> tuple[Array, Array] | None:
    """The scores and the sizes of all clients, (M,), NaN where unknown; None if the cell has no such scores.

    A single number of a cell is returned as if there were one client.
    """
    derived: dict[str, Callable[[Cell], Any]] = {
        "curve": _curve_mean,
        "own_group": _own_group_weights,
        "uploaded_bytes": lambda cell: cell.results.get("communication", {}).get("up_bytes"),
        "false_accepts": lambda cell: cell.results.get("false_accepts", {}).get("global"),
        "personal_false_accepts": lambda cell: cell.results.get("false_accepts", {}).get("personal"),
    }
    values = derived[of](cell) if of in derived else cell.results.get(of)
    if values is None:
        return None
    array = np.atleast_1d(np.array(values, dtype=np.float64))
    sizes = np.array(cell.results.get("sizes", {}).get("train", []), dtype=np.float64)
    return array, sizes if len(sizes) == len(array) else np.ones(len(array))


def score(cell: Cell, name: str) -> float | None:
    """One figure of a cell; None if it has none."""
    found = clients(cell, metric(name).of)
    if found is None:
        return None
    values, sizes = found
    known = ~np.isnan(values)
    return float(metric(name).reduce(values[known], sizes[known])) if known.any() else None


def _curve_mean(cell: Cell) -> float | None:
    values = [line[1] for line in cell.results.get("curve", []) if line[1] is not None]
    return float(np.mean(values)) if values else None


def collaboration(cell: Cell) -> Array | None:
    """UCFL's matrix W, (M, M); None if the method has none."""
    rows = cell.results.get("notes", {}).get("server", {}).get("collaboration")
    return None if rows is None else np.array(rows, dtype=np.float64)


def _own_group_weights(cell: Cell) -> list[float] | None:
    """The share of each client's row of W that falls on the clients of its true group."""
    weights, groups = collaboration(cell), cell.results.get("groups")
    if weights is None or groups is None:
        return None
    same = np.array([[one == other for other in groups] for one in groups])
    return [float(one) for one in (weights * same).sum(1)]
