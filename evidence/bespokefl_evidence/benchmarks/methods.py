"""Measure what a method costs besides its gradients: rounds of every method compared with rounds of FedAvg.

The price of a round is its processor time, divided by that of the same work in FedAvg's way. This work has three parts:
gradients of the whole model cost what they cost FedAvg, gradients of the head alone what they cost FedAvg with a model
that is only the head, and forward passes (of methods that compare models) what they cost a plain loop. A price of 1.1
means that a tenth of the time is spent on something else than gradients: proximal terms, noise, copies.
"""

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

from bespokefl import methods
from bespokefl.core.client_index import ClientIndex
from bespokefl.core.cohort_data import Batch, BatchSchedule
from bespokefl.core.errors import unknown
from bespokefl.core.method import Phase
from bespokefl.core.rows import Rows
from bespokefl.core.task import Task
from bespokefl.engines.client import Data
from bespokefl.engines.simulation import Simulation
from bespokefl.methods import FedAvg
from bespokefl_evidence.benchmarks import speed
from bespokefl_evidence.benchmarks.speed import CASES, CLASSES, Case

TIMED = ("logistic", "mlp", "lenet")  # cases
VALIDATION = 6  # one of so many examples is for validation
GROUPS = 4
OPTIONS: Mapping[str, Mapping[str, Any]] = {  # so that a round does not take too long
    "ucfl-parallel": {"streams": GROUPS},
    "persfl": {"distil_epochs": 1},
    "persfl-gd": {"distil_epochs": 1},
}


class CountingTask(Task):
    """A task that counts forward passes of one example, too."""

    def __init__(self, factory: Callable[[], nn.Module]) -> None:
        super().__init__(factory)
        self.forwards = [0]  # shared with the result of without_head()

    def score(self, rows: Rows, plan: BatchSchedule, **how: Any) -> dict[str, Tensor]:
        before = self.forwards[0]
        found = super().score(rows, plan, **how)  # which may call predict
        self.forwards[0] = before + sum(len(plan.real(step)[0]) for step in range(len(plan)))
        return found

    def sweep_losses(self, choices: Sequence[Rows], plan: BatchSchedule) -> Tensor:
        before = self.forwards[0]
        found = super().sweep_losses(choices, plan)
        self.forwards[0] = before + len(choices) * sum(len(plan.real(step)[0]) for step in range(len(plan)))
        return found

    def predict(self, rows: Rows, x: Tensor) -> Tensor:
        self.forwards[0] += x.shape[0] * x.shape[1]
        return super().predict(rows, x)

    def outputs(self, rows: Rows, batch: Batch) -> Tensor:
        self.forwards[0] += batch.num_examples()
        return super().outputs(rows, batch)


@dataclass(frozen=True)
class Price:
    """The price of a phase of a method."""

    method: str
    phase: str
    case: str
    price: float  # processor time relative to that of the same work in FedAvg's way, median
    spread: tuple[float, float]  # the lowest and the highest of the repeats
    round: float  # processor time of a round relative to FedAvg's
    work: tuple[float, float, float]  # gradients, head gradients and forward passes per training example


@dataclass
class _Unit:
    """Processor seconds of one gradient of FedAvg, one gradient of a head alone, and one forward pass."""

    gradient: float
    head: float
    forward: float

    def seconds(self, work: tuple[float, float, float]) -> float:
        return work[0] * self.gradient + work[1] * self.head + work[2] * self.forward


@dataclass
class _Run:
    """A simulation whose rounds are timed."""

    simulation: Simulation
    number: int = 0
    counted: tuple[float, float, float] = field(default=(0.0, 0.0, 0.0))  # work of the last round

    def round(self, phase: Phase) -> float:
        """Run a round; return its processor time in seconds."""
        task = self.simulation.task
        assert isinstance(task, CountingTask)
        self.number, task.forwards[0] = self.number + 1, 0
        began = time.process_time()
        self.simulation.round(self.number, phase)
        seconds = time.process_time() - began
        line = self.simulation.federations[0].history[-1]
        self.counted = line["gradients"], line["head_gradients"], task.forwards[0]
        return seconds


def federation(case: Case) -> Data:
    """The case's random data, of which some are for validation; clients are in groups."""
    data = speed.federation(case)
    parts = [data.train.of(client).numpy() for client in range(len(data))]
    cuts = [len(part) - len(part) // VALIDATION for part in parts]
    train = ClientIndex.of_lists([part[:cut] for part, cut in zip(parts, cuts, strict=True)])
    validation = ClientIndex.of_lists([part[cut:] for part, cut in zip(parts, cuts, strict=True)])
    groups = tuple(int(group) for group in np.arange(len(data)) % GROUPS)
    return replace(data, train=train, validation=validation, groups=groups)


def measure(name: str, case: Case, repeats: int = 5) -> list[Price]:
    """Time rounds of a method, phase by phase, and of FedAvg in turn."""
    data, method = federation(case), methods.build(name, dict(OPTIONS.get(name, {})))
    own, plain = _simulate(method, case, data), _simulate(FedAvg(), case, data)
    width = plain.simulation.task.start.block("head").layout.shapes[0][1]  # the head's inputs
    head = replace(case, model="logistic", shape=(width,))
    features = torch.randn(len(data.y), width, generator=torch.Generator().manual_seed(0))
    alone = _simulate(FedAvg(), head, replace(data, x=features))
    prices = []
    with ExitStack() as stack:
        for run in (own, plain, alone):
            stack.enter_context(run.simulation.open())
        for phase in method.phases(1):
            before, pairs = own.simulation.federations[0].server, []
            for _ in range(repeats + 1):
                own.simulation.federations[0].server = before  # a survey is made once
                pairs.append(_compare(own, plain, alone, data, phase))
            del pairs[0]  # warms up
            found = [price for price, _ in pairs]
            examples = len(data.train.indices)
            gradients, heads, forwards = own.counted
            work = gradients / examples, heads / examples, forwards / examples
            spread, share = (min(found), max(found)), statistics.median(round for _, round in pairs)
            prices.append(Price(name, phase.name, case.name, statistics.median(found), spread, share, work))
    return prices


def _simulate(method: Any, case: Case, data: Data) -> _Run:
    task = CountingTask(speed.build(case))
    return _Run(Simulation(method, task, data, speed.settings(case, workers=1), CLASSES))


def _compare(own: _Run, plain: _Run, alone: _Run, data: Data, phase: Phase) -> tuple[float, float]:
    """The price of one round, and its time relative to FedAvg's."""
    train = Phase("train", 1)
    base = plain.round(train)
    seconds = own.round(phase)
    head = alone.round(train) / alone.counted[0] if own.counted[1] else 0.0
    forward = _forward(plain.simulation.task, data) if own.counted[2] else 0.0
    unit = _Unit(base / plain.counted[0], head, forward)
    return seconds / unit.seconds(own.counted), seconds / base


@torch.no_grad()
def _forward(task: Task, data: Data) -> float:
    """Processor seconds of a forward pass of one example in a plain loop over clients."""
    began = time.process_time()
    for client in range(len(data)):
        for examples in data.train.of(client).split(256):
            task.module(data.x[examples])
    return (time.process_time() - began) / len(data.train.indices)


def main(*, quick: bool = False, only: str | None = None) -> list[Price]:
    """Time all methods, or one of them, with every model, and print a table for each."""
    if only is not None and only not in methods.REGISTRY:
        raise unknown("method", only, methods.REGISTRY)
    console, found = Console(), []
    for name in TIMED[: 1 if quick else None]:
        table = Table(title=f"{name}: {CASES[name].description}, one worker", title_justify="left")
        for column in ("method", "phase", "price", "lowest to highest", "a round", "gradients", "of heads", "forward"):
            table.add_column(column, justify="left" if column in ("method", "phase") else "right")
        for method in methods.REGISTRY if only is None else [only]:
            with console.status(f"{name}: {method}"):
                prices = measure(method, CASES[name], 2 if quick else 5)
            for one in prices:
                work = (f"{amount:.3g}" for amount in one.work)
                low, high = one.spread
                shown = f"{one.price:.2f}", f"{low:.2f} to {high:.2f}", f"{one.round:.2f}x"
                table.add_row(method, one.phase, *shown, *work)
            found += prices
        console.print(table)
    return found
