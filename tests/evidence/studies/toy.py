"""Small made-up experiments, and cells for them."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from bespokefl_evidence.studies.cells import CellStore, Spec
from bespokefl_evidence.studies.experiment import Experiment, Row, Scenario, Tuning
from bespokefl_evidence.studies.runner import Study

TOML = """
title = "Two methods on digits"
source = "Table 0"
data = "digits"
model = "logistic"
rounds = 2
seeds = 2
options = {batch_size = 50}
tuning = {rounds = 1, seed = 100}
differs = ["The digits are small."]
scenarios = [{name = "two", split = "classes(k=2)", clients = 5}]
rows = [
    {label = "Local", method = "local", set = {lr = 0.1}, published = {two = 90.0}},
    {label = "FedAvg", method = "fedavg", grid = {lr = [0.01, 0.1, 1e30]}, published = {two = 80.0}, priority = 2},
]
"""


def experiment(**changes: Any) -> Experiment:
    """The same as TOML, or with other values."""
    values: dict[str, Any] = {
        "name": "toy",
        "title": "Two methods on digits",
        "source": "Table 0",
        "data": "digits",
        "model": "logistic",
        "rounds": 2,
        "seeds": 2,
        "options": {"batch_size": 50},
        "tuning": Tuning(rounds=1),
        "scenarios": [Scenario("two", "classes(k=2)", clients=5)],
        "rows": [
            Row("Local", "local", set={"lr": 0.1}, published={"two": 90.0}),
            Row("FedAvg", "fedavg", grid={"lr": [0.01, 0.1, 1e30]}, published={"two": 80.0}, priority=2),
        ],
    }
    return Experiment(**(values | changes))


def compute_all(one: Experiment, store: CellStore, scratch: Path) -> None:
    """Compute all missing cells in this process."""
    while missing := [spec for spec in one.specs(store) if store.get(spec) is None]:
        for spec in missing:
            found = one.compute(spec, scratch / spec.file, None)
            assert found is not None
            store.put(spec, *found, version="0")


def invent_all(one: Study, store: CellStore, results: Callable[[Spec], dict[str, Any]]) -> None:
    """Store invented results as the cells of an experiment."""
    while missing := [spec for spec in one.specs(store) if store.get(spec) is None]:
        for spec in missing:
            store.put(spec, results(spec), 60.0, "0")


def invented(personal: Any, **more: Any) -> dict[str, Any]:
    """The results of a cell with these accuracies of the clients."""
    values = np.asarray(personal, dtype=np.float64)
    sizes = list(range(10, 10 + len(values)))
    curve = [[1, float(values.mean()) / 2, None], [2, float(values.mean()), None]]
    return {"sizes": {"train": sizes, "test": sizes}, "personal": values.tolist(), "curve": curve, **more}
