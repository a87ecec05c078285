"""Self-FL's synthetic study: estimate a federation of scalars with few or many active clients.

Chen et al., NeurIPS 2022, appendix G.1, Figures 4 and 5. Each of twenty clients measures a number θ_m ~ N(1.6, σ_0²) by
N_m observations of variance .1. Errors are |estimate − truth|, of θ_0 for the global model and of θ_m for the personal
models, averaged over clients and repeats. Variances are known, as in the paper; all repeats are trained as one stack.
"""

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

from bespokefl.core import rng
from bespokefl.core.client_index import ClientIndex
from bespokefl.core.cohort_data import Batch
from bespokefl.core.errors import TrainingError
from bespokefl.core.method import Method
from bespokefl.core.rows import Rows
from bespokefl.core.task import Objective, Task
from bespokefl.engines.client import Data
from bespokefl.engines.settings import Settings
from bespokefl.engines.simulation import Simulation
from bespokefl.methods import Ditto, FedAvg, Local, PerFedAvg, PFedMe, SelfFL
from bespokefl.theory import two_level
from bespokefl_evidence.studies.cells import Cell, CellStore, Spec
from bespokefl_evidence.studies.summaries import mean_and_error, print_claims

NAME = "selffl-synthetic"
SUMMARY = (__doc__ or "").splitlines()[0]
NUM_CLIENTS, GLOBAL_MEAN, NOISE = 20, 1.6, 0.1  # M, θ_0, the variance of one observation
RATES = (0.1, 0.2, 0.5, 0.8, 1.0)  # C
ROUNDS, REPEATS, STEPS, LR = 200, 200, 50, 1e-4
PART = (20, 40)  # repeats and rounds of a smaller study
NO_LIMIT = 10**6  # ℓ_max: (16) gives at most about 460 steps here

OURS = ("Self-FL, active peers", "Self-FL, all peers", "Self-FL, all peers, no smoothing")
THEIRS = ("FedAvg", "Ditto", "pFedMe", "Per-FedAvg")
ORACLES = ("exact Bayes", "FL-optimum (3)")
# Not given in the paper: λ of Ditto and pFedMe, α of Per-FedAvg. Chosen on repeats that the tables do not use.
NOT_GIVEN: dict[str, tuple[float, ...]] = {
    "Ditto": (1.0, 10.0, 100.0, 1000.0),
    "pFedMe": (10.0, 100.0, 1000.0),
    "Per-FedAvg": (1e-4, 3e-4, 1e-3),
}
FIRST_TUNING_REPEAT, TUNING_REPEATS, TUNING_RATE = 10_000, 20, 0.5
DIGITS = 5  # of stored errors


@dataclass(frozen=True)
class Case:
    """One of the two settings of the study."""

    name: str
    between: float  # σ_0²
    sizes: tuple[int, int]  # range of N_m, which is uniform


CASES = (Case("homogeneous", 0.001, (10, 20)), Case("heterogeneous", 1.0, (10, 200)))


@dataclass(frozen=True)
class Federation:
    """One repeat: the truth, the measurements, and the measurements as data of an engine."""

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
    """The task (4), (θ − z_m)² / 2σ_m², with its gradient written out: for one number, autograd is mostly overhead."""

    def __init__(self) -> None:
        super().__init__(lambda: nn.Linear(1, 1, bias=False), half_square, dtype=torch.float64)
        self.start = self.start * 0.0  # θ⁰ = 0

    def gradient(
        self, rows: Rows, batch: Batch, objective: Objective | None = None, per_row: Sequence[Any] = ()
    ) -> Rows:
        x, (theta,) = batch.x, rows.expand(len(batch)).blocks  # (K, 1, 1) each
        return Rows(rows.layout, [x * (x * theta - batch.y.unsqueeze(2))])  # (5)


def federation(case: Case, repeat: int) -> Federation:
    """Draw one repeat. A client has one example, its mean z as a regression z/σ ~ θ/σ, so that its loss is (4).

    The names of the clients contain the repeat, because Self-FL gets each client's σ_m² by name.
    """
    generator = rng.generator(0, NAME, case.name, repeat)
    sizes = generator.integers(case.sizes[0], case.sizes[1] + 1, NUM_CLIENTS)
    truth = GLOBAL_MEAN + math.sqrt(case.between) * generator.standard_normal(NUM_CLIENTS)
    observed = np.repeat(truth, sizes) + math.sqrt(NOISE) * generator.standard_normal(sizes.sum())
    measured = np.add.reduceat(observed, np.cumsum(sizes) - sizes) / sizes
    scale = np.sqrt(sizes / NOISE)  # 1/σ_m
    nothing = ClientIndex.of_lists([np.zeros(0)] * NUM_CLIENTS)
    data = Data(
        x=torch.from_numpy(scale).unsqueeze(1),
        y=torch.from_numpy(scale * measured),
        names=tuple(f"{repeat:05d}/{m:02d}" for m in range(NUM_CLIENTS)),
        train=ClientIndex.of_lists(np.arange(NUM_CLIENTS).reshape(-1, 1)),
        validation=nothing,
        test=nothing,
    )
    return Federation(truth, measured, sizes, data)


def method(name: str, case: Case, members: Sequence[Federation], value: float = 0.0) -> Method:
    """Return the method of a row for these repeats; `value` is its hyper-parameter that the paper does not give."""
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
        "Ditto": lambda: Ditto(lr=LR, personal_lr=LR, prox_weight=value),
        "pFedMe": lambda: PFedMe(lr=LR, personal_lr=LR, prox_weight=value),
        "Per-FedAvg": lambda: PerFedAvg(lr=LR, inner_rate=value),
        "Local": lambda: Local(lr=LR),
    }
    return makers[name]()


def errors(method: Method, members: Sequence[Federation], rate: float, rounds: int) -> dict[str, list[float]]:
    """Return the error of the global model, if there is one, and the mean error of the personal models, per repeat."""
    settings = Settings(rounds=rounds, participation=rate, batch_size=1, local_steps=STEPS, workers=1, record=False)
    seeds = [replace(settings, seed=repeat) for repeat in range(len(members))]
    simulation = Simulation(method, Mean(), [one.data for one in members], seeds, None)
    for member, server in zip(members, simulation.federations, strict=True):
        server.sizes = member.sizes.tolist()  # the one example stands for N_m observations
    found: dict[str, list[float]] = {"personal": []}
    for member, outcome in zip(members, simulation.run_all(), strict=True):
        personal = outcome.personal_rows.matrix().flatten().numpy()
        found["personal"].append(float(np.abs(personal - member.truth).mean()))
        if outcome.global_rows is not None:
            found.setdefault("global", []).append(abs(float(outcome.global_rows.matrix()) - GLOBAL_MEAN))
    return found


def oracles(case: Case, members: Sequence[Federation]) -> dict[str, dict[str, list[float]]]:
    """Return the errors of the formulas that use all clients' data at once."""
    truth, measured, variance = (
        np.stack([getattr(one, what) for one in members]) for what in ("truth", "measured", "variance")
    )
    given = (measured, np.full(len(members), case.between), variance)
    best = np.abs(two_level.global_optimum(*given) - GLOBAL_MEAN)
    bayes, paper = (
        np.abs(estimate(*given) - truth).mean(1) for estimate in (two_level.exact_bayes, two_level.fl_optimum)
    )
    return {
        "exact Bayes": {"personal": bayes.tolist(), "global": best.tolist()},
        "FL-optimum (3)": {"personal": paper.tolist()},
    }


@dataclass(frozen=True)
class SyntheticStudy:
    """The study: a cell is a method in one case with one share of active clients, and has the errors of all repeats."""

    name: str = NAME
    repeats: int = REPEATS
    rounds: int = ROUNDS
    summary: str = SUMMARY

    def part(self) -> "SyntheticStudy":
        """Return a smaller version, of fewer repeats and rounds."""
        return replace(self, repeats=PART[0], rounds=PART[1])

    def specs(self, store: CellStore) -> Iterator[Spec]:
        """All cells whose settings are known: those of a method that is tuned follow when its tuning is done."""
        for case in CASES:
            for name in (*OURS, *THEIRS, "Local"):
                tuning = self.tuning_specs(case, name)
                yield from tuning.values()
                if all(store.get(one) is not None for one in tuning.values()):
                    yield from self.main_specs(case, name, store).values()

    def tuning_specs(self, case: Case, name: str) -> dict[float, Spec]:
        """A cell for each value of the hyper-parameter that the paper does not give, on repeats of their own."""
        repeats = [FIRST_TUNING_REPEAT, TUNING_REPEATS]
        return {
            value: self._spec(case, TUNING_RATE, name, f"{name} tuning {value:g}", value, repeats, {"tuning": True})
            for value in NOT_GIVEN.get(name, ())
        }

    def main_specs(self, case: Case, name: str, store: CellStore) -> dict[float, Spec]:
        """By share of active clients. With all clients active, the variants of Self-FL are the same."""
        value = self.choice(case, name, store)
        return {rate: self._spec(case, rate, name, name, value, [0, self.repeats], {}) for rate in self._rates(name)}

    @staticmethod
    def _rates(name: str) -> list[float]:
        return [rate for rate in RATES if rate < 1 or name not in OURS[1:]]

    def choice(self, case: Case, name: str, store: CellStore) -> float:
        """The value with the least personal error on the other repeats."""
        cells = {value: store.get(spec) for value, spec in self.tuning_specs(case, name).items()}
        found = {value: cell.results.get("personal", math.inf) for value, cell in cells.items() if cell is not None}
        return min(found, key=lambda value: float(np.mean(found[value])), default=0.0)

    def _spec(
        self, case: Case, rate: float, name: str, row: str, value: float, repeats: list[int], more: dict[str, Any]
    ) -> Spec:
        settings = {"case": case.name, "rate": rate, "method": name, "value": value, "repeats": repeats}
        settings |= {"rounds": self.rounds, "lr": LR, "local_steps": STEPS}
        return Spec(self.name, _scenario(case, rate), row, 0, settings | more)

    def compute(self, spec: Spec, scratch: Path, files: Path | None) -> tuple[dict[str, Any], float]:
        """Train all repeats of a cell as one stack; a diverged cell has no errors."""
        settings, started = spec.settings, time.monotonic()
        case = next(one for one in CASES if one.name == settings["case"])
        first, num = settings["repeats"]
        members = [federation(case, repeat) for repeat in range(first, first + num)]
        chosen = method(settings["method"], case, members, settings["value"])
        try:
            found = errors(chosen, members, settings["rate"], settings["rounds"])
        except TrainingError:
            found = {}
        rounded = {kind: [float(f"{one:.{DIGITS}g}") for one in values] for kind, values in found.items()}
        return rounded, time.monotonic() - started

    def pairs(self) -> set[tuple[str, str]]:
        """Every scenario with its rows."""
        names = (*OURS, *THEIRS, "Local")
        return {(_scenario(case, rate), name) for case in CASES for name in names for rate in self._rates(name)}

    def cells(self, scenario: str, row: str, store: CellStore) -> list[Cell]:
        """The cell of a row in a scenario, if it is computed; none if its tuning is not done."""
        for case in CASES:
            tuned = all(store.get(one) is not None for one in self.tuning_specs(case, row).values())
            for spec in self.main_specs(case, row, store).values() if (scenario, row) in self.pairs() and tuned else ():
                if spec.scenario == scenario and (cell := store.get(spec)) is not None:
                    return [cell]
        return []

    def results(self, store: CellStore) -> dict[str, Any]:
        """The errors of all cells that are there, and of the oracles, by "case/method/share of active clients"."""
        found: dict[str, Any] = {}
        for case in CASES:
            for name in (*OURS, *THEIRS, "Local"):
                for rate, spec in self.main_specs(case, name, store).items():
                    if (cell := store.get(spec)) is not None:
                        found[f"{case.name}/{name}/{rate}"] = cell.results
            exact = oracles(case, [federation(case, repeat) for repeat in range(self.repeats)])
            found |= {f"{case.name}/{name}/{rate}": values for name, values in exact.items() for rate in RATES}
            if (same := found.get(f"{case.name}/{OURS[0]}/1.0")) is not None:
                found |= {f"{case.name}/{name}/1.0": same for name in OURS}
        return found

    def show(self, store: CellStore, console: Console) -> None:
        """Print the tables of both cases, and the paper's claims; all cells must be there."""
        console.print(
            f"Self-FL's synthetic study (appendix G.1): {self.repeats} repeats, {self.rounds} rounds, {NUM_CLIENTS} "
            f"clients, learning rate {LR}, {STEPS} steps for the baselines. The paper shows curves and no figures. It "
            "does not give λ of Ditto and pFedMe or α of Per-FedAvg: they are chosen here on other repeats."
        )
        if (self.repeats, self.rounds) != (REPEATS, ROUNDS):
            console.print(f"A part: the paper has {REPEATS} repeats and {ROUNDS} rounds.")
        cells = self.results(store)
        for case in CASES:
            chosen = {name: self.choice(case, name, store) for name in NOT_GIVEN}
            console.print(_table(case, cells, chosen))
        print_claims(console, claims(cells))


def _scenario(case: Case, rate: float) -> str:
    return f"{case.name}, C={rate:g}"


def claims(cells: dict[str, Any]) -> list[tuple[str, bool]]:
    """Check the paper's statements about Figures 4 and 5, with a slack of two standard errors, or of a quarter."""
    few, many = RATES[:2], RATES[2:]
    found = []

    def nobody_better(case: str, name: str, kind: str, rates: Sequence[float], rivals: Sequence[str], who: str) -> None:
        """Check that no rival is better by more than two standard errors of the paired difference."""
        gaps = {}
        for rate in rates:
            for rival in rivals:
                ours, theirs = (np.array(cells[f"{case}/{one}/{rate}"][kind]) for one in (name, rival))
                gaps[rate, rival] = mean_and_error(ours - theirs)
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


def _table(case: Case, cells: dict[str, Any], chosen: dict[str, float]) -> Table:
    table = Table(title=f"{case.name}: σ_0² = {case.between}, N_m in {case.sizes}; 1000 x error (SEM)")
    table.add_column("")
    table.add_column("of")
    for rate in RATES:
        table.add_column(f"C = {rate:g}", justify="right")
    for kind in ("personal", "global"):
        for name in (*OURS, *THEIRS, "Local", *ORACLES):
            values = [cells[f"{case.name}/{name}/{rate}"].get(kind) for rate in RATES]
            if values[0] is not None:
                summaries = (mean_and_error(one) for one in values)
                table.add_row(name, kind, *(f"{1e3 * mean:.1f} ({1e3 * sem:.1f})" for mean, sem in summaries))
        table.add_section()
    table.caption = "Chosen on other repeats: " + ", ".join(f"{name} {value:g}" for name, value in chosen.items())
    return table
