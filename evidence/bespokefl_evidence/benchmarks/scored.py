"""Measure rounds after which all clients are scored, compared with a loop as lean as one can write by hand.

100 of 1000 clients train a logistic model for an epoch, then the global model is scored on the test data of all
clients. The lean loop has no DataLoader and no optimizer: batches are gathered by index, weights are assigned, and all
test data are scored in large slices. Both compute the same: loss and accuracy of every client on its test data.
"""

import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from rich.console import Console

from bespokefl.core.client_index import ClientIndex
from bespokefl.core.method import Phase
from bespokefl.core.task import Task
from bespokefl.engines.client import Data
from bespokefl.engines.settings import Settings
from bespokefl.engines.simulation import Simulation
from bespokefl.engines.transports.processes import cores
from bespokefl.methods import FedAvg
from bespokefl_evidence.benchmarks import speed
from bespokefl_evidence.benchmarks.speed import CLASSES, Case

CLIENTS, ACTIVE, TRAIN, TEST, LR = 1000, 100, 60, 10, 0.01
CASE = Case("scored", "logistic", (784,), (TRAIN + TEST,) * CLIENTS, 10, "784-10, 100 of 1000 clients, all scored")
SLICE = 1000  # test examples that the lean loop scores at once


@dataclass(frozen=True)
class Scored:
    """How much faster rounds with scores are than the lean loop."""

    lean: float  # seconds of a round
    ratios: dict[int, float]  # by number of workers: times faster, by wall time
    processor: float  # times less processor time, with one worker


def federation() -> Data:
    """Random data; every client has training and test examples."""
    data = speed.federation(CASE)
    parts = [data.train.of(client).numpy() for client in range(CLIENTS)]
    train, test = (ClientIndex.of_lists([part[own] for part in parts]) for own in (slice(TRAIN), slice(TRAIN, None)))
    return replace(data, train=train, test=test)


class LeanLoop:
    """FedAvg as a script would do it if it were written for speed."""

    def __init__(self, data: Data) -> None:
        self.data, self.model = data, speed.build(CASE)()
        self.parameters = list(self.model.parameters())
        self.server = [one.detach().clone() for one in self.parameters]
        self.owner = torch.arange(CLIENTS).repeat_interleave(TEST)

    def round(self, number: int) -> torch.Tensor:
        """Train and score; return loss and accuracy of each client, (2, clients)."""
        draws = np.random.default_rng(number)
        total = [torch.zeros_like(one) for one in self.server]
        for client in draws.permutation(CLIENTS)[:ACTIVE]:
            own = self.data.train.of(client)
            for parameter, value in zip(self.parameters, self.server, strict=True):
                parameter.data = value.clone()
            for batch in own[torch.from_numpy(draws.permutation(len(own)))].split(CASE.batch_size):
                loss = F.cross_entropy(self.model(self.data.x[batch]), self.data.y[batch])
                for parameter, slope in zip(self.parameters, torch.autograd.grad(loss, self.parameters), strict=True):
                    parameter.data.add_(slope, alpha=-LR)
            for own_sum, parameter in zip(total, self.parameters, strict=True):
                own_sum.add_(parameter.data, alpha=1 / ACTIVE)
        self.server = total
        return self.scores()

    @torch.no_grad()
    def scores(self) -> torch.Tensor:
        """Loss and accuracy of the global model, (2, clients)."""
        for parameter, value in zip(self.parameters, self.server, strict=True):
            parameter.data = value
        found = []
        for examples in self.data.test.indices.split(SLICE):
            outputs, y = self.model(self.data.x[examples]), self.data.y[examples]
            right = (outputs.argmax(1) == y).to(outputs)
            found.append(torch.stack([F.cross_entropy(outputs, y, reduction="none"), right]))
        each = torch.cat(found, 1)
        return torch.zeros(2, CLIENTS).index_add_(1, self.owner, each) / TEST


def measure(*, workers: tuple[int, ...] = (1, 2), repeats: int = 5) -> Scored:
    """Time rounds of the lean loop and of the simulation in turn; return median ratios."""
    data = federation()
    runs = [simulate(data, count) for count in workers]
    actions: list[Callable[[int], object]] = [LeanLoop(data).round, *(partial(_scored_round, run) for run in runs)]
    wall: list[list[float]] = [[] for _ in actions]
    used: list[list[float]] = [[] for _ in actions]
    with ExitStack() as stack:
        for run in runs:
            stack.enter_context(run.open())
        for number in range(1, repeats + 2):
            for at, action in enumerate(actions):
                began, before = time.perf_counter(), time.process_time()
                action(number)
                wall[at].append(time.perf_counter() - began)
                used[at].append(time.process_time() - before)
    ratios = {count: _ratio(wall[0], seconds) for count, seconds in zip(workers, wall[1:], strict=True)}
    return Scored(statistics.median(wall[0][1:]), ratios, _ratio(used[0], used[1]))


def simulate(data: Data, workers: int) -> Simulation:
    """The simulation that is compared."""
    options: Any = {"participation": ACTIVE / CLIENTS, "skip_train_scores": True, "workers": workers}
    settings = Settings(rounds=1, batch_size=CASE.batch_size, eval_every=1, **options)
    return Simulation(FedAvg(lr=LR), Task(speed.build(CASE)), data, settings, CLASSES)


def _scored_round(run: Simulation, number: int) -> None:
    run.round(number, Phase("train", 1))
    run.evaluate(0, number)


def _ratio(plain: Sequence[float], own: Sequence[float]) -> float:
    """The median ratio; the first pair warms up."""
    return statistics.median(p / s for p, s in zip(plain[1:], own[1:], strict=True))


def main(*, quick: bool = False) -> Scored:
    """Measure and print the ratios."""
    console, workers = Console(), tuple(sorted({1, min(2, cores()), cores()}))
    with console.status(f"timing {CASE.name} ({CASE.description})"):
        found = measure(workers=workers, repeats=3 if quick else 15)
    listed = ", ".join(f"{ratio:.3g}x ({count})" for count, ratio in found.ratios.items())
    console.print(
        f"Rounds with test scores of all {CLIENTS} clients, relative to a lean loop of {found.lean:.3g} s, by workers: "
        f"{listed}; {found.processor:.3g}x by processor time with one worker."
    )
    return found
