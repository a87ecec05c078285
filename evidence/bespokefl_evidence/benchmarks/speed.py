"""Measure the speed of the simulation: rounds of FedAvg compared with a plain PyTorch loop, as ratios.

The plain loop (engines/reference.py) has one thread. Both run the same rounds in turn, several times, and the median
ratio is reported, so that other load on the machine affects both alike.
"""

import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from bespokefl import models
from bespokefl.core import rng
from bespokefl.core.client_index import ClientIndex
from bespokefl.core.errors import unknown
from bespokefl.core.method import Phase
from bespokefl.core.task import Task
from bespokefl.engines.client import Data
from bespokefl.engines.settings import Settings
from bespokefl.engines.simulation import Simulation
from bespokefl.engines.transports.processes import cores
from bespokefl.methods import Ditto, FedAvg

CLASSES = 10
SCORED = ("logistic", "mlp", "lenet")  # cases for which the cost of evaluation is measured


@dataclass(frozen=True)
class Case:
    """A federation to time."""

    name: str
    model: str
    shape: tuple[int, ...]
    sizes: tuple[int, ...]  # training examples per client
    batch_size: int
    description: str
    steps: int | None = None  # local steps; None: one epoch
    federations: int = 1  # trained as one stack, compared with one in the plain loop
    classes: int | None = CLASSES  # None: regression


def _ragged(clients: int, least: int, most: int) -> tuple[int, ...]:
    return tuple(int(n) for n in rng.generator(0, "bench sizes").integers(least, most + 1, clients))


CASES = {
    case.name: case
    for case in (
        Case("logistic", "logistic", (784,), (200,) * 100, 10, "784-10, 100 clients x 20 steps, batch 10"),
        Case("mlp", "mlp", (784,), _ragged(50, 50, 2000), 64, "784-100-10, 50 clients of 50-2000, batch 64"),
        Case("mlp-full", "mlp", (784,), _ragged(200, 50, 2000), 2000, "784-100-10, 200 clients, full batch"),
        Case("lenet", "lenet", (1, 28, 28), (500,) * 20, 64, "28x28, 20 clients x 500, batch 64"),
        Case("cifar", "cifar-cnn", (3, 32, 32), (2500,) * 20, 20, "20 clients x 2500, batch 20, 40 steps", steps=40),
        Case("resnet8", "resnet8", (3, 32, 32), (200,) * 20, 20, "32x32, batch norm, 20 clients, batch 20", steps=3),
        Case(
            "linear",
            "logistic",
            (10,),
            (50,) * 20,
            50,
            "10 features, 20 clients x 50 full-batch steps, 200 repeats",
            steps=50,
            federations=200,
            classes=None,
        ),
    )
}


@dataclass(frozen=True)
class Timing:
    """The ratios of one case to the plain loop."""

    case: Case
    reference: float  # seconds per round
    ratios: dict[int, float]  # by number of workers: times faster
    chunk: int
    peak_share: float  # of the speed of a matrix product, with the most workers


def federation(case: Case, seed: int = 0) -> Data:
    """Return random data: speed does not depend on what is learnt."""
    generator = rng.generator(seed, "bench", case.name)
    total = sum(case.sizes)
    x = torch.from_numpy(generator.standard_normal((total, *case.shape), dtype=np.float32))
    y = x.flatten(1).sum(1) if case.classes is None else torch.from_numpy(generator.integers(0, case.classes, total))
    train = ClientIndex.of_lists(np.split(np.arange(total), np.cumsum(case.sizes)[:-1]))
    nothing = ClientIndex.of_lists([np.zeros(0)] * len(case.sizes))
    names = tuple(f"{i:04d}" for i in range(len(case.sizes)))
    return Data(x, y, names, train, nothing, nothing)


def build(case: Case) -> Callable[[], nn.Module]:
    return models.build(case.model, case.shape, case.classes or 1)


def task(case: Case) -> Task:
    return Task(build(case), "mse" if case.classes is None else "cross_entropy")


def settings(case: Case, **how: Any) -> Settings:
    return Settings(rounds=1, batch_size=case.batch_size, local_steps=case.steps, **how)


def interleaved(functions: Sequence[Callable[[int], object]], repeats: int) -> list[list[float]]:
    """Call functions in turn with the number of the repeat; return the seconds of each, without the first call."""
    times: list[list[float]] = [[] for _ in functions]
    for repeat in range(repeats + 1):  # the first warms up
        for function, seconds in zip(functions, times, strict=True):
            started = time.perf_counter()
            function(repeat)
            seconds.append(time.perf_counter() - started)
    return [seconds[1:] for seconds in times]


def measure(case: Case, *, workers: tuple[int, ...] = (1, 2), repeats: int = 5, peak: float | None = None) -> Timing:
    """Time rounds of the plain loop and of the simulation in turn; return median ratios."""
    data = federation(case)

    def simulation(**how: Any) -> Simulation:
        if case.federations == 1 or how.get("reference"):
            return Simulation(FedAvg(lr=0.01), task(case), data, settings(case, **how), case.classes)
        seeds = range(case.federations)
        several = [federation(case, seed) for seed in seeds]
        return Simulation(
            FedAvg(lr=0.01), task(case), several, [settings(case, seed=seed, **how) for seed in seeds], case.classes
        )

    runs = [simulation(reference=True), *(simulation(workers=count) for count in workers)]
    with ExitStack() as stack:
        for run in runs:
            stack.enter_context(run.open())
        plain, *times = interleaved([_rounds(run) for run in runs], repeats)
    ratios = {
        count: case.federations * statistics.median(p / s for p, s in zip(plain, seconds, strict=True))
        for count, seconds in zip(workers, times, strict=True)
    }
    executor = runs[1].executor
    share = round_flops(case) / statistics.median(times[-1]) / ((peak or gemm_peak()) * workers[-1])
    return Timing(case, statistics.median(plain), ratios, executor.chunk, share)


def _rounds(run: Simulation) -> Callable[[int], object]:
    return lambda repeat: run.round(repeat + 1, Phase("train", 1))


def round_flops(case: Case) -> float:
    """Return the floating point operations of a round: those of one example's gradient, times all examples."""
    module, few = build(case)(), 4
    x, y = torch.zeros(few, *case.shape), torch.zeros(few, dtype=torch.int64)
    with FlopCounterMode(display=False) as counter:
        outputs = module(x)
        loss = outputs.square().mean() if case.classes is None else nn.functional.cross_entropy(outputs, y)
        loss.backward()
    examples = sum(case.sizes)
    if case.steps is not None:
        examples = sum(case.steps * min(size, case.batch_size) for size in case.sizes)
    return float(counter.get_total_flops()) / few * examples * case.federations


def gemm_peak(size: int = 1024, repeats: int = 5) -> float:
    """Return the floating point operations per second of a large matrix product on one thread."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    a = torch.ones(size, size)
    (seconds,) = interleaved([lambda _: a @ a], repeats)
    torch.set_num_threads(threads)
    return 2 * size**3 / min(seconds)


def evaluation_cost(name: str = "lenet", *, personal: bool = False, repeats: int = 5) -> float:
    """Return the cost of evaluating a federation, in forward passes over the same examples on one thread.

    A forward pass is what a plain script does: take a client's examples and call the module on them. With `personal`,
    the personal models (of Ditto) are evaluated as well, which counts as a second forward pass.
    """
    case = CASES[name]
    data = federation(case)
    method = Ditto(lr=0.01) if personal else FedAvg(lr=0.01)
    run = Simulation(method, task(case), data, settings(case, workers=1), CLASSES)
    module = build(case)().eval()
    passes = 2 if personal else 1

    @torch.no_grad()
    def forward(repeat: int) -> None:
        for client in range(len(data)):
            for x in data.x[data.train.of(client)].split(256):
                module(x)

    with run.open():
        plain, own = interleaved([forward, lambda _: run.evaluate(0, 0)], repeats)
    return statistics.median(b / a / passes for a, b in zip(plain, own, strict=True))


def aggregation_share(repeats: int = 5) -> float:
    """Return UCFL's W Θ for 200 clients of the CIFAR network as a share of a round of 40 steps of 20 examples."""
    case = CASES["cifar"]
    data = federation(case)
    run = Simulation(FedAvg(lr=0.01), task(case), data, settings(case, workers=cores()), CLASSES)
    rows = run.task.start.expand(200).clone()
    weights = torch.full((200, 200), 1 / 200)
    with run.open():
        rounds, mixing = interleaved([_rounds(run), lambda _: weights @ rows], repeats)
    return statistics.median(b / (a * 200 / len(data) + b) for a, b in zip(rounds, mixing, strict=True))


def main(*, only: str | None = None, quick: bool = False) -> list[Timing]:
    """Time the cases and print a table; `quick` makes one repeat instead of five."""
    if only is not None and only not in CASES:
        raise unknown("bench case", only, CASES)
    repeats = 1 if quick else 5
    workers = tuple(sorted({1, min(2, cores()), cores()}))
    table = Table(
        "case", "federation", title="times faster than a plain PyTorch loop (one thread)", title_justify="left"
    )
    columns = [f"{count} worker{'s' * (count > 1)}" for count in workers]
    for column in ("plain loop", *columns, "chunk", "of peak"):
        table.add_column(column, justify="right")
    console, peak, timings = Console(), gemm_peak(), []
    for case in [CASES[only]] if only else CASES.values():
        with console.status(f"timing {case.name} ({case.description})"):
            timing = measure(case, workers=workers, repeats=repeats, peak=peak)
        timings.append(timing)
        ratios = [f"{timing.ratios[count]:.3g}x" for count in workers]
        shown = [f"{timing.reference:.3g} s/round", *ratios, str(timing.chunk), f"{timing.peak_share:.1%}"]
        table.add_row(case.name, case.description, *shown)
    console.print(table)
    console.print(f"Peak: a matrix product on one thread, {peak / 1e9:.0f} GFLOP/s, times the workers.")
    if only is None:
        with console.status("timing evaluation and aggregation"):
            costs = {
                f"{name}, {'personal models' if personal else 'one model'}": evaluation_cost(
                    name, personal=personal, repeats=repeats
                )
                for name in SCORED
                for personal in (False, True)
            }
            share = aggregation_share(repeats)
        listed = "; ".join(f"{cost:.2f} ({what})" for what, cost in costs.items())
        console.print(f"Evaluation, in forward passes per example and model: {listed}.")
        console.print(f"UCFL's aggregation is {share:.1%} of its round.")
    return timings
