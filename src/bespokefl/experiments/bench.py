"""How fast the simulation is: rounds of FedAvg against the plain PyTorch loop, in one run, as ratios.

The plain loop (engines/reference.py) has one thread. Both run the same rounds in turn, several times, and the median
ratio counts: the machine's moods hit both alike.
"""

import statistics
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from torch import nn

from bespokefl import models
from bespokefl.core import chance
from bespokefl.core.errors import unknown
from bespokefl.core.method import Phase
from bespokefl.core.parts import Part
from bespokefl.core.task import Task
from bespokefl.engines.client import Data
from bespokefl.engines.federation import Settings
from bespokefl.engines.simulation import Simulation
from bespokefl.engines.workers import cores
from bespokefl.methods import FedAvg


@dataclass(frozen=True)
class Case:
    """A federation to time."""

    name: str
    model: str
    shape: tuple[int, ...]
    sizes: tuple[int, ...]  # training examples per client
    batch_size: int
    what: str


def _ragged(clients: int, least: int, most: int) -> tuple[int, ...]:
    return tuple(int(n) for n in chance.generator(0, "bench sizes").integers(least, most + 1, clients))


CASES = {
    case.name: case
    for case in (
        Case("logistic", "logistic", (784,), (200,) * 100, 10, "784-10, 100 clients x 20 steps, batch 10"),
        Case("mlp", "mlp", (784,), _ragged(50, 50, 2000), 64, "784-100-10, 50 clients of 50-2000, batch 64"),
        Case("lenet", "lenet", (1, 28, 28), (500,) * 20, 64, "28x28, 20 clients x 500, batch 64"),
    )
}


@dataclass(frozen=True)
class Timing:
    """One case's ratios to the plain loop."""

    case: Case
    reference: float  # seconds per round
    ratios: dict[int, float]  # workers -> times faster
    chunk: int
    reason: str


def federation(case: Case) -> Data:
    """Random data: speed does not depend on what is learnt."""
    rng = chance.generator(0, "bench", case.name)
    total = sum(case.sizes)
    x = torch.from_numpy(rng.standard_normal((total, *case.shape), dtype=np.float32))
    y = torch.from_numpy(rng.integers(0, 10, total))
    train = Part.of_lists(np.split(np.arange(total), np.cumsum(case.sizes)[:-1]))
    nothing = Part.of_lists([np.zeros(0)] * len(case.sizes))
    names = tuple(f"{i:04d}" for i in range(len(case.sizes)))
    return Data(x, y, names, train, nothing, nothing)


def build(case: Case) -> Callable[[], nn.Module]:
    return models.build(case.model, case.shape, 10)


def measure(case: Case, *, workers: tuple[int, ...] = (1, 2), repeats: int = 5) -> Timing:
    """Rounds of the plain loop and of the simulation in turn; median ratios."""
    data = federation(case)

    def simulation(**how: int | bool) -> Simulation:
        settings = Settings(rounds=1, batch_size=case.batch_size, **how)  # type: ignore[arg-type]
        return Simulation(FedAvg(lr=0.01), Task(build(case)), data, settings, 10)

    runs = [simulation(reference=True), *(simulation(workers=count) for count in workers)]
    times: list[list[float]] = [[] for _ in runs]
    with ExitStack() as stack:
        pools = [stack.enter_context(run.pool()) for run in runs]
        for repeat in range(repeats + 1):  # the first warms up
            for run, pool, seconds in zip(runs, pools, times, strict=True):
                began = time.perf_counter()
                run.round(pool, repeat + 1, Phase("train", 1))
                seconds.append(time.perf_counter() - began)
    plain = times[0][1:]
    ratios = {
        count: statistics.median(p / s for p, s in zip(plain, seconds[1:], strict=True))
        for count, seconds in zip(workers, times[1:], strict=True)
    }
    executor = runs[1].executor
    return Timing(case, statistics.median(plain), ratios, executor.chunk, executor.reason)


def main(*, only: str | None = None, quick: bool = False) -> list[Timing]:
    """Time the cases and print a table; `quick` takes one repeat instead of five."""
    if only is not None and only not in CASES:
        raise unknown("bench case", only, CASES)
    workers = tuple(sorted({1, min(2, cores()), cores()}))
    table = Table(title="times faster than a plain PyTorch loop (one thread)", title_justify="left")
    table.add_column("case")
    table.add_column("federation")
    table.add_column("plain loop", justify="right")
    for count in workers:
        table.add_column(f"{count} worker{'s' * (count > 1)}", justify="right")
    table.add_column("chunk", justify="right")
    console = Console()
    timings = []
    for case in [CASES[only]] if only else CASES.values():
        with console.status(f"timing {case.name} ({case.what})"):
            timing = measure(case, workers=workers, repeats=1 if quick else 5)
        timings.append(timing)
        ratios = [f"{timing.ratios[count]:.1f}x" for count in workers]
        table.add_row(case.name, case.what, f"{timing.reference:.2f} s/round", *ratios, str(timing.chunk))
    console.print(table)
    return timings
