"""Where personalization pays, and where it does not: four methods on handwritten digits and on Fashion-MNIST.

These are our own studies, not a paper's. The learning rate of every method and the epochs of Local are chosen by the
mean validation accuracy over the seeds; the tables show test accuracy of the last round. Claims have a slack of two
standard errors of the paired difference, which was fixed beforehand.
"""

import time
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor
from torch.nn.functional import avg_pool2d

from bespokefl import methods, models
from bespokefl.core import rng
from bespokefl.core.task import Task
from bespokefl.data.clients import Clients
from bespokefl.data.dataset import Dataset
from bespokefl.data.sources.loader import load
from bespokefl.engines.settings import Settings
from bespokefl.engines.simulation import Simulation
from bespokefl.workflows.run.convert import engine_data
from bespokefl_evidence.studies.cells import CellStore, Spec
from bespokefl_evidence.studies.summaries import mean_and_error, print_claims

FILE = Path(__file__).with_suffix(".toml")
BATCH_SIZE = 10
PART_RATES = (0.1,)  # of a smaller study
PRIORITY = 2
DIGITS = 5  # of stored accuracies
SET: Mapping[str, Mapping[str, Any]] = {  # stated, so that cells of earlier defaults count as missing
    "selffl": {"variance": "trace", "peers": "active"},
    "pfedvem": {"mean_head_lr": 0.1},
}
LR_NAMES = {"pfedvem": "base_lr"}  # all others: lr
EPOCHS = {"local": (1, 3)}  # all others: one
PERSONALIZED = ("selffl", "persfl", "ucfl", "pfedvem")
BASELINES = ("local", "fedavg")
METHODS = (*BASELINES, *PERSONALIZED)


@dataclass(frozen=True)
class Scenario:
    """A way to split images of ten classes over clients, and the expected order of methods."""

    name: str
    clients: Callable[[Dataset, int, int], Clients]  # from a data set, a number of clients and a seed
    claims: tuple[tuple[str, str], ...]  # (method, the method that it should beat)

    @property
    def methods(self) -> tuple[str, ...]:
        """The methods to run: those of the claims, and the baselines."""
        return tuple(name for name in METHODS if name in BASELINES or name in {method for method, _ in self.claims})


def _three(data: Dataset, count: int, seed: int) -> Clients:
    return data.split("classes(k=3)", clients=count, seed=seed)


def _few(data: Dataset, count: int, seed: int) -> Clients:
    """Use a third of the images, so that every client has few."""
    few = _sample(data, len(data) // 3, rng.generator(seed, "few digits"))
    return few.split("dirichlet(alpha=0.4)", clients=count, seed=seed)


def _sample(data: Dataset, count: int, generator: np.random.Generator) -> Dataset:
    chosen = torch.from_numpy(generator.permutation(len(data))[:count])
    return replace(data, x=data.x[chosen], y=data.y[chosen], columns={})


def _rotated(data: Dataset, count: int, seed: int) -> Clients:
    return _grouped(data, count, seed, lambda x, y, group: (torch.rot90(x, group, (-2, -1)), y))


def _permuted(data: Dataset, count: int, seed: int) -> Clients:
    tables = [torch.from_numpy(rng.generator(seed, "labels", g).permutation(10)) for g in range(4)]
    return _grouped(data, count, seed, lambda x, y, group: (x, tables[group][y]))


def _grouped(
    data: Dataset, count: int, seed: int, change: Callable[[Tensor, Tensor, int], tuple[Tensor, Tensor]]
) -> Clients:
    """Return i.i.d. clients in four groups whose images or labels are changed group by group."""
    order = rng.generator(seed, "groups").permutation(len(data.y))
    client = np.empty(len(data.y), dtype=np.int64)
    client[order] = np.arange(len(order)) % count
    x, y = data.x.clone(), data.y.clone()
    for group in range(4):
        own = torch.from_numpy(client % 4 == group)
        x[own], y[own] = change(x[own], y[own], group)
    return Clients.from_arrays(x, y, client=client, seed=seed, name=data.name)


SCENARIOS = (
    # three of the ten classes per client: a single global model must fail
    Scenario("classes", _three, tuple((method, "fedavg") for method in PERSONALIZED)),
    # about 20 training images per client: too few to learn without others
    Scenario("few", _few, tuple((method, "local") for method in ("selffl", "persfl", "pfedvem"))),
    # four groups of clients rotate their images by four angles
    Scenario("rotation", _rotated, (("ucfl", "local"),)),
    # four groups of clients name the classes differently
    Scenario("permuted", _permuted, (("ucfl", "local"),)),
)


@dataclass(frozen=True)
class PersonalizationStudy:
    """The scenarios on one data set."""

    name: str
    summary: str
    data: str
    model: str
    clients: int
    rounds: int
    seeds: int
    rates: Sequence[float]
    rates_of: Mapping[str, Sequence[float]] = field(default_factory=dict)  # for methods with other rates
    images: Mapping[str, int] = field(default_factory=dict)  # number drawn for a scenario; default: all
    shrink: int = 1  # images are average-pooled by this factor

    @classmethod
    def read(cls, name: str) -> "PersonalizationStudy":
        """Read the settings of a study."""
        return cls(name, **tomllib.loads(FILE.read_text(encoding="utf-8"))[name])

    def part(self) -> "PersonalizationStudy":
        """Return a smaller version: one learning rate."""
        return replace(self, rates=PART_RATES, rates_of={})

    def specs(self, store: CellStore) -> Iterator[Spec]:
        """A cell for each learning rate and number of epochs of a method in a scenario; it has all seeds."""
        for scenario in SCENARIOS:
            for name in scenario.methods:
                for rate in self.rates_of.get(name, self.rates):
                    for epochs in EPOCHS.get(name, (1,)):
                        settings = {"method": name, "rate": rate, "epochs": epochs, "batch_size": BATCH_SIZE}
                        settings |= {"data": self.data, "model": self.model, "clients": self.clients}
                        settings |= {"rounds": self.rounds, "seeds": self.seeds, "shrink": self.shrink}
                        settings |= {"images": self.images.get(scenario.name)}
                        settings |= {"set": dict(SET[name])} if name in SET else {}
                        row = f"{name}/lr={rate:g}, epochs={epochs}"
                        yield Spec(self.name, scenario.name, row, 0, settings, PRIORITY)

    def compute(self, spec: Spec, scratch: Path, files: Path | None) -> tuple[dict[str, Any], float]:
        """Train all seeds of a cell as one stack."""
        settings, started = spec.settings, time.monotonic()
        scenario = next(one for one in SCENARIOS if one.name == spec.scenario)
        found = self.accuracies(settings["method"], settings["rate"], settings["epochs"], self.federations(scenario))
        rounded = {part: [round(one, DIGITS) for one in values] for part, values in found.items()}
        return rounded, time.monotonic() - started

    def results(self, store: CellStore) -> dict[str, Any]:
        """The accuracies of all cells that are there, by "scenario/method/learning rate and epochs"."""
        cells = ((spec, store.get(spec)) for spec in self.specs(store))
        return {f"{spec.scenario}/{spec.row}": cell.results for spec, cell in cells if cell is not None}

    def show(self, store: CellStore, console: Console) -> None:
        """Print the table and check the claims; all cells must be there."""
        cells = self.results(store)
        console.print(_table(cells, self.seeds))
        print_claims(console, claims(cells))

    def federations(self, scenario: Scenario) -> list[Clients]:
        """Return the clients of a scenario for every seed, each with its own draw of images."""
        data = load(self.data)
        data = replace(data, x=avg_pool2d(data.x, self.shrink), known_fingerprint=None)
        count = self.images.get(scenario.name)
        pools = (
            data if count is None else _sample(data, count, rng.generator(seed, "pictures"))
            for seed in range(self.seeds)
        )
        return [scenario.clients(pool, self.clients, seed) for seed, pool in enumerate(pools)]

    def accuracies(self, name: str, rate: float, epochs: int, clients: list[Clients]) -> dict[str, list[float]]:
        """Return the mean personal accuracy of every seed on validation and test data; train all seeds as one stack."""
        method = methods.build(name, {**SET.get(name, {}), LR_NAMES.get(name, "lr"): rate})
        settings = Settings(rounds=self.rounds, batch_size=BATCH_SIZE, local_epochs=epochs)
        factory = models.build(self.model, clients[0].shape, 10)
        tasks = [Task(factory, seed=seed) for seed in range(len(clients))]
        data = [engine_data(one) for one in clients]
        seeds = [replace(settings, seed=seed) for seed in range(len(clients))]
        outcomes = Simulation(method, tasks[0], data, seeds, 10, [task.start for task in tasks]).run_all()
        return {
            part: [float(np.nanmean(outcome.personal[f"{part}_accuracy"].numpy())) for outcome in outcomes]
            for part in ("validation", "test")
        }


def chosen(cells: dict[str, Any], scenario: str, name: str) -> str:
    """Return the key of the cell with the best mean validation accuracy."""
    own = [key for key in cells if key.startswith(f"{scenario}/{name}/")]
    return max(own, key=lambda key: float(np.mean(cells[key]["validation"])))


def difference(cells: dict[str, Any], scenario: str, name: str, rival: str) -> tuple[float, float]:
    """Return mean and standard error, over seeds, of the difference in accuracy of two methods."""
    ours, theirs = (np.array(cells[chosen(cells, scenario, one)]["test"]) for one in (name, rival))
    return mean_and_error(ours - theirs)


def claims(cells: dict[str, Any]) -> list[tuple[str, bool]]:
    """Check each claim: the method is not below its rival by more than two standard errors."""
    found = []
    for scenario in SCENARIOS:
        for name, rival in scenario.claims:
            gap, sem = difference(cells, scenario.name, name, rival)
            sentence = f"{scenario.name}: {name} is above {rival} by {100 * gap:+.1f} (SEM {100 * sem:.1f}) points"
            found.append((sentence + ", within the slack" * (-2 * sem <= gap < 0), gap >= -2 * sem))
    return found


def _table(cells: dict[str, Any], seeds: int) -> Table:
    table = Table(title=f"personal test accuracy in %, mean of {seeds} seeds (SEM); chosen on validation")
    table.add_column("")
    for name in METHODS:
        table.add_column(name, justify="right")
    for scenario in SCENARIOS:
        row = []
        for name in METHODS:
            if name not in scenario.methods:
                row.append("")
                continue
            mean, sem = mean_and_error(cells[chosen(cells, scenario.name, name)]["test"])
            row.append(f"{100 * mean:.1f} ({100 * sem:.1f})")
        table.add_row(scenario.name, *row)
    return table
