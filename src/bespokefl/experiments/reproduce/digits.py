"""Where personalization pays, and where it does not: the four methods on handwritten digits, five seeds.

Our own study, not a paper's. Every method's learning rate, and Local's number of epochs, are chosen by the mean
validation accuracy over the seeds; the tables show test accuracy of the last round. Claims have a slack of two
standard errors of the paired difference, fixed beforehand.
"""

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from torch import Tensor

from bespokefl import methods, models
from bespokefl.core import chance
from bespokefl.core.files import write_text
from bespokefl.core.task import Task
from bespokefl.data.clients import Clients
from bespokefl.data.dataset import Dataset
from bespokefl.data.sources import load
from bespokefl.engines.federation import Settings
from bespokefl.engines.simulation import Simulation
from bespokefl.experiments.run import engine_data

NAME = "digits"
CLIENTS, ROUNDS, BATCH = 20, 30, 10
SEEDS = 5
RATES = (0.01, 0.03, 0.1, 0.3)
RATE_OF = {"pfedvem": "base_lr"}  # all others: lr
EPOCHS = {"local": (1, 3)}  # all others: one
FOUR = ("selffl", "persfl", "ucfl", "pfedvem")
METHODS = ("local", "fedavg", *FOUR)
BOTH = ("local", "fedavg")


@dataclass(frozen=True)
class Scenario:
    """A way to spread the digits over clients, and who is expected to beat whom there."""

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
    chosen = torch.from_numpy(chance.generator(seed, "few digits").permutation(len(data.y))[: len(data.y) // 3])
    few = replace(data, x=data.x[chosen], y=data.y[chosen])
    return few.split("dirichlet(alpha=0.4)", clients=count, seed=seed)


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
        "three of the ten digits per client: one common model must fail",
        _three,
        tuple((method, "fedavg") for method in FOUR),
    ),
    Scenario(
        "few",
        "about 18 training pictures per client, dirichlet(0.4): alone one cannot learn",
        _few,
        tuple((method, "local") for method in ("selffl", "persfl", "pfedvem")),
    ),
    Scenario("rotation", "four groups of clients hold their pictures at four angles", _rotated, (("ucfl", "local"),)),
    Scenario("permuted", "four groups of clients name the digits differently", _permuted, (("ucfl", "local"),)),
)


def accuracies(
    name: str, rate: float, epochs: int, clients: list[Clients], rounds: int = ROUNDS
) -> dict[str, list[float]]:
    """Mean personal accuracy of every seed, on validation and test data, all seeds trained as one stack."""
    method = methods.build(name, {RATE_OF.get(name, "lr"): rate})
    settings = Settings(rounds=rounds, batch_size=BATCH, local_epochs=epochs)
    factory = models.build("mlp", clients[0].shape, 10)
    tasks = [Task(factory, seed=seed) for seed in range(len(clients))]
    data = [engine_data(one) for one in clients]
    seeds = [replace(settings, seed=seed) for seed in range(len(clients))]
    outcomes = Simulation.stacked(method, tasks[0], data, seeds, 10, [task.start for task in tasks]).run_all()
    return {
        part: [float(np.nanmean(outcome.personal[f"{part}_accuracy"].numpy())) for outcome in outcomes]
        for part in ("validation", "test")
    }


def chosen(cells: dict[str, Any], scenario: str, name: str) -> str:
    """The cell with the best mean validation accuracy."""
    own = [key for key in cells if key.startswith(f"{scenario}/{name}/")]
    return max(own, key=lambda key: float(np.mean(cells[key]["validation"])))


def difference(cells: dict[str, Any], scenario: str, name: str, rival: str) -> tuple[float, float]:
    """Mean and standard error, over seeds, of how much better a method is."""
    ours, theirs = (np.array(cells[chosen(cells, scenario, one)]["test"]) for one in (name, rival))
    gap = ours - theirs
    return float(gap.mean()), float(gap.std(ddof=1) / math.sqrt(len(gap)))


def claims(cells: dict[str, Any], scenarios: Sequence[Scenario] = SCENARIOS) -> list[tuple[str, bool]]:
    """Whether each claim holds: not below the rival by more than two standard errors."""
    found = []
    for scenario in scenarios:
        for name, rival in scenario.claims:
            gap, sem = difference(cells, scenario.name, name, rival)
            sentence = f"{scenario.name}: {name} is above {rival} by {100 * gap:+.1f} (SEM {100 * sem:.1f}) points"
            found.append((sentence, gap >= -2 * sem))
    return found


def main(folder: Path, part: bool) -> None:
    """Run what is not done yet, print the tables and the claims."""
    rates = RATES[2:3] if part else RATES
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / ("part.json" if part else "cells.json")
    cells: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {}
    console = Console()
    todo = [
        (scenario, name, rate, epochs)
        for scenario in SCENARIOS
        for name in scenario.methods
        for rate in rates
        for epochs in EPOCHS.get(name, (1,))
    ]
    held: dict[str, list[Clients]] = {}
    with Progress(console=console, transient=True) as progress:
        for scenario, name, rate, epochs in progress.track(todo, description="digits"):
            key = f"{scenario.name}/{name}/lr={rate:g}, epochs={epochs}"
            if key in cells:
                continue
            if scenario.name not in held:
                held = {scenario.name: [scenario.clients(load("digits"), CLIENTS, s) for s in range(SEEDS)]}
            cells[key] = accuracies(name, rate, epochs, held[scenario.name])
            write_text(file, json.dumps(cells))
    console.print(_table(cells))
    for sentence, holds in claims(cells):
        console.print(f"{'holds' if holds else 'DOES NOT HOLD'}: {sentence}")
    console.print(f"All figures: {file}")


def _table(cells: dict[str, Any]) -> Table:
    table = Table(title=f"personal test accuracy in %, mean of {SEEDS} seeds (SEM); chosen on validation")
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
