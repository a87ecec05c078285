"""Measure how a simulation scales: a hundred active clients among more and more, and clients with a large model.

Each measurement runs in its own process, so that its memory can be measured. Seconds are those of the processor.
"""

import multiprocessing
import os
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from torch import nn

from bespokefl import methods
from bespokefl.core import rng
from bespokefl.core.task import Task
from bespokefl.data import Clients
from bespokefl.engines.settings import Settings
from bespokefl.engines.simulation import Simulation
from bespokefl.engines.storage.checkpoints import CheckpointInterval, Checkpoints
from bespokefl.methods import Ditto
from bespokefl.models import build, lora
from bespokefl.workflows.run import api, jobs
from bespokefl.workflows.run.convert import engine_data

SIZES = (1_000, 10_000, 100_000)
ACTIVE, ROUNDS, CHECKPOINT_ROUNDS = 100, 50, 10
CLASSES = 10
LARGE_CLIENTS, LARGE_WIDTH, LARGE_EXAMPLES = 100, 18_725, 4  # five million parameters
FEW, MANY = 1_000, 1_000_000  # clients of the methods in STATEFUL
FROZEN_WIDTH, FROZEN_LAYERS, FROZEN_CLIENTS, RANK = 4096, 6, 50, 8  # a hundred million frozen parameters
WHOLE_ROUNDS = 20  # of a run from its data to its results on disk


@dataclass(frozen=True)
class Shape:
    """A federation of any number of clients with a logistic model."""

    method: str = "ditto"
    features: int = 256
    examples: int = 20  # of each client


DITTO = Shape()
STATEFUL = tuple(Shape(method, 32, 5) for method in ("ditto", "scaffold", "selffl"))


@dataclass(frozen=True)
class Growth:
    """Time and memory of one size."""

    method: str
    clients: int
    start: float  # seconds for split and state
    seconds: float  # per round, median
    memory: int  # peak bytes of anonymous memory, checkpoints included, beyond those of a tiny federation
    needed: int  # bytes of the data and of the rows of clients that have been active
    usual: int = 0  # bytes that the tiny federation needs besides its own data and rows


def measure(clients: int, rounds: int = ROUNDS, shape: Shape = DITTO) -> Growth:
    """Measure a method that keeps a row for each client, in a new process."""

    def grow() -> list[float]:
        # Libraries, and the working memory of a round with this many active clients, are the same for any federation.
        before = anonymous()
        *_, usual, _ = _grow(2 * ACTIVE, rounds, shape)
        start, seconds, extra, needed = _grow(clients, rounds, shape)
        return [start, seconds, needed + extra - usual, needed, usual - before]

    start, seconds, *sizes = in_new_process(grow, f"the run with {clients} clients")
    return Growth(shape.method, clients, start, seconds, *map(int, sizes))


def measure_large(clients: int = LARGE_CLIENTS) -> Growth:
    """Measure the peak memory of Ditto with a large model, all clients active, states in files."""
    start, seconds, memory, needed = in_new_process(lambda: list(_large(clients)), "the run with the large model")
    return Growth("ditto", clients, start, seconds, int(memory), int(needed))


def measure_frozen(width: int = FROZEN_WIDTH, clients: int = FROZEN_CLIENTS, workers: int = 2) -> Growth:
    """Measure the memory of Ditto with adapters in every layer of a frozen model; `needed` is that of the model.

    Memory that processes share counts once.
    """
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("fork")) as pool:  # which may have workers
        start, seconds, memory, needed = pool.submit(_frozen, width, clients, workers).result()
    return Growth("ditto", clients, start, seconds, memory, needed)


def measure_whole(clients: int, shape: Shape) -> Growth:
    """Measure a whole run with checkpoints, from arrays to its directory: `start` and `seconds` are those of all."""
    seconds, memory, needed = in_new_process(lambda: list(_whole(clients, shape)), f"a run with {clients} clients")
    return Growth(shape.method, clients, 0.0, seconds, int(memory), int(needed))


def in_new_process(measured: Callable[[], list[float]], what: str) -> list[float]:
    """Call a function in a new process with one thread."""
    ((_, outcome),) = jobs.run_jobs([jobs.Job(what, lambda report: measured())], processes=2)
    if isinstance(outcome, Exception):
        raise outcome
    found: list[float] = outcome
    return found


def arrays(clients: int, shape: Shape) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Random examples and labels, and the client of each."""
    generator = rng.generator(0, "scale")
    total = clients * shape.examples
    x = generator.standard_normal((total, shape.features), dtype=np.float32)
    y = generator.integers(0, CLASSES, total)
    return x, y, np.repeat(np.arange(clients), shape.examples)


def _grow(clients: int, rounds: int, shape: Shape) -> tuple[float, float, int, int]:
    """Return seconds to start and per round, peak memory besides data and rows, and the bytes of these."""
    x, y, ids = arrays(clients, shape)
    started = time.process_time()
    federation = Clients.from_arrays(x, y, ids)
    data = engine_data(federation, torch.device("cpu"), torch.float32)
    task = Task(build("logistic", (shape.features,), CLASSES))
    settings = Settings(rounds=rounds, participation=ACTIVE / clients, batch_size=10, workers=1)
    run = Simulation(methods.build(shape.method), task, data, settings, CLASSES)
    start = time.process_time() - started
    phase = run.method.phases(rounds)[0]
    needed = [data.x.nbytes + data.y.nbytes + ids.nbytes]
    fixed, seconds = needed[0], [0.0] * rounds
    with run.open(), tempfile.TemporaryDirectory(prefix="bespoke-scale-") as directory:
        checkpoints = Checkpoints(Path(directory) / "checkpoints", CheckpointInterval(rounds=CHECKPOINT_ROUNDS), {})

        def train(number: int) -> None:
            run.round(number, phase)
            needed[0] = fixed + len(run.store) * task.layout.width * 4

        for number in range(1, rounds + 1):  # timed, without measuring memory
            began = time.process_time()
            train(number)
            seconds[number - 1] = time.process_time() - began
        with _peak(lambda: anonymous() - needed[0]) as most:
            for number in range(rounds + 1, 2 * rounds + 1):  # checkpoints may take time, but little memory
                train(number)
                if checkpoints.is_due(number):
                    checkpoints.save(run.snapshot(number))
            checkpoints.wait()
    return start, statistics.median(seconds[1:]), most[0], needed[0]


@contextmanager
def _peak(value: Callable[[], int]) -> Iterator[list[int]]:
    """Yield a list whose only element is the maximum of a value during the context."""
    most, ended = [value()], threading.Event()

    def watch() -> None:
        while not ended.wait(0.02):
            most[0] = max(most[0], value())

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield most
    finally:
        ended.set()
        watcher.join()


def _whole(clients: int, shape: Shape) -> tuple[float, int, int]:
    """Return the seconds of a run with its results, its peak memory, and the bytes of data and active clients' rows."""
    x, y, ids = arrays(clients, shape)
    width = (shape.features + 1) * CLASSES
    rows = min(clients, ACTIVE * WHOLE_ROUNDS) * width * 4
    needed = x.nbytes + y.nbytes + ids.nbytes + rows
    with tempfile.TemporaryDirectory(prefix="bespoke-scale-") as directory, _peak(anonymous) as peak:
        began = time.process_time()
        options: Any = {"participation": ACTIVE / clients, "batch_size": 10, "eval_every": 0, "workers": 1}
        result = api.run(
            shape.method,
            Clients.from_arrays(x, y, ids),
            model="logistic",
            rounds=WHOLE_ROUNDS,
            checkpoint=Path(directory) / "run",
            checkpoint_every=CHECKPOINT_ROUNDS,
            **options,
        )
        result.save(Path(directory) / "run")
        seconds = time.process_time() - began
    return seconds, peak[0], needed


def _large(clients: int) -> tuple[float, float, int, int]:
    generator = rng.generator(0, "large")
    ids = np.repeat(np.arange(clients), LARGE_EXAMPLES)
    x = generator.standard_normal((len(ids), DITTO.features), dtype=np.float32)
    with tempfile.TemporaryDirectory(prefix="bespoke-scale-") as directory, _peak(anonymous) as peak:
        started = time.perf_counter()
        federation = Clients.from_arrays(x, generator.integers(0, CLASSES, len(ids)), ids)
        data = engine_data(federation, torch.device("cpu"), torch.float32)
        task = Task(build(f"mlp({LARGE_WIDTH})", (DITTO.features,), CLASSES))
        settings = Settings(rounds=1, batch_size=LARGE_EXAMPLES, workers=1, state_dir=directory)
        run = Simulation(Ditto(), task, data, settings, CLASSES)
        start = time.perf_counter() - started
        run.run()
    return start, run._seconds[0], peak[0], clients * task.layout.width * 4


def _frozen(width: int, clients: int, workers: int) -> tuple[float, float, int, int]:
    """Return seconds to start and of a round, and the peak memory and that of the frozen weights in bytes."""
    generator = rng.generator(0, "frozen")
    ids = np.repeat(np.arange(clients), LARGE_EXAMPLES)
    x = generator.standard_normal((len(ids), width), dtype=np.float32)
    with _peak(proportional) as peak:
        before, started = peak[0], time.process_time()
        federation = Clients.from_arrays(x, generator.integers(0, CLASSES, len(ids)), ids)
        data = engine_data(federation, torch.device("cpu"), torch.float32)
        task = Task(lambda: _adapted(width))
        run = Simulation(Ditto(), task, data, Settings(rounds=1, batch_size=LARGE_EXAMPLES, workers=workers), CLASSES)
        start = time.process_time() - started
        run.run()
    needed = sum(one.nbytes for one in task.module.parameters() if not one.requires_grad)
    return start, run._seconds[0], peak[0] - before, needed


def _adapted(width: int) -> nn.Module:
    layers = [layer for _ in range(FROZEN_LAYERS) for layer in (nn.Linear(width, width), nn.ReLU())]
    head = str(len(layers))
    return lora(nn.Sequential(*layers, nn.Linear(width, CLASSES)), rank=RANK, unfreeze=head)


def proportional() -> int:
    """Return the bytes of anonymous memory of this process and its children, each page once."""
    total = 0
    with suppress(OSError):  # a child that ended
        children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
        for process in (str(os.getpid()), *children):
            for line in Path(f"/proc/{process}/smaps_rollup").read_text().splitlines():
                if line.startswith(("Pss_Anon:", "Pss_Shmem:")):
                    total += int(line.split()[1]) * 1024
    return total


def anonymous() -> int:
    """Return the bytes of anonymous memory of this process."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    return 0


def main(*, quick: bool = False) -> list[Growth]:
    """Measure all sizes and print a table."""
    console, found = Console(), []
    found += _table(console, [(DITTO, size) for size in SIZES[: 2 if quick else None]])
    if quick:
        return found
    found += _table(console, [(shape, size) for shape in STATEFUL for size in (FEW, MANY)])
    for shape in STATEFUL:
        with console.status(f"a whole run of {shape.method}"):
            whole = measure_whole(MANY, shape)
        shares = f"{whole.memory / 1e9:.2f} GB, of which data and rows are {whole.needed / 1e9:.2f} GB"
        console.print(
            f"A run of {shape.method} with {MANY:,} clients, {WHOLE_ROUNDS} rounds, a checkpoint and all results on "
            f"disk: {whole.seconds:.0f} s, at most {shares}."
        )
        found.append(whole)
    with console.status("a large model"):
        large = measure_large()
    console.print(
        f"{large.clients} clients with {large.needed / (4e6 * large.clients):.0f} million parameters each, all "
        f"active, states in files: {large.seconds:.0f} s a round, at most {large.memory / 1e9:.1f} GB of memory."
    )
    with console.status("a frozen model"):
        frozen = measure_frozen()
    console.print(
        f"{frozen.clients} clients with adapters on {frozen.needed / 4e6:.0f} million frozen parameters, two workers: "
        f"{frozen.seconds:.0f} s a round, at most {frozen.memory / 1e9:.2f} GB, of which the frozen model is "
        f"{frozen.needed / 1e9:.2f} GB."
    )
    return [*found, large, frozen]


def _table(console: Console, sizes: Sequence[tuple[Shape, int]]) -> list[Growth]:
    """Measure federations and print a line for each."""
    first = sizes[0][0]
    title = f"{ACTIVE} active clients of many, {ROUNDS} rounds, logistic, {first.features} features, processor time"
    table = Table(title=title, title_justify="left")
    for column in ("method", "clients", "start", "per round", "memory", "of data and rows"):
        table.add_column(column, justify="left" if column == "method" else "right")
    found = []
    for shape, clients in sizes:
        with console.status(f"{shape.method}, {clients} clients"):
            one = measure(clients, shape=shape)
        found.append(one)
        table.add_row(
            shape.method,
            f"{one.clients:,}",
            f"{one.start:.2f} s",
            f"{1000 * one.seconds:.1f} ms",
            f"{one.memory / 1e6:.0f} MB",
            f"{one.memory / one.needed:.2f}x",
        )
    console.print(table)
    return found
