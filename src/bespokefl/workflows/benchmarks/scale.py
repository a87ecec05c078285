"""How a simulation grows: the same hundred active clients among ever more, and a hundred clients with a large model.

Each runs in a process of its own, so that its memory can be told.
"""

import os
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

from bespokefl.core import rng as chance
from bespokefl.core.errors import TrainingError
from bespokefl.core.task import Task
from bespokefl.data import Clients
from bespokefl.engines.settings import Settings
from bespokefl.engines.simulation import Simulation
from bespokefl.engines.storage.checkpoints import CheckpointInterval, Checkpoints
from bespokefl.methods import Ditto
from bespokefl.models import build
from bespokefl.workflows.run.convert import engine_data

SIZES = (1_000, 10_000, 100_000)
ACTIVE, ROUNDS, SAVED = 100, 50, 10
FEATURES, CLASSES, EXAMPLES = 256, 10, 20
LARGE_CLIENTS, LARGE_WIDTH, LARGE_EXAMPLES = 100, 18_725, 4  # five million parameters


@dataclass(frozen=True)
class Growth:
    """What one size took."""

    clients: int
    start: float  # seconds for split and state
    seconds: float  # per round, median
    memory: int  # the most bytes of anonymous memory, checkpoints and all, beyond those of a tiny federation
    needed: int  # bytes of data and of rows of clients that have been active
    usual: int = 0  # bytes that the tiny federation took beside its own data and rows


def measure(clients: int, rounds: int = ROUNDS) -> Growth:
    """Ditto, which keeps a row for each client, in a new process."""

    def grow() -> tuple[float, ...]:
        # What libraries load, and what a round of so many active clients works with, is the same for any federation.
        before = anonymous()
        *_, usual, _ = _grow(2 * ACTIVE, rounds)
        start, seconds, beside, needed = _grow(clients, rounds)
        return start, seconds, needed + beside - usual, needed, usual - before

    start, seconds, *sizes = _apart(grow, f"the run with {clients} clients")
    return Growth(clients, start, seconds, *map(int, sizes))


def measure_large(clients: int = LARGE_CLIENTS) -> Growth:
    """Ditto with a large model, all clients active and scored, states in files: its peak of memory."""
    start, seconds, memory, needed = _apart(lambda: _large(clients), "the run with the large model")
    return Growth(clients, start, seconds, int(memory), int(needed))


def _apart(measured: Callable[[], tuple[float, ...]], what: str) -> list[float]:
    """What a function returns, called in a new process with one thread."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            torch.set_num_threads(1)
            with os.fdopen(writer, "w") as pipe:
                print(*measured(), file=pipe)
            code = 0
        finally:
            os._exit(code)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        told = pipe.read().split()
    os.waitpid(child, 0)
    if not told:
        raise TrainingError(f"{what} died; does the machine have enough memory and disk?")
    return [float(one) for one in told]


def _grow(clients: int, rounds: int) -> tuple[float, float, int, int]:
    """Seconds to start and of a round; the most memory beside data and rows; and these."""
    rng = chance.generator(0, "scale")
    total = clients * EXAMPLES
    x = rng.standard_normal((total, FEATURES), dtype=np.float32)
    y = rng.integers(0, CLASSES, total)
    ids = np.repeat(np.arange(clients), EXAMPLES)
    began = time.perf_counter()
    federation = Clients.from_arrays(x, y, ids)
    data = engine_data(federation, torch.device("cpu"), torch.float32)
    task = Task(build("logistic", (FEATURES,), CLASSES))
    settings = Settings(rounds=rounds, participation=ACTIVE / clients, batch_size=10, workers=1)
    run = Simulation(Ditto(), task, data, settings, CLASSES)
    start = time.perf_counter() - began
    phase = run.method.phases(rounds)[0]
    needed = [data.x.nbytes + data.y.nbytes + ids.nbytes]
    fixed = needed[0]
    with run.open(), tempfile.TemporaryDirectory(prefix="bespoke-scale-") as place:
        checkpoints = Checkpoints(Path(place) / "checkpoints", CheckpointInterval(rounds=SAVED), {})

        def train(number: int) -> None:
            run.round(number, phase)
            needed[0] = fixed + len(run.store) * task.layout.width * 4

        for number in range(1, rounds + 1):  # timed, with nobody watching
            train(number)
        with _watched(lambda: anonymous() - needed[0]) as most:
            for number in range(rounds + 1, 2 * rounds + 1):  # checkpoints may take time, but hardly memory
                train(number)
                if checkpoints.is_due(number):
                    checkpoints.save(run.snapshot(number))
            checkpoints.wait()
    return start, statistics.median(run._seconds[1:rounds]), most[0], needed[0]


@contextmanager
def _watched(value: Callable[[], int]) -> Iterator[list[int]]:
    """The most that something comes to meanwhile; to be read afterwards."""
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
    rng = chance.generator(0, "large")
    ids = np.repeat(np.arange(clients), LARGE_EXAMPLES)
    x = rng.standard_normal((len(ids), FEATURES), dtype=np.float32)
    with tempfile.TemporaryDirectory(prefix="bespoke-scale-") as place, _watched(anonymous) as peak:
        began = time.perf_counter()
        federation = Clients.from_arrays(x, rng.integers(0, CLASSES, len(ids)), ids)
        data = engine_data(federation, torch.device("cpu"), torch.float32)
        task = Task(build(f"mlp({LARGE_WIDTH})", (FEATURES,), CLASSES))
        settings = Settings(rounds=1, batch_size=LARGE_EXAMPLES, workers=1, state_dir=place)
        run = Simulation(Ditto(), task, data, settings, CLASSES)
        start = time.perf_counter() - began
        run.run()
    return start, run._seconds[0], peak[0], clients * task.layout.width * 4


def anonymous() -> int:
    """Bytes of this process's anonymous memory."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    return 0


def main(*, quick: bool = False) -> list[Growth]:
    """Measure and print."""
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
