"""Where personalization pays, and where it does not: the four methods on handwriting and on clothes.

Our own studies, not a paper's. Every method's learning rate, and Local's number of epochs, are chosen by the mean
validation accuracy over the seeds; the tables show test accuracy of the last round. Claims have a slack of two
standard errors of the paired difference, fixed beforehand.
"""

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from torch import Tensor
from torch.nn.functional import avg_pool2d

from bespokefl import methods, models
from bespokefl.core import rng as chance
from bespokefl.core.files import write_text
from bespokefl.core.task import Task
from bespokefl.data.clients import Clients
from bespokefl.data.dataset import Dataset
from bespokefl.data.sources.loader import load
from bespokefl.engines.settings import Settings
from bespokefl.engines.simulation import Simulation
from bespokefl.workflows.run.convert import engine_data

BATCH = 10
PART_RATES = (0.1,)
RATE_OF = {"pfedvem": "base_lr"}  # all others: lr
EPOCHS = {"local": (1, 3)}  # all others: one
FOUR = ("selffl", "persfl", "ucfl", "pfedvem")
METHODS = ("local", "fedavg", *FOUR)
BOTH = ("local", "fedavg")


@dataclass(frozen=True)
class Scenario:
    """A way to spread pictures of ten classes over clients, and who is expected to beat whom there."""

    name: str
    what: str
    clients: Callable[[Dataset, int, int], Clients]  # of a data set, a number of clients, a seed
    claims: tuple[tuple[str, str], ...]  # (method, the one it should beat)

    @property
    def methods(self) -> tuple[str, ...]:
        """Who is run: those of the claims, beside Local and FedAvg."""
        return tuple(name for name in METHODS if name in BOTH or name in {method for method, _ in self.claims})


def _three(data: Dataset, count: int, seed: int) -> Clients:
    return data.split("classes(k=3)", clients=count, seed=seed)


def _few(data: Dataset, count: int, seed: int) -> Clients:
    """A third of the pictures, so that nobody has many."""
    few = _some(data, len(data) // 3, chance.generator(seed, "few digits"))
    return few.split("dirichlet(alpha=0.4)", clients=count, seed=seed)


def _some(data: Dataset, count: int, rng: np.random.Generator) -> Dataset:
    chosen = torch.from_numpy(rng.permutation(len(data))[:count])
    return replace(data, x=data.x[chosen], y=data.y[chosen], columns={})


def _rotated(data: Dataset, count: int, seed: int) -> Clients:
    return _grouped(data, count, seed, lambda x, y, group: (torch.rot90(x, group, (-2, -1)), y))


def _permuted(data: Dataset, count: int, seed: int) -> Clients:
    tables = [torch.from_numpy(chance.generator(seed, "labels", g).permutation(10)) for g in range(4)]
    return _grouped(data, count, seed, lambda x, y, group: (x, tables[group][y]))


def _grouped(
    data: Dataset, count: int, seed: int, change: Callable[[Tensor, Tensor, int], tuple[Tensor, Tensor]]
) -> Clients:
    """I.i.d. clients in four groups, whose pictures or labels are changed group by group."""
    order = chance.generator(seed, "groups").permutation(len(data.y))
    client = np.empty(len(data.y), dtype=np.int64)
    client[order] = np.arange(len(order)) % count
    x, y = data.x.clone(), data.y.clone()
    for group in range(4):
        own = torch.from_numpy(client % 4 == group)
        x[own], y[own] = change(x[own], y[own], group)
    return Clients.from_arrays(x, y, client=client, seed=seed, name=data.name)


SCENARIOS = (
    Scenario(
        "classes",
        "three of the ten classes per client: one common model must fail",
        _three,
        tuple((method, "fedavg") for method in FOUR),
    ),
    Scenario(
        "few",
        "about 20 training pictures per client, dirichlet(0.4): alone one cannot learn",
        _few,
        tuple((method, "local") for method in ("selffl", "persfl", "pfedvem")),
    ),
    Scenario("rotation", "four groups of clients hold their pictures at four angles", _rotated, (("ucfl", "local"),)),
    Scenario("permuted", "four groups of clients name the classes differently", _permuted, (("ucfl", "local"),)),
)


@dataclass(frozen=True)
class Study:
    """The scenarios on one data set."""

    name: str
    what: str
    data: str
    model: str
    clients: int
    rounds: int
    seeds: int
    rates: tuple[float, ...]
    rates_of: Mapping[str, tuple[float, ...]] = field(default_factory=dict)  # where a method's differ
    pictures: Mapping[str, int] = field(default_factory=dict)  # drawn for a scenario; without: all
    shrink: int = 1  # every square of so many pixels a side becomes one, their mean

    def main(self, folder: Path, part: bool) -> None:
        """Run what is not done yet, print the tables and the claims."""
        folder.mkdir(parents=True, exist_ok=True)
        file = folder / ("part.json" if part else "cells.json")
        cells: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {}
        console = Console()
        todo = [
            (scenario, name, rate, epochs)
            for scenario in SCENARIOS
            for name in scenario.methods
            for rate in (PART_RATES if part else self.rates_of.get(name, self.rates))
            for epochs in EPOCHS.get(name, (1,))
        ]
        held: dict[str, list[Clients]] = {}
        with Progress(console=console, transient=True) as progress:
            for scenario, name, rate, epochs in progress.track(todo, description=self.name):
                key = f"{scenario.name}/{name}/lr={rate:g}, epochs={epochs}"
                if key in cells:
                    continue
                if scenario.name not in held:
                    held = {scenario.name: self.federations(scenario)}
                cells[key] = self.accuracies(name, rate, epochs, held[scenario.name])
                write_text(file, json.dumps(cells))
        console.print(_table(cells, self.seeds))
        for sentence, holds in claims(cells):
            console.print(f"{'holds' if holds else 'DOES NOT HOLD'}: {sentence}")
        console.print(f"All figures: {file}")

    def federations(self, scenario: Scenario) -> list[Clients]:
        """A scenario's clients, seed by seed, each with pictures of its own draw."""
        data = load(self.data)
        data = replace(data, x=avg_pool2d(data.x, self.shrink), known_fingerprint=None)
        count = self.pictures.get(scenario.name)
        pools = (
            data if count is None else _some(data, count, chance.generator(seed, "pictures"))
            for seed in range(self.seeds)
        )
        return [scenario.clients(pool, self.clients, seed) for seed, pool in enumerate(pools)]

    def accuracies(self, name: str, rate: float, epochs: int, clients: list[Clients]) -> dict[str, list[float]]:
        """Mean personal accuracy of every seed, on validation and test data, all seeds trained as one stack."""
        method = methods.build(name, {RATE_OF.get(name, "lr"): rate})
        settings = Settings(rounds=self.rounds, batch_size=BATCH, local_epochs=epochs)
        factory = models.build(self.model, clients[0].shape, 10)
        tasks = [Task(factory, seed=seed) for seed in range(len(clients))]
        data = [engine_data(one) for one in clients]
        seeds = [replace(settings, seed=seed) for seed in range(len(clients))]
        outcomes = Simulation.stacked(method, tasks[0], data, seeds, 10, [task.start for task in tasks]).run_all()
        return {
            part: [float(np.nanmean(outcome.personal[f"{part}_accuracy"].numpy())) for outcome in outcomes]
            for part in ("validation", "test")
        }


DIGITS = Study(
    name="digits",
    what="Where personalization pays, and where it does not: the four methods on handwritten digits, five seeds.",
    data="digits",
    model="mlp",
    clients=20,
    rounds=30,
    seeds=5,
    rates=(0.01, 0.03, 0.1, 0.3),
)
FASHION = Study(
    name="fashion",
    what="Where personalization pays, and where it does not: the same on clothes, fifty clients, three seeds.",
    data="fashion-mnist",
    model="mlp(hidden=20)",
    clients=50,
    rounds=20,
    seeds=3,
    rates=(0.03, 0.1, 0.3),
    rates_of={"ucfl": (0.01, 0.03, 0.1)},  # it has momentum .9, which makes steps ten times as long
    # UCFL's survey tells clients apart from a few hundred pictures on: docs/methods/ucfl.md
    pictures={"classes": 5_000, "few": 5_000, "rotation": 25_000, "permuted": 25_000},
    shrink=2,  # 14 × 14 pixels, for a third of the time
)
STUDIES = (DIGITS, FASHION)


def chosen(cells: dict[str, Any], scenario: str, name: str) -> str:
    """The cell with the best mean validation accuracy."""
    own = [key for key in cells if key.startswith(f"{scenario}/{name}/")]
    return max(own, key=lambda key: float(np.mean(cells[key]["validation"])))


def difference(cells: dict[str, Any], scenario: str, name: str, rival: str) -> tuple[float, float]:
    """Mean and standard error, over seeds, of how much better a method is."""
    ours, theirs = (np.array(cells[chosen(cells, scenario, one)]["test"]) for one in (name, rival))
    gap = ours - theirs
    return float(gap.mean()), float(gap.std(ddof=1) / math.sqrt(len(gap)))


def claims(cells: dict[str, Any]) -> list[tuple[str, bool]]:
    """Whether each claim holds: not below the rival by more than two standard errors."""
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
            values = 100 * np.array(cells[chosen(cells, scenario.name, name)]["test"])
            row.append(f"{values.mean():.1f} ({values.std(ddof=1) / math.sqrt(len(values)):.1f})")
        table.add_row(scenario.name, *row)
    return table
