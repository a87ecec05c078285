"""Self-FL's synthetic study: can a federation of scalars be estimated, with few or many active clients?

Chen et al., NeurIPS 2022, appendix G.1, Figures 4 and 5. Twenty clients measure a number each, θ_m ~ N(1.6, σ_0²), by
N_m observations of variance .1. Errors are |estimate − truth|, of θ_0 by the global model and of θ_m by the personal
ones, averaged over clients and repeats. Variances are known, as in the paper; all repeats are trained as one stack.
"""

import json
import math
import multiprocessing
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from torch import Tensor, nn

from bespokefl.core import chance
from bespokefl.core.method import Method
from bespokefl.core.parts import Part
from bespokefl.core.task import Task
from bespokefl.engines.client import Data
from bespokefl.engines.federation import Settings
from bespokefl.engines.simulation import Simulation
from bespokefl.engines.workers import cores
from bespokefl.experiments.reproduce.files import write_json
from bespokefl.methods import Ditto, FedAvg, Local, SelfFL
from bespokefl.theory import two_level

NAME = "selffl-synthetic"
CLIENTS, PARENT, NOISE = 20, 1.6, 0.1  # M, θ_0, the variance of one observation
RATES = (0.1, 0.2, 0.5, 0.8, 1.0)  # C
ROUNDS, REPEATS, STEPS, LR = 200, 200, 50, 1e-4
PULLS = (1.0, 10.0, 100.0, 1000.0)  # Ditto's λ / η: the paper does not name λ


@dataclass(frozen=True)
class Case:
    """One of the two settings."""

    name: str
    between: float  # σ_0²
    sizes: tuple[int, int]  # N_m is uniform between these


CASES = (Case("homogeneous", 0.001, (10, 20)), Case("heterogeneous", 1.0, (10, 200)))


@dataclass(frozen=True)
class Federation:
    """One repeat: the truth, what the clients measured, and the same as a data set."""

    truth: np.ndarray  # θ_m
    measured: np.ndarray  # z_m, the mean of the observations
    variance: np.ndarray  # σ_m² = .1 / N_m
    data: Data


def half_square(outputs: Tensor, targets: Tensor) -> Tensor:
    return 0.5 * (outputs.flatten() - targets).square()


def federation(case: Case, repeat: int) -> Federation:
    """Observations o_i of client m as a regression √(N/.1) o_i ~ √(N/.1) θ: the mean loss is (4), summed over data."""
    rng = chance.generator(0, NAME, case.name, repeat)
    sizes = rng.integers(case.sizes[0], case.sizes[1] + 1, CLIENTS)
    truth = PARENT + math.sqrt(case.between) * rng.standard_normal(CLIENTS)
    observed = np.repeat(truth, sizes) + math.sqrt(NOISE) * rng.standard_normal(sizes.sum())
    scale = np.sqrt(np.repeat(sizes, sizes) / NOISE)
    own = np.split(np.arange(sizes.sum()), np.cumsum(sizes)[:-1])
    nothing = Part.of_lists([np.zeros(0)] * CLIENTS)
    data = Data(
        x=torch.from_numpy(scale).float().unsqueeze(1),
        y=torch.from_numpy(scale * observed).float(),
        names=tuple(f"{m:02d}" for m in range(CLIENTS)),
        train=Part.of_lists(own),
        validation=nothing,
        test=nothing,
    )
    measured = np.array([observed[indices].mean() for indices in own])
    return Federation(truth, measured, NOISE / sizes, data)


def methods(case: Case, pull: float) -> dict[str, Method]:
    """Self-FL with S₋ₘ over the round's active clients, as the study must have it, and over all (the default)."""
    known: dict[str, Any] = {"lr": LR, "between": case.between, "noise": NOISE, "divisor": "one", "max_steps": 200}
    return {
        "Self-FL": SelfFL(**known, peers="active"),
        "Self-FL, all peers": SelfFL(**known),
        "FedAvg": FedAvg(lr=LR),
        "Ditto": Ditto(lr=LR, personal_lr=LR, pull=pull),
        "Local": Local(lr=LR),
    }


def errors(method: Method, members: list[Federation], rate: float, rounds: int) -> dict[str, list[float]]:
    """Every repeat's error of the global model (where there is one) and mean error of the personal models."""
    settings = Settings(rounds=rounds, participation=rate, batch_size=10**6, local_steps=STEPS, workers=1)
    task = Task(lambda: nn.Linear(1, 1, bias=False), half_square)
    task.start = task.start * 0.0  # θ⁰ = 0
    seeds = [replace(settings, seed=repeat) for repeat in range(len(members))]
    outcomes = Simulation.stacked(method, task, [one.data for one in members], seeds, None).run_all()
    found: dict[str, list[float]] = {"personal": []}
    for member, outcome in zip(members, outcomes, strict=True):
        personal = outcome.personal_rows.matrix().flatten().numpy()
        found["personal"].append(float(np.abs(personal - member.truth).mean()))
        if outcome.global_rows is not None:
            found.setdefault("global", []).append(abs(float(outcome.global_rows.matrix()) - PARENT))
    return found


def oracles(case: Case, members: list[Federation]) -> dict[str, dict[str, list[float]]]:
    """What the formulas give that see every client's data at once."""
    found: dict[str, dict[str, list[float]]] = {
        "exact Bayes": {"personal": [], "global": []},
        "FL-optimum (3)": {"personal": []},
    }
    for one in members:
        given = (one.measured, case.between, one.variance)
        found["exact Bayes"]["global"].append(abs(float(two_level.global_optimum(*given)) - PARENT))
        for name, estimate in (("exact Bayes", two_level.exact_bayes), ("FL-optimum (3)", two_level.fl_optimum)):
            found[name]["personal"].append(float(np.abs(estimate(*given) - one.truth).mean()))
    return found


def cell(case: Case, name: str, pull: float, rate: float, repeats: int, rounds: int) -> dict[str, list[float]]:
    """One cell of a table."""
    members = [federation(case, repeat) for repeat in range(repeats)]
    return errors(methods(case, pull)[name], members, rate, rounds)


def tuned_pull(case: Case, rounds: int) -> float:
    """Ditto's pull, the best of a few for personal error at C = .5, on repeats that the tables do not use."""
    others = [federation(case, 10_000 + repeat) for repeat in range(20)]

    def error(pull: float) -> float:
        return float(np.mean(errors(methods(case, pull)["Ditto"], others, 0.5, rounds)["personal"]))

    return min(PULLS, key=error)


def main(folder: Path, part: bool) -> None:
    """Run what is not done yet, print both cases, and check the paper's claims."""
    repeats, rounds = (20, 40) if part else (REPEATS, ROUNDS)
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / ("part.json" if part else "cells.json")
    cells: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {}
    console = Console()
    console.print(
        f"Self-FL's synthetic study (appendix G.1): {repeats} repeats, {rounds} rounds, {CLIENTS} clients, "
        f"learning rate {LR}, baselines {STEPS} steps. The paper shows curves and no figures; it does not name Ditto's "
        "weight, which is chosen here on other repeats."
    )
    if part:
        console.print(f"A part: the paper has {REPEATS} repeats and {ROUNDS} rounds.")
    with Progress(console=console, transient=True) as progress:
        todo = []
        for case in CASES:
            members = [federation(case, repeat) for repeat in range(repeats)]
            for name, found in oracles(case, members).items():
                cells.update({f"{case.name}/{name}/{rate}": found for rate in RATES})
            pull = cells.get(f"{case.name}/pull") or tuned_pull(case, rounds)
            cells[f"{case.name}/pull"] = pull
            keys = [(f"{case.name}/{name}/{rate}", name, rate) for rate in RATES for name in methods(case, pull)]
            todo += [(key, (case, name, pull, rate, repeats, rounds)) for key, name, rate in keys if key not in cells]
        write_json(file, cells)
        bar = progress.add_task("cells", total=len(todo))
        # A cell is a process: the servers of two hundred federations take as long as their clients.
        context = multiprocessing.get_context("fork")
        with ProcessPoolExecutor(cores(), context, initializer=torch.set_num_threads, initargs=(1,)) as pool:
            running = {pool.submit(cell, *arguments): key for key, arguments in todo}
            for done in as_completed(running):
                cells[running[done]] = done.result()
                write_json(file, cells)
                progress.advance(bar)
    for case in CASES:
        console.print(_table(case, cells))
    for sentence, holds in claims(cells):
        console.print(f"{'holds' if holds else 'DOES NOT HOLD'}: {sentence}")
    console.print(f"All figures: {file}")


def claims(cells: dict[str, Any]) -> list[tuple[str, bool]]:
    """The paper's statements about Figures 4 and 5, with slack fixed beforehand."""

    def mean(case: str, name: str, rate: float, kind: str) -> float:
        return float(np.mean(cells[f"{case}/{name}/{rate}"][kind]))

    def best(kind: str, rates: tuple[float, ...], rivals: tuple[str, ...]) -> bool:
        return all(
            mean("homogeneous", "Self-FL", rate, kind)
            <= mean("homogeneous", rival, rate, kind) + 2 * _paired_sem(cells, "homogeneous", rival, rate, kind)
            for rate in rates
            for rival in rivals
        )

    def range_over_rates(kind: str) -> float:
        values = [mean("heterogeneous", "Self-FL", rate, kind) for rate in RATES]
        return max(values) / min(values)

    return [
        (
            "homogeneous, C >= .5: nobody has a smaller personal error than Self-FL (within 2 SEM)",
            best("personal", RATES[2:], ("FedAvg", "Ditto", "Local")),
        ),
        (
            "homogeneous, C >= .5: nobody has a smaller global error than Self-FL (within 2 SEM)",
            best("global", RATES[2:], ("FedAvg", "Ditto")),
        ),
        (
            "homogeneous, C <= .2: nobody has a smaller personal error than Self-FL (within 2 SEM)",
            best("personal", RATES[:2], ("FedAvg", "Ditto", "Local")),
        ),
        (
            "heterogeneous: Self-FL's personal error changes with C by less than a quarter "
            f"(ratio {range_over_rates('personal'):.2f})",
            range_over_rates("personal") < 1.25,
        ),
        (
            "heterogeneous: Self-FL's global error changes with C by less than a quarter "
            f"(ratio {range_over_rates('global'):.2f})",
            range_over_rates("global") < 1.25,
        ),
    ]


def _paired_sem(cells: dict[str, Any], case: str, rival: str, rate: float, kind: str) -> float:
    ours, theirs = (np.array(cells[f"{case}/{name}/{rate}"][kind]) for name in ("Self-FL", rival))
    return float((ours - theirs).std(ddof=1) / math.sqrt(len(ours)))


def _table(case: Case, cells: dict[str, Any]) -> Table:
    table = Table(title=f"{case.name}: σ_0² = {case.between}, N_m in {case.sizes}; 1000 x error (SEM)")
    table.add_column("")
    table.add_column("of")
    for rate in RATES:
        table.add_column(f"C = {rate:g}", justify="right")
    names = ["Self-FL", "Self-FL, all peers", "FedAvg", "Ditto", "Local", "exact Bayes", "FL-optimum (3)"]
    for kind in ("personal", "global"):
        for name in names:
            values = [cells[f"{case.name}/{name}/{rate}"].get(kind) for rate in RATES]
            if values[0] is not None:
                shown = [f"{1e3 * np.mean(v):.1f} ({1e3 * np.std(v, ddof=1) / math.sqrt(len(v)):.1f})" for v in values]
                table.add_row(name, kind, *shown)
        table.add_section()
    table.caption = f"Ditto's pull: {cells[f'{case.name}/pull']:g}"
    return table
