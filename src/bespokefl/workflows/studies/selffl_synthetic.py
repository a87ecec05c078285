"""Self-FL's synthetic study: can a federation of scalars be estimated, with few or many active clients?

Chen et al., NeurIPS 2022, appendix G.1, Figures 4 and 5. Twenty clients measure a number each, θ_m ~ N(1.6, σ_0²), by
N_m observations of variance .1. Errors are |estimate − truth|, of θ_0 by the global model and of θ_m by the personal
ones, averaged over clients and repeats. Variances are known, as in the paper; all repeats are trained as one stack.
"""

import json
import math
import multiprocessing
from collections.abc import Callable, Iterator, Sequence
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

from bespokefl.core import rng as chance
from bespokefl.core.client_index import ClientIndex
from bespokefl.core.cohort_data import Batch
from bespokefl.core.errors import TrainingError
from bespokefl.core.files import write_text
from bespokefl.core.method import Method
from bespokefl.core.rows import Rows
from bespokefl.core.task import Objective, Task
from bespokefl.engines.client import Data
from bespokefl.engines.settings import Settings
from bespokefl.engines.simulation import Simulation
from bespokefl.engines.transports.processes import cores
from bespokefl.methods import Ditto, FedAvg, Local, PerFedAvg, PFedMe, SelfFL
from bespokefl.theory import two_level

NAME = "selffl-synthetic"
CLIENTS, PARENT, NOISE = 20, 1.6, 0.1  # M, θ_0, the variance of one observation
RATES = (0.1, 0.2, 0.5, 0.8, 1.0)  # C
ROUNDS, REPEATS, STEPS, LR = 200, 200, 50, 1e-4
PART = (20, 40)  # repeats and rounds of the stated part
NO_LIMIT = 10**6  # ℓ_max: (16) gives at most about 460 steps here

OURS = ("Self-FL, active peers", "Self-FL, all peers", "Self-FL, all peers, no smoothing")
THEIRS = ("FedAvg", "Ditto", "pFedMe", "Per-FedAvg")
ORACLES = ("exact Bayes", "FL-optimum (3)")
# What the paper does not name: Ditto's and pFedMe's λ, Per-FedAvg's α. Chosen on repeats that the tables do not use.
UNNAMED: dict[str, tuple[float, ...]] = {
    "Ditto": (1.0, 10.0, 100.0, 1000.0),
    "pFedMe": (10.0, 100.0, 1000.0),
    "Per-FedAvg": (1e-4, 3e-4, 1e-3),
}
TUNING_REPEATS, TUNING_RATE = 20, 0.5

Todo = Iterator[tuple[str, tuple[Any, ...]]]  # the names of cells, and what to compute them from


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
    sizes: np.ndarray  # N_m
    data: Data

    @property
    def variance(self) -> np.ndarray:
        """σ_m² = .1 / N_m."""
        return NOISE / self.sizes


def half_square(outputs: Tensor, targets: Tensor) -> Tensor:
    return 0.5 * (outputs.flatten() - targets).square()


class Mean(Task):
    """The task (4), (θ − z_m)² / 2σ_m², its gradient written out: for a single number, autograd is all overhead."""

    def __init__(self) -> None:
        super().__init__(lambda: nn.Linear(1, 1, bias=False), half_square, dtype=torch.float64)
        self.start = self.start * 0.0  # θ⁰ = 0

    def gradient(
        self, rows: Rows, batch: Batch, objective: Objective | None = None, per_row: Sequence[Any] = ()
    ) -> Rows:
        x, (theta,) = batch.x, rows.expand(len(batch)).blocks  # (K, 1, 1) each
        return Rows(rows.layout, [x * (x * theta - batch.y.unsqueeze(2))])  # (5)


def federation(case: Case, repeat: int) -> Federation:
    """A client's observations are one example, their mean z as a regression z/σ ~ θ/σ: its loss is (4).

    Clients are named after their repeat, too: Self-FL is told each one's σ_m² by name.
    """
    rng = chance.generator(0, NAME, case.name, repeat)
    sizes = rng.integers(case.sizes[0], case.sizes[1] + 1, CLIENTS)
    truth = PARENT + math.sqrt(case.between) * rng.standard_normal(CLIENTS)
    observed = np.repeat(truth, sizes) + math.sqrt(NOISE) * rng.standard_normal(sizes.sum())
    measured = np.add.reduceat(observed, np.cumsum(sizes) - sizes) / sizes
    scale = np.sqrt(sizes / NOISE)  # 1/σ_m
    nothing = ClientIndex.of_lists([np.zeros(0)] * CLIENTS)
    data = Data(
        x=torch.from_numpy(scale).unsqueeze(1),
        y=torch.from_numpy(scale * measured),
        names=tuple(f"{repeat:05d}/{m:02d}" for m in range(CLIENTS)),
        train=ClientIndex.of_lists(np.arange(CLIENTS).reshape(-1, 1)),
        validation=nothing,
        test=nothing,
    )
    return Federation(truth, measured, sizes, data)


def method(name: str, case: Case, members: Sequence[Federation], unnamed: float = 0.0) -> Method:
    """A row of the tables, for these repeats; `unnamed` is what the paper does not name."""
    if name in OURS:
        variances = {
            client: float(variance)
            for one in members
            for client, variance in zip(one.data.names, one.variance, strict=True)
        }
        return SelfFL(
            lr=LR,
            between=case.between,
            variances=variances,
            divisor="one",
            max_steps=NO_LIMIT,
            peers="active" if "active" in name else "known",
            smoothing=1.0 if "no smoothing" in name else None,
        )
    makers: dict[str, Callable[[], Method]] = {
        "FedAvg": lambda: FedAvg(lr=LR),
        "Ditto": lambda: Ditto(lr=LR, personal_lr=LR, prox_weight=unnamed),
        "pFedMe": lambda: PFedMe(lr=LR, personal_lr=LR, prox_weight=unnamed),
        "Per-FedAvg": lambda: PerFedAvg(lr=LR, inner_rate=unnamed),
        "Local": lambda: Local(lr=LR),
    }
    return makers[name]()


def errors(method: Method, members: Sequence[Federation], rate: float, rounds: int) -> dict[str, list[float]]:
    """Every repeat's error of the global model (where there is one) and mean error of the personal models."""
    settings = Settings(rounds=rounds, participation=rate, batch_size=1, local_steps=STEPS, workers=1, record=False)
    seeds = [replace(settings, seed=repeat) for repeat in range(len(members))]
    simulation = Simulation.stacked(method, Mean(), [one.data for one in members], seeds, None)
    for member, server in zip(members, simulation.federations, strict=True):
        server.sizes = member.sizes.tolist()  # the one example stands for so many observations
    found: dict[str, list[float]] = {"personal": []}
    for member, outcome in zip(members, simulation.run_all(), strict=True):
        personal = outcome.personal_rows.matrix().flatten().numpy()
        found["personal"].append(float(np.abs(personal - member.truth).mean()))
        if outcome.global_rows is not None:
            found.setdefault("global", []).append(abs(float(outcome.global_rows.matrix()) - PARENT))
    return found


def oracles(case: Case, members: Sequence[Federation]) -> dict[str, dict[str, list[float]]]:
    """What the formulas give that see every client's data at once."""
    truth, measured, variance = (
        np.stack([getattr(one, what) for one in members]) for what in ("truth", "measured", "variance")
    )
    given = (measured, np.full(len(members), case.between), variance)
    best = np.abs(two_level.global_optimum(*given) - PARENT)
    bayes, paper = (
        np.abs(estimate(*given) - truth).mean(1) for estimate in (two_level.exact_bayes, two_level.fl_optimum)
    )
    return {
        "exact Bayes": {"personal": bayes.tolist(), "global": best.tolist()},
        "FL-optimum (3)": {"personal": paper.tolist()},
    }


def cell(case: Case, name: str, unnamed: float, rate: float, repeats: range, rounds: int) -> dict[str, list[float]]:
    """One cell of a table."""
    members = [federation(case, repeat) for repeat in repeats]
    return errors(method(name, case, members, unnamed), members, rate, rounds)


def trial(case: Case, name: str, unnamed: float, rounds: int) -> dict[str, list[float]]:
    """The errors with one value of what the paper does not name; none, if training diverges."""
    try:
        return cell(case, name, unnamed, TUNING_RATE, range(10_000, 10_000 + TUNING_REPEATS), rounds)
    except TrainingError:
        return {}


def main(folder: Path, part: bool) -> None:
    """Run what is not done yet, print both cases, and check the paper's claims."""
    repeats, rounds = PART if part else (REPEATS, ROUNDS)
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / ("part.json" if part else "cells.json")
    cells: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {}
    console = Console()
    console.print(
        f"Self-FL's synthetic study (appendix G.1): {repeats} repeats, {rounds} rounds, {CLIENTS} clients, "
        f"learning rate {LR}, baselines {STEPS} steps. The paper shows curves and no figures. It does not name Ditto's "
        "and pFedMe's λ and Per-FedAvg's α: they are chosen here on other repeats."
    )
    if part:
        console.print(f"A part: the paper has {REPEATS} repeats and {ROUNDS} rounds.")
    context = multiprocessing.get_context("fork")
    pool = ProcessPoolExecutor(cores(), context, initializer=torch.set_num_threads, initargs=(1,))
    with Progress(console=console, transient=True) as progress, pool:
        # A cell is a process: the servers of two hundred federations take as long as their clients.
        def run(work: Callable[..., dict[str, list[float]]], todo: Todo) -> None:
            rest = [(key, arguments) for key, arguments in todo if key not in cells]
            bar = progress.add_task(f"{work.__name__}s", total=len(rest))
            running = {pool.submit(work, *arguments): key for key, arguments in rest}
            try:
                for done in as_completed(running):
                    cells[running[done]] = done.result()
                    write_text(file, json.dumps(cells))
                    progress.advance(bar)
            except BaseException:  # Ctrl-C, too: the pool would else finish all that is waiting
                for worker in multiprocessing.active_children():
                    worker.kill()
                raise

        run(trial, _trials(rounds))
        run(cell, _cells(cells, repeats, rounds))
    for case in CASES:
        found = oracles(case, [federation(case, repeat) for repeat in range(repeats)])
        cells |= {f"{case.name}/{name}/{rate}": errors for name, errors in found.items() for rate in RATES}
        # With all clients active there is nobody else to know of, and C = 1 smoothes nothing.
        cells |= {f"{case.name}/{name}/1.0": cells[f"{case.name}/{OURS[0]}/1.0"] for name in OURS}
        console.print(_table(case, cells))
    for sentence, holds in claims(cells):
        console.print(f"{'holds' if holds else 'DOES NOT HOLD'}: {sentence}")
    console.print(f"All figures: {file}")


def _trials(rounds: int) -> Todo:
    for case in CASES:
        for name, values in UNNAMED.items():
            for value in values:
                yield _tuning_key(case, name, value), (case, name, value, rounds)


def _tuning_key(case: Case, name: str, value: float) -> str:
    return f"{case.name}/tuning {name}/{value:g}"


def _chosen(cells: dict[str, Any], case: Case, name: str) -> float:
    """What the paper does not name: the value with the least personal error on the other repeats."""
    found = {value: cells[_tuning_key(case, name, value)].get("personal", math.inf) for value in UNNAMED.get(name, ())}
    return min(found, key=lambda value: float(np.mean(found[value])), default=0.0)


def _cells(cells: dict[str, Any], repeats: int, rounds: int) -> Todo:
    for rate in RATES[::-1]:  # the longest first
        for case in CASES:
            for name in (*OURS[: 1 if rate == 1 else None], *THEIRS, "Local"):
                value = _chosen(cells, case, name)
                yield f"{case.name}/{name}/{rate}", (case, name, value, rate, range(repeats), rounds)


def claims(cells: dict[str, Any]) -> list[tuple[str, bool]]:
    """The paper's statements about Figures 4 and 5, with slack fixed beforehand: two standard errors, a quarter."""
    few, many = RATES[:2], RATES[2:]
    found = []

    def nobody_better(case: str, name: str, kind: str, rates: Sequence[float], rivals: Sequence[str], who: str) -> None:
        """By how many standard errors of the paired difference the nearest rival is better, if any is."""
        gaps = {}
        for rate in rates:
            for rival in rivals:
                ours, theirs = (np.array(cells[f"{case}/{one}/{rate}"][kind]) for one in (name, rival))
                gap = ours - theirs
                gaps[rate, rival] = (gap.mean(), gap.std(ddof=1) / math.sqrt(len(gap)))
        rate, rival = max(gaps, key=lambda key: gaps[key][0] - 2 * gaps[key][1])
        gap, sem = gaps[rate, rival]
        where = f"{1e3 * gap:+.1f} (SEM {1e3 * sem:.1f}) against {rival} at C = {rate:g}"
        span = f"C = {min(rates):g} to {max(rates):g}"
        found.append((f"{case}, {span}: {name} has a {kind} error not above {who}: {where}", gap <= 2 * sem))

    for name in (*OURS, "Per-FedAvg"):
        for kind in ("personal", "global"):
            nobody_better("homogeneous", name, kind, many, THEIRS[:3], "FedAvg's, Ditto's and pFedMe's")
    for name in OURS:
        for kind in ("personal", "global"):
            nobody_better("homogeneous", name, kind, few, THEIRS, "any of the others")
    for name in OURS:
        for kind in ("personal", "global"):
            means = [float(np.mean(cells[f"heterogeneous/{name}/{rate}"][kind])) for rate in RATES]
            ratio = max(means) / min(means)
            sentence = f"heterogeneous: the {kind} error of {name} changes with C by less than a quarter ({ratio:.3f})"
            found.append((sentence, ratio < 1.25))
    for case in CASES:
        for name in OURS:
            nobody_better(case.name, name, "personal", RATES, ("Local",), "Local's (no claim of the paper)")
    return found


def _table(case: Case, cells: dict[str, Any]) -> Table:
    table = Table(title=f"{case.name}: σ_0² = {case.between}, N_m in {case.sizes}; 1000 x error (SEM)")
    table.add_column("")
    table.add_column("of")
    for rate in RATES:
        table.add_column(f"C = {rate:g}", justify="right")
    for kind in ("personal", "global"):
        for name in (*OURS, *THEIRS, "Local", *ORACLES):
            values = [cells[f"{case.name}/{name}/{rate}"].get(kind) for rate in RATES]
            if values[0] is not None:
                shown = [f"{1e3 * np.mean(v):.1f} ({1e3 * np.std(v, ddof=1) / math.sqrt(len(v)):.1f})" for v in values]
                table.add_row(name, kind, *shown)
        table.add_section()
    chosen = {name: _chosen(cells, case, name) for name in UNNAMED}
    table.caption = "Chosen on other repeats: " + ", ".join(f"{name} {value:g}" for name, value in chosen.items())
    return table
