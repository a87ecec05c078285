"""Measure how the cost of Ditto grows with clients, parameters and rounds, and draw it.

The measurements are stored in a file, from which the figure of docs/performance.md is drawn.
"""

import json
import statistics
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from bespokefl.core.errors import InputError
from bespokefl.core.system.files import write_text
from bespokefl.core.task import Task
from bespokefl.data import Clients
from bespokefl.engines.settings import Settings
from bespokefl.engines.simulation import Simulation
from bespokefl.methods import Ditto
from bespokefl.models import build
from bespokefl.workflows.run.convert import engine_data
from bespokefl_evidence.benchmarks import scale
from bespokefl_evidence.benchmarks.scale import ACTIVE, CLASSES, DITTO
from bespokefl_evidence.pages.drawing import Drawing, Panel

STORED = Path("docs/figures/growth.json")  # in a checkout of the repository
FIGURE = Path("docs/figures/growth.svg")
CLIENTS = (1_000, 3_000, 10_000, 30_000, 100_000)
WIDTHS = (4, 12, 40, 120, 400, 1200)  # of the hidden layer: 1,000 to 300,000 parameters
ROUNDS = (10, 20, 50, 100, 200)
TIMED = 10  # rounds, for clients and parameters
FEW = 1_000  # clients, for parameters and rounds
PANELS = {
    "clients": ("logistic model", "clients", "ms of a round"),
    "parameters": (f"{FEW:,} clients", "parameters", "ms of a round"),
    "rounds": (f"{FEW:,} clients, logistic model", "rounds", "seconds of all rounds"),
}


@dataclass(frozen=True)
class Point:
    """Processor seconds at one size: of a round, or of all rounds."""

    axis: str
    size: int
    seconds: float


def measure(*, quick: bool = False) -> list[Point]:
    """Measure all sizes, each in a new process with one thread; `quick` takes the two smallest."""
    few = 2 if quick else None
    found = [Point("clients", size, statistics.median(_rounds(size, "logistic", TIMED))) for size in CLIENTS[:few]]
    for width in WIDTHS[:few]:
        seconds = statistics.median(_rounds(FEW, f"mlp({width})", TIMED))
        found.append(Point("parameters", (DITTO.features + 1) * width + (width + 1) * CLASSES, seconds))
    seconds_of = _rounds(FEW, "logistic", ROUNDS[:few][-1])
    return found + [Point("rounds", size, sum(seconds_of[:size])) for size in ROUNDS[:few]]


def _rounds(clients: int, model: str, rounds: int) -> list[float]:
    """The processor seconds of each round, after one that warms up."""

    def run() -> list[float]:
        federation = Clients.from_arrays(*scale.arrays(clients, DITTO))
        data = engine_data(federation, torch.device("cpu"), torch.float32)
        task = Task(build(model, (DITTO.features,), CLASSES))
        settings = Settings(rounds=rounds + 1, participation=ACTIVE / clients, batch_size=10, workers=1)
        simulation, seconds = Simulation(Ditto(), task, data, settings, CLASSES), []
        with simulation.open():
            for number in range(1, rounds + 2):
                began = time.process_time()
                simulation.round(number, simulation.method.phases(rounds)[0])
                seconds.append(time.process_time() - began)
        return seconds[1:]

    return scale.in_new_process(run, f"{model} with {clients} clients")


def drawing(points: Sequence[Point]) -> Drawing:
    """One diagram for each axis, both scales logarithmic."""

    def panel(axis: str) -> Panel:
        title, x, y = PANELS[axis]
        own = [one for one in points if one.axis == axis]
        factor = 1.0 if axis == "rounds" else 1000.0

        def draw(axes: Any) -> None:
            axes.loglog([one.size for one in own], [factor * one.seconds for one in own], marker="o")
            axes.set_ylim(bottom=min(factor * one.seconds for one in own) / 3)

        return Panel(title, x, y, draw, legend=False)

    return Drawing(FIGURE.name, "Cost against clients, parameters and rounds", [panel(axis) for axis in PANELS])


def load(path: Path) -> list[Point]:
    """Read stored measurements."""
    if not path.is_file():
        raise InputError(f"there are no measurements at {str(path)!r}: make them with bespoke bench --growth.")
    return [Point(**one) for one in json.loads(path.read_text(encoding="utf-8"))]


def main(*, quick: bool = False, stored: bool = False) -> list[Point]:
    """Measure, or take what is stored; in a checkout of the repository, store measurements and draw the figure."""
    console = Console()
    if stored:
        found = load(STORED)
    else:
        with console.status("measuring cost against clients, parameters and rounds"):
            found = measure(quick=quick)
    for one in found:
        console.print(f"{one.size:,} {one.axis}: {one.seconds:.3g} s")
    if STORED.parent.is_dir() and FIGURE.parent.is_dir() and not quick:
        write_text(STORED, json.dumps([asdict(one) for one in found], indent=1) + "\n")
        write_text(FIGURE, drawing(found).svg())
        console.print(f"Written to {STORED} and {FIGURE}.")
    return found
