"""Check `bespoke compare`: do its verdicts agree with those of a search that tries far more?

For every scenario there are three kinds of cells, and one more for comparisons of all methods:

compare    `bf.compare`, with its own budget, grids, schedule and seeds
search     validation scores of all points of a large grid, of one method and one number of local epochs
best       test scores of the point that the search chose: within the comparison's local epochs, or with more
all        `bf.compare` of all registered methods, which shows whether the default grids suit them
"""

import os
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from bespokefl import methods, models
from bespokefl.core.errors import TrainingError
from bespokefl.core.task import Task
from bespokefl.data.clients import Clients
from bespokefl.data.preprocessing.fit import prepare
from bespokefl.data.sources.loader import load
from bespokefl.engines.settings import Settings
from bespokefl.engines.simulation import Simulation
from bespokefl.workflows.compare.api import compare
from bespokefl.workflows.compare.candidates import GRIDS
from bespokefl.workflows.compare.result import Comparison
from bespokefl.workflows.run.api import run
from bespokefl.workflows.run.convert import engine_data
from bespokefl.workflows.tune import schedule
from bespokefl_evidence.studies.cells import Cell, CellStore, Spec
from bespokefl_evidence.studies.files import by_execution, is_file, load_file

FILE = Path(__file__).with_suffix(".toml")
NAME = "compare-check"
DIGITS = 5  # of stored scores
SAME, MORE = "same work", "more work"  # what the search may use
EARLIER = "earlier"  # the comparison without a budget

Point = dict[str, Any]


@dataclass(frozen=True)
class Scenario:
    """A federation on which methods are compared."""

    name: str
    title: str
    about: str
    data: str
    metric: str
    settings: Mapping[str, Any]  # of all runs
    priority: int

    @property
    def epochs(self) -> int:
        epochs: int = self.settings["local_epochs"]
        return epochs


@dataclass(frozen=True)
class AllMethods:
    """Clients on which all methods are compared."""

    name: str
    title: str
    data: str
    split: str
    clients: int
    metric: str
    settings: Mapping[str, Any]
    tune: str = ""  # the time for tuning; by default that of the study
    smaller: str = ""  # what a smaller comparison found, until this one is computed
    without: Sequence[str] = ()  # methods that do not take part


@dataclass(frozen=True)
class CompareCheck:
    """The study; its settings are in compare_check.toml."""

    summary: str
    methods: Sequence[str]
    seeds: int
    all_methods_seeds: int
    all_names: Sequence[str]
    search_seeds: int
    tune: str
    more_epochs: int
    how_to_get: str
    scenarios: Sequence[Scenario]
    all_methods: Sequence[AllMethods]
    grids: Mapping[str, Mapping[str, Sequence[Any]]]
    earlier: Mapping[str, Any]
    name: str = NAME

    @classmethod
    def read(cls) -> "CompareCheck":
        """Read the settings of the study."""
        values = tomllib.loads(FILE.read_text(encoding="utf-8"))
        scenarios = values.pop("scenarios").items()
        return cls(
            scenarios=[Scenario(name, **one, priority=at) for at, (name, one) in enumerate(scenarios, 1)],
            all_methods=[AllMethods(**one) for one in values.pop("all_methods")],
            **values,
        )

    # -- what to compute

    def specs(self, store: CellStore) -> Iterator[Spec]:
        """All cells whose settings are known: those of the best points follow when a search is complete."""
        yield from map(self.all_spec, self.all_methods)
        for scenario in self.scenarios:
            yield self.compare_spec(scenario)
            if scenario.name == self.earlier["scenario"]:
                yield self.earlier_spec(scenario)
            for method in self.methods:
                yield from self.search_specs(scenario, method, MORE)
                yield from (one for work in (SAME, MORE) if (one := self.best_spec(scenario, method, work, store)))

    def waiting(self, store: CellStore) -> Iterator[Spec]:
        """Cells of the best points of searches that are not complete yet."""
        for scenario, method, work in product(self.scenarios, self.methods, (SAME, MORE)):
            if self.best_spec(scenario, method, work, store) is None:
                yield self._spec(scenario, f"best {method} {work}", {"run": scenario.settings, "seeds": self.seeds})

    def compare_spec(self, scenario: Scenario) -> Spec:
        """The comparison as a user gets it."""
        grids = {name: GRIDS[name] for name in self.methods}  # a change of the grids makes it out of date
        own = {"run": scenario.settings, "seeds": self.seeds, "tune": self.tune, "grids": grids, "budget": "steps"}
        own["tuning_seeds"] = schedule.SEEDS
        return self._spec(scenario, "compare", own | {"methods": list(self.methods)})

    def all_spec(self, one: AllMethods) -> Spec:
        """The comparison of all methods on some data."""
        settings = {"data": one.data, "split": one.split, "clients": one.clients, "metric": one.metric}
        names = [name for name in self.all_names if name not in one.without]
        grids = {name: GRIDS[name] for name in names}
        own = {"run": one.settings, "seeds": self.all_methods_seeds, "tune": one.tune or self.tune, "grids": grids}
        own |= {"budget": "steps", "methods": names, "tuning_seeds": schedule.SEEDS}
        return Spec(self.name, f"all methods, {one.name}", "all", 0, settings | own, len(self.scenarios))

    def earlier_spec(self, scenario: Scenario) -> Spec:
        """The comparison without a budget, with small grids."""
        settings = {**scenario.settings, "local_epochs": self.earlier["local_epochs"]}
        own = {"run": settings, "budget": "none", "tune": self.tune}
        return self._spec(scenario, EARLIER, own | {key: self.earlier[key] for key in ("seeds", "grids", "methods")})

    def search_specs(self, scenario: Scenario, method: str, work: str) -> list[Spec]:
        """The cells of a search: one for each number of local epochs."""
        found = []
        epochs = [max(1, scenario.epochs // 2), scenario.epochs]
        for number in dict.fromkeys([*epochs, *[self.more_epochs * scenario.epochs] * (work == MORE)]):
            run = {**scenario.settings, "local_epochs": number}
            own = {"run": run, "method": method, "grid": self.grids[method], "seeds": self.search_seeds}
            later = len(self.scenarios) * (number > scenario.epochs)  # the same work comes first
            found.append(self._spec(scenario, f"search {method} epochs={number}", own, later))
        return found

    def best_spec(self, scenario: Scenario, method: str, work: str, store: CellStore) -> Spec | None:
        """The cell of the point that a search chose; None before it is complete."""
        chosen = self.choice(scenario, method, work, store)
        if chosen is None:
            return None
        epochs = chosen.pop("local_epochs")
        own = {"run": {**scenario.settings, "local_epochs": epochs}, "method": method, "set": chosen}
        later = len(self.scenarios) * (work == MORE)
        return self._spec(scenario, f"best {method} {work}", own | {"seeds": self.seeds}, later)

    def choice(self, scenario: Scenario, method: str, work: str, store: CellStore) -> Point | None:
        """The point with the best mean validation score, with its local epochs; None before a search is complete."""
        found: list[tuple[float, Point]] = []
        for spec in self.search_specs(scenario, method, work):
            cell = store.get(spec)
            if cell is None:
                return None
            epochs = spec.settings["run"]["local_epochs"]
            for point, scores in zip(points(self.grids[method]), cell.results["validation"], strict=True):
                if scores is not None:
                    found.append((float(np.mean(scores)), {**point, "local_epochs": epochs}))
        return max(found, key=lambda one: one[0])[1]

    def best(self, scenario: Scenario, method: str, work: str, store: CellStore) -> Cell | None:
        """The test scores of the point that a search chose."""
        spec = self.best_spec(scenario, method, work, store)
        return None if spec is None else store.get(spec)

    def _spec(self, scenario: Scenario, row: str, own: Mapping[str, Any], later: int = 0) -> Spec:
        settings = {"data": scenario.data, "metric": scenario.metric, **own}
        return Spec(self.name, scenario.name, row, 0, settings, scenario.priority + later)

    # -- computation

    def compute(self, spec: Spec, scratch: Path, files: Path | None) -> tuple[dict[str, Any], float] | None:
        """Compute a cell; a comparison that was interrupted is resumed."""
        clients, started = self.clients(spec.settings, files), _processor_time()
        if "methods" in spec.settings:
            found = self._compare(spec, clients, scratch)
        elif "grid" in spec.settings:
            found = self._search(spec.settings, clients)
        else:
            found = self._best(spec.settings, clients)
        return None if found is None else (found, _processor_time() - started)

    def clients(self, settings: Mapping[str, Any], files: Path | None) -> Clients:
        """The clients of a scenario: whose files have executions, those of a person are kept together."""
        data = settings["data"]
        dataset = load_file(data, files, self.how_to_get) if is_file(data) else load(data)
        if "split" in settings:
            count = settings["clients"] if settings["split"] != "by_column" else None
            return dataset.split(settings["split"], clients=count, seed=0)
        return by_execution(dataset) if "execution" in dataset.columns else dataset.split("by_column", seed=0)

    def _compare(self, spec: Spec, clients: Clients, scratch: Path) -> dict[str, Any] | None:
        settings = spec.settings
        found = compare(
            settings["methods"],
            clients,
            seeds=settings["seeds"],
            tune=settings["tune"] if spec.row != EARLIER else False,
            budget=settings["budget"],
            grids=settings["grids"] if spec.row == EARLIER else None,
            metric=settings["metric"],
            out=scratch,
            workers=1,
            eval_every=0,
            **settings["run"],
        )
        return None if found.interrupted else comparison_results(found)

    def _search(self, settings: Mapping[str, Any], clients: Clients) -> dict[str, Any]:
        """Validation scores of all points; the seeds of a point are trained as one stack."""
        own = {key: value for key, value in settings["run"].items() if key not in ("model", "scale")}
        seeds = range(settings["seeds"])
        clients, _ = prepare(clients, scale=settings["run"].get("scale"))
        assert clients.classes is not None
        factory = models.build(settings["run"]["model"], clients.shape, clients.classes)
        tasks = [Task(factory, seed=seed) for seed in seeds]
        data, each = engine_data(clients), Settings(**own, workers=1, record=False)
        scores: list[list[float] | None] = []
        for point in points(settings["grid"]):
            method = methods.build(settings["method"], point)
            stack = [replace(each, seed=seed) for seed in seeds]
            try:
                outcomes = Simulation(
                    method, tasks[0], [data] * len(seeds), stack, clients.classes, [task.start for task in tasks]
                ).run_all()
            except TrainingError:  # such as a learning rate that is too large
                scores.append(None)
                continue
            means = [_mean(one.personal[f"validation_{settings['metric']}"].numpy()) for one in outcomes]
            scores.append(means if np.isfinite(means).all() else None)
        return {"validation": scores}

    def _best(self, settings: Mapping[str, Any], clients: Clients) -> dict[str, Any] | None:
        scores, work = [], []
        for seed in range(settings["seeds"]):
            method = methods.build(settings["method"], dict(settings["set"]))
            result = run(method, clients, seed=seed, workers=1, eval_every=0, **settings["run"])
            if result.interrupted:
                return None
            assert result.work is not None
            scores.append(_rounded(result.personal[settings["metric"]]))
            work.append(result.work["gradients"])
        return {"scores": scores, "gradients": float(np.mean(work))}


def points(grid: Mapping[str, Sequence[Any]]) -> list[Point]:
    """All points of a grid."""
    return [dict(zip(grid, values, strict=True)) for values in product(*grid.values())]


def comparison_results(found: Comparison) -> dict[str, Any]:
    """What is stored of a comparison."""
    entries = {}
    for name, entry in found.entries.items():
        scores, figures, tuned = found.scores(name), found.figures[name], entry.tuned or {}
        entries[name] = {
            "scores": None if scores is None else [_rounded(one) for one in scores],
            "gradients": None if figures is None else figures["work"]["gradients"],
            "chosen": {key: value for key, value in tuned.get("chosen", {}).items() if key != "rounds"},
            "points": len(tuned.get("points", [])),
            "edge": tuned.get("edge", []),
        }
    tuning = found.metadata.tuning or {}
    return {"methods": entries, "verdict": found.best.sentence, "best": found.best.method, "tuning": tuning}


def _rounded(values: np.ndarray) -> list[float | None]:
    return [None if np.isnan(value) else round(float(value), DIGITS) for value in values]


def _mean(values: np.ndarray) -> float:
    return round(float(np.nanmean(values)), DIGITS)


def _processor_time() -> float:
    """The processor time of this process and of its children that have ended."""
    return sum(os.times()[:4])
