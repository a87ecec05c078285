"""The cells of an experiment by scenario and row, with what tuning chose."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from bespokefl.metrics.spread import standard_error
from bespokefl_evidence.pages.scores import score
from bespokefl_evidence.studies.cells import Cell, CellStore
from bespokefl_evidence.studies.experiment import Experiment, Row, Scenario


@dataclass(frozen=True)
class Outcome:
    """The cells of a row in a scenario."""

    scenario: Scenario
    row: Row
    cells: list[Cell]  # in order of seeds, with the chosen hyper-parameters; none before tuning is complete
    total: int  # cells when all seeds are computed
    tuning: list[tuple[dict[str, Any], Cell | None]]  # the points of the grid
    chosen: dict[str, Any] | None  # None before tuning is complete, and without a grid

    @property
    def trained(self) -> list[Cell]:
        """The cells whose training did not diverge."""
        return [cell for cell in self.cells if "failed" not in cell.results]

    def mean(self, metric: str) -> tuple[float, float | None, int] | None:
        """Mean, standard error (None for one seed) and number of seeds of a figure; None without any."""
        found = [value for cell in self.trained if (value := score(cell, metric)) is not None]
        return (float(np.mean(found)), standard_error(found), len(found)) if found else None


def outcome(experiment: Experiment, scenario: Scenario, row: Row, store: CellStore) -> Outcome:
    """Collect the cells of a row in a scenario."""
    tuned = experiment.is_tuned(scenario, row, store)
    specs = experiment.main_specs(scenario, row, store)
    cells = [cell for one in specs if (cell := store.get(one)) is not None] if tuned else []
    points = [store.get(one) for one in experiment.tuning_specs(scenario, row)]
    return Outcome(
        scenario,
        row,
        cells,
        len(specs),
        list(zip(row.points(), points, strict=True)),
        experiment.choice(scenario, row, store) if tuned and row.grid else None,
    )


def outcomes(experiment: Experiment, store: CellStore) -> Iterator[Outcome]:
    """All rows of all scenarios."""
    for scenario, row in experiment.pairs():
        yield outcome(experiment, scenario, row, store)
