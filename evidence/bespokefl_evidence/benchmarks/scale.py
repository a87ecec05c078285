"""Measure how a simulation scales: a hundred active clients among more and more, and clients with a large model.

Each measurement runs in its own process, so that its memory can be measured.
"""

import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from bespokefl.core import rng
from bespokefl.core.task import Task
from bespokefl.data import Clients
from bespokefl.engines.settings import Settings
from bespokefl.engines.simulation import Simulation
from bespokefl.engines.storage.checkpoints import CheckpointInterval, Checkpoints
from bespokefl.methods import Ditto
from bespokefl.models import build
from bespokefl.workflows.run import jobs
from bespokefl.workflows.run.convert import engine_data

SIZES = (1_000, 10_000, 100_000)
ACTIVE, ROUNDS, CHECKPOINT_ROUNDS = 100, 50, 10
FEATURES, CLASSES, EXAMPLES = 256, 10, 20
LARGE_CLIENTS, LARGE_WIDTH, LARGE_EXAMPLES = 100, 18_725, 4  # five million parameters


@dataclass(frozen=True)
class Growth:
    """Time and memory of one size."""

    clients: int
    start: float  # seconds for split and state
    seconds: float  # per round, median
    memory: int  # peak bytes of anonymous memory, checkpoints included, beyond those of a tiny federation
    needed: int  # bytes of the data and of the rows of clients that have been active
    usual: int = 0  # bytes that the tiny federation needs besides its own data and rows


def measure(clients: int, rounds: int = ROUNDS) -> Growth:
    """Measure Ditto, which keeps a row for each client, in a new process."""

    def grow() -> list[float]:
        # Libraries, and the working memory of a round with this many active clients, are the same for any federation.
        before = anonymous()
        *_, usual, _ = _grow(2 * ACTIVE, rounds)
        start, seconds, extra, needed = _grow(clients, rounds)
        return [start, seconds, needed + extra - usual, needed, usual - before]

    start, seconds, *sizes = _in_new_process(grow, f"the run with {clients} clients")
    return Growth(clients, start, seconds, *map(int, sizes))


def measure_large(clients: int = LARGE_CLIENTS) -> Growth:
    """Measure the peak memory of Ditto with a large model, all clients active, states in files."""
    start, seconds, memory, needed = _in_new_process(lambda: list(_large(clients)), "the run with the large model")
    return Growth(clients, start, seconds, int(memory), int(needed))


def _in_new_process(measured: Callable[[], list[float]], what: str) -> list[float]:
    """Call a function in a new process with one thread."""
    ((_, outcome),) = jobs.run_jobs([jobs.Job(what, lambda report: measured())], processes=2)
    if isinstance(outcome, Exception):
        raise outcome
    found: list[float] = outcome
    return found


def _grow(clients: int, rounds: int) -> tuple[float, float, int, int]:
    """Return seconds to start and per round, peak memory besides data and rows, and the bytes of these."""
    generator = rng.generator(0, "scale")
    total = clients * EXAMPLES
    x = generator.standard_normal((total, FEATURES), dtype=np.float32)
    y = generator.integers(0, CLASSES, total)
    ids = np.repeat(np.arange(clients), EXAMPLES)
    started = time.perf_counter()
    federation = Clients.from_arrays(x, y, ids)
    data = engine_data(federation, torch.device("cpu"), torch.float32)
    task = Task(build("logistic", (FEATURES,), CLASSES))
    settings = Settings(rounds=rounds, participation=ACTIVE / clients, batch_size=10, workers=1)
    run = Simulation(Ditto(), task, data, settings, CLASSES)
    start = time.perf_counter() - started
    phase = run.method.phases(rounds)[0]
    needed = [data.x.nbytes + data.y.nbytes + ids.nbytes]
    fixed = needed[0]
    with run.open(), tempfile.TemporaryDirectory(prefix="bespoke-scale-") as directory:
        checkpoints = Checkpoints(Path(directory) / "checkpoints", CheckpointInterval(rounds=CHECKPOINT_ROUNDS), {})

        def train(number: int) -> None:
            run.round(number, phase)
            needed[0] = fixed + len(run.store) * task.layout.width * 4

        for number in range(1, rounds + 1):  # timed, without measuring memory
            train(number)
        with _peak(lambda: anonymous() - needed[0]) as most:
            for number in range(rounds + 1, 2 * rounds + 1):  # checkpoints may take time, but little memory
                train(number)
                if checkpoints.is_due(number):
                    checkpoints.save(run.snapshot(number))
            checkpoints.wait()
    return start, statistics.median(run._seconds[1:rounds]), most[0], needed[0]


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


def _large(clients: int) -> tuple[float, float, int, int]:
    generator = rng.generator(0, "large")
    ids = np.repeat(np.arange(clients), LARGE_EXAMPLES)
    x = generator.standard_normal((len(ids), FEATURES), dtype=np.float32)
    with tempfile.TemporaryDirectory(prefix="bespoke-scale-") as directory, _peak(anonymous) as peak:
        started = time.perf_counter()
        federation = Clients.from_arrays(x, generator.integers(0, CLASSES, len(ids)), ids)
        data = engine_data(federation, torch.device("cpu"), torch.float32)
        task = Task(build(f"mlp({LARGE_WIDTH})", (FEATURES,), CLASSES))
        settings = Settings(rounds=1, batch_size=LARGE_EXAMPLES, workers=1, state_dir=directory)
        run = Simulation(Ditto(), task, data, settings, CLASSES)
        start = time.perf_counter() - started
        run.run()
    return start, run._seconds[0], peak[0], clients * task.layout.width * 4


def anonymous() -> int:
    """Return the bytes of anonymous memory of this process."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    return 0


def main(*, quick: bool = False) -> list[Growth]:
    """Measure all sizes and print a table."""
    console = Console()
    table = Table(title=f"{ACTIVE} active clients of many, {ROUNDS} rounds of ditto, logistic", title_justify="left")
    for column in ("clients", "start", "per round", "memory", "of data and rows"):
        table.add_column(column, justify="right")
    found = []
    for clients in SIZES[: 2 if quick else None]:
        with console.status(f"{clients} clients"):
            one = measure(clients)
        found.append(one)
        table.add_row(
            f"{clients:,}",
            f"{one.start:.2f} s",
            f"{1000 * one.seconds:.1f} ms",
            f"{one.memory / 1e6:.0f} MB",
            f"{one.memory / one.needed:.2f}x",
        )
    console.print(table)
    if not quick:
        with console.status("a large model"):
            large = measure_large()
        console.print(
            f"{large.clients} clients with {large.needed / (4e6 * large.clients):.0f} million parameters each, all "
            f"active, states in files: {large.seconds:.0f} s a round, at most {large.memory / 1e9:.1f} GB of memory."
        )
        found.append(large)
    return found
