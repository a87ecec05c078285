"""Experiments: tables of methods × scenarios × seeds, read from papers/NAME.toml, and their computation.

An experiment has scenarios (data and split) and rows (a method with its settings and the published results). A row with
a `grid` is tuned first: every point of the grid is trained once, on a federation with a seed of its own and for
`tuning.rounds` rounds, and the point with the best validation accuracy is used for all seeds.
"""

import time
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from bespokefl import methods
from bespokefl.core.errors import TrainingError, unknown
from bespokefl.data.dataset import Dataset
from bespokefl.data.sources.loader import load
from bespokefl.engines.outcome import Progress
from bespokefl.engines.transports.processes import MachineError
from bespokefl.workflows.run.api import run
from bespokefl_evidence.studies.cell_results import results, tuning_results
from bespokefl_evidence.studies.cells import Cell, CellStore, Spec
from bespokefl_evidence.studies.detection import false_accepts
from bespokefl_evidence.studies.files import is_file, load_file
from bespokefl_evidence.studies.runner import Compute
from bespokefl_evidence.studies.warm_start import warm_start

PAPERS = Path(__file__).with_name("papers")
MORE_SEEDS = 4  # the priority of further seeds of rows whose own priority is 2 or 3


@dataclass(frozen=True)
class Scenario:
    """A federation of the experiment."""

    name: str
    split: str
    clients: int | None = None  # None: the number of the split
    fractions: Sequence[float] = (0.6, 0.2, 0.2)  # of train, validation and test data
    tuning_fractions: Sequence[float] | None = None  # for tuning, if `fractions` leave no validation data
    data: str | None = None  # instead of the experiment's
    model: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)  # settings of all runs in this scenario
    priority: int = 1


@dataclass(frozen=True)
class Row:
    """A method with its settings, and the published results by scenario, in percent."""

    label: str
    method: str
    rounds: int | Mapping[str, int] | None = None  # None: the experiment's
    set: Mapping[str, Any] = field(default_factory=dict)  # hyper-parameters
    options: Mapping[str, Any] = field(default_factory=dict)  # settings that differ from the experiment's
    grid: Mapping[str, Sequence[Any]] = field(default_factory=dict)  # hyper-parameters to choose on validation data
    together: bool = False  # the grid's lists are read side by side instead of combined
    tuning_set: Mapping[str, Any] = field(default_factory=dict)  # hyper-parameters that differ while tuning
    fractions: Sequence[float] | None = None  # for a method that needs validation data where the scenario has none
    published: Mapping[str, float] = field(default_factory=dict)  # personal accuracy
    published_global: Mapping[str, float] = field(default_factory=dict)
    published_worst: Mapping[str, float] = field(default_factory=dict)  # of the worst client or tenth, as in `also`
    published_false_accepts: Mapping[str, Sequence[float]] = field(default_factory=dict)  # "personal", "global"
    scenarios: Sequence[str] | None = None  # None: all
    priority: int = 1

    def points(self) -> list[dict[str, Any]]:
        """The points of the grid."""
        combined = zip(*self.grid.values(), strict=True) if self.together else product(*self.grid.values())
        return [dict(zip(self.grid, values, strict=True)) for values in combined] if self.grid else []


@dataclass(frozen=True)
class Tuning:
    """How the points of a grid are compared: the score is the mean validation accuracy of the personal models."""

    rounds: int
    seed: int = 100
    score: str = "personal"  # or "global", or "weighted": personal, by number of training examples
    scenario: str | None = None  # tune in this scenario only, and use the choice in all


@dataclass(frozen=True)
class Experiment:
    """A table of a paper."""

    name: str
    title: str
    source: str  # where in the paper
    data: str
    model: str
    rounds: int
    scenarios: Sequence[Scenario]
    rows: Sequence[Row]
    options: Mapping[str, Any] = field(default_factory=dict)
    seeds: int = 3
    tuning: Tuning | None = None
    weighted: bool = False  # means over clients are weighted by their numbers of training examples
    differs: Sequence[str] = ()  # known differences from the paper
    how_to_get: str = ""  # the data, if no registry has them
    curve_points: int = 10  # evaluations before the last one
    also: Sequence[str] = ()  # further columns of the table, by metric (scores.py), such as "worst"
    warm: Mapping[str, Any] = field(default_factory=dict)  # method, set and run: train the initial weights first
    detection: bool = False  # store false accepts relative to those of the initial weights

    @classmethod
    def read(cls, name: str) -> "Experiment":
        """Read the file of an experiment."""
        if name not in names():
            raise unknown("experiment", name, names(), see="bespoke reproduce")
        values = tomllib.loads((PAPERS / f"{name}.toml").read_text(encoding="utf-8"))
        scenarios, rows, tuning = values.pop("scenarios"), values.pop("rows"), values.pop("tuning", None)
        return cls(
            name=name,
            scenarios=[Scenario(**one) for one in scenarios],
            rows=[Row(**one) for one in rows],
            tuning=None if tuning is None else Tuning(**tuning),
            **values,
        )

    @property
    def summary(self) -> str:
        return self.title

    # -- what to compute

    def specs(self, store: CellStore) -> Iterator[Spec]:
        """All cells whose settings are known, in no particular order: the rest follows when tuning is done."""
        seen: set[str] = set()  # scenarios can share the cells of tuning
        for scenario, row in self.pairs():
            tuning = self.tuning_specs(scenario, row)
            yield from (one for one in tuning if one.file not in seen)
            seen |= {one.file for one in tuning}
            if self.is_tuned(scenario, row, store):
                yield from self.main_specs(scenario, row, store)

    def waiting(self, store: CellStore) -> Iterator[Spec]:
        """Cells whose hyper-parameters are not chosen yet, with those of the best point so far."""
        for scenario, row in self.pairs():
            if not self.is_tuned(scenario, row, store):
                yield from self.main_specs(scenario, row, store)

    def is_tuned(self, scenario: Scenario, row: Row, store: CellStore) -> bool:
        """Whether all points of the row's grid are computed."""
        return all(store.get(one) is not None for one in self.tuning_specs(scenario, row))

    def pairs(self) -> Iterator[tuple[Scenario, Row]]:
        """Every scenario with its rows."""
        for scenario in self.scenarios:
            for row in self.rows:
                if row.scenarios is None or scenario.name in row.scenarios:
                    yield scenario, row

    def tuning_specs(self, scenario: Scenario, row: Row) -> list[Spec]:
        """One cell for each point of the row's grid."""
        if not row.grid:
            return []
        assert self.tuning is not None
        if self.tuning.scenario is not None:
            scenario = self.scenario(self.tuning.scenario)
        rounds = min(self.tuning.rounds, self._rounds(scenario, row))
        made = []
        for point in row.points():
            fractions = scenario.tuning_fractions or scenario.fractions
            settings = self._settings(scenario, row, {**row.tuning_set, **point}, rounds, fractions)
            label = f"{row.label} tuning {' '.join(f'{key}={value}' for key, value in point.items())}"
            priority = max(scenario.priority, row.priority)
            made.append(Spec(self.name, scenario.name, label, self.tuning.seed, settings | {"tuning": True}, priority))
        return made

    def main_specs(self, scenario: Scenario, row: Row, store: CellStore) -> list[Spec]:
        """One cell for each seed, with the hyper-parameters chosen by tuning."""
        chosen, rounds = self.choice(scenario, row, store), self._rounds(scenario, row)
        settings = self._settings(scenario, row, chosen, rounds, row.fractions or scenario.fractions)
        priority = max(scenario.priority, row.priority)
        return [
            Spec(self.name, scenario.name, row.label, seed, settings, MORE_SEEDS if seed and priority > 1 else priority)
            for seed in range(self.seeds)
        ]

    def choice(self, scenario: Scenario, row: Row, store: CellStore) -> dict[str, Any]:
        """The point of the row's grid with the best validation score; the first of equals."""
        if not row.grid:
            return {}
        assert self.tuning is not None
        found = [store.get(one) for one in self.tuning_specs(scenario, row)]
        scores = [-np.inf if cell is None else self._validation_score(cell) for cell in found]
        return row.points()[int(np.argmax(scores))]

    def _validation_score(self, cell: Cell) -> float:
        assert self.tuning is not None
        value = cell.results.get("validation", {}).get(self.tuning.score)  # a diverged training has none
        return -np.inf if value is None else float(value)

    def scenario(self, name: str) -> Scenario:
        return next(one for one in self.scenarios if one.name == name)

    def row(self, label: str) -> Row:
        return next(one for one in self.rows if one.label == label)

    def _rounds(self, scenario: Scenario, row: Row) -> int:
        if row.rounds is None:
            return self.rounds
        return row.rounds if isinstance(row.rounds, int) else row.rounds[scenario.name]

    def _settings(
        self, scenario: Scenario, row: Row, point: Mapping[str, Any], rounds: int, fractions: Sequence[float]
    ) -> dict[str, Any]:
        special = {key: value for key, value in (("warm", self.warm), ("detection", self.detection)) if value}
        return {
            "data": scenario.data or self.data,
            "split": scenario.split,
            "clients": scenario.clients,
            "fractions": list(fractions),
            "method": row.method,
            "set": {**row.set, **point},
            "run": {
                "model": scenario.model or self.model,
                "rounds": rounds,
                **self.options,
                **scenario.options,
                **row.options,
            },
            **special,
        }

    # -- computation

    def compute_on(self, cluster: str) -> Compute:
        """A function that trains a cell on a worker of a Ray cluster."""
        return partial(self.compute, cluster=cluster)

    def compute(
        self,
        spec: Spec,
        scratch: Path,
        files: Path | None,
        progress: Callable[[Progress], None] | None = None,
        cluster: str = "none",
    ) -> tuple[dict[str, Any], float] | None:
        """Train a cell; returns its results and the seconds, or None if it was interrupted (and can be resumed)."""
        settings = spec.settings
        dataset = load_data(settings["data"], files, self.how_to_get)
        clients = dataset.split(
            settings["split"], clients=settings["clients"], seed=spec.seed, fractions=tuple(settings["fractions"])
        )
        tuning = settings.get("tuning", False)
        rounds = settings["run"]["rounds"]
        started = time.monotonic()
        try:
            start = warm_start(settings, clients, spec.seed, scratch, cluster) if "warm" in settings else None
            if start is None and "warm" in settings:
                return None
            before = time.monotonic() - started
            result = run(
                methods.build(settings["method"], dict(settings["set"])),
                clients,
                seed=spec.seed,
                eval_every=0 if tuning else max(1, rounds // self.curve_points),
                workers=1,
                cluster=cluster,
                start=start,
                checkpoint=scratch,
                progress=progress,
                **settings["run"],
            )
        except MachineError:  # a result of the cluster, and not of the cell
            raise
        except TrainingError as error:  # such as a learning rate that is too large
            return {"failed": str(error)}, time.monotonic() - started
        if result.interrupted:
            return None
        seconds = before + result.timing["seconds"]
        if tuning:
            return tuning_results(result), seconds
        found = results(result, clients, dataset)
        if settings.get("detection"):
            assert start is not None
            found["false_accepts"] = false_accepts(result, clients, start)
        return found, seconds


def names() -> list[str]:
    """The experiments that have a file."""
    return sorted(path.stem for path in PAPERS.glob("*.toml"))


def load_data(name: str, files: Path | None, how_to_get: str) -> Dataset:
    """Load data by name, or from a file that no registry has, in the directory of such files."""
    return load_file(name, files, how_to_get) if is_file(name) else load(name)
