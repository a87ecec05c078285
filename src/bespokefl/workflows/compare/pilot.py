"""Short runs before a comparison, which measure how much each method computes, so that totals can be made equal.

Gradients are counted, and the same in every call. Processor time depends on the machine: it is measured once for each
method, and the numbers of rounds that follow are stored (budget.json). A comparison that is resumed uses these.

Methods are measured before they are tuned, and again if tuning chose other settings, which may change their work. The
total that all methods may compute is that of FedAvg with the settings of the comparison.
"""

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from bespokefl.core.errors import InputError, TrainingError
from bespokefl.engines.outcome import Progress
from bespokefl.engines.transports.processes import WorkerError
from bespokefl.workflows.compare import budget as budgets
from bespokefl.workflows.compare import candidates, storage
from bespokefl.workflows.compare.budget import Seconds
from bespokefl.workflows.compare.candidates import Candidate
from bespokefl.workflows.compare.result import FEDAVG
from bespokefl.workflows.results import run_directory, score_tables
from bespokefl.workflows.run import jobs
from bespokefl.workflows.run.api import run
from bespokefl.workflows.run.convert import find_device
from bespokefl.workflows.tune.grid import Grid

if TYPE_CHECKING:
    from bespokefl.workflows.compare.plan import ComparisonPlan

Measure = Callable[[Candidate, jobs.OnProgress], Any]

TIMED_ROUNDS = 5  # of a short run; the first one is not timed
REPEATS = 3  # of all short runs, by turns


class Pilot:
    """Gives methods that compute more than FedAvg fewer rounds."""

    def __init__(
        self, plan: "ComparisonPlan", path: Path, processes: int, workers: int, grids: Mapping[str, Grid]
    ) -> None:
        self.plan, self.path, self.processes, self.workers, self.grids = plan, path, processes, workers, grids
        self.reference = next(one for one in plan.candidates if one.method.name == FEDAVG)
        self._total: budgets.Work = {}  # of the reference
        self._measured: dict[str, str] = {}  # the settings with which methods were measured

    def equalise(self, tuned: bool = False) -> None:
        """Measure the methods and set their rounds; after tuning (`tuned`), those whose settings it changed."""
        settings = {one.name: self._settings_of(one) for one in self.plan.candidates}
        chosen = [one for one in self.plan.candidates if not tuned or settings[one.name] != self._measured[one.name]]
        if tuned:
            gone = {name for name, _ in self.plan.failed} | set(self.plan.left_out)
            chosen = [one for one in chosen if one.name not in gone]
        else:
            self._measured = settings
        timed = self.plan.budget == budgets.TIME
        rounds = self._by_time(chosen, tuned) if timed else self._by_gradients(chosen, tuned)
        for at, one in enumerate(self.plan.candidates):
            if one.name in rounds:
                self.plan.candidates[at] = replace(one, options=one.options | {"rounds": rounds[one.name]})

    def _settings_of(self, one: Candidate) -> str:
        return score_tables.dumps([score_tables.plain(one.method.hyper()), _own_settings(one)])

    def _failed(self, one: Candidate, error: Exception, tuned: bool) -> None:
        """Give up a method; without FedAvg there is no budget, and what was tuned keeps its rounds."""
        if isinstance(error, TrainingError) and one is self.reference:
            raise TrainingError(
                f"the budget {self.plan.budget!r} is that of fedavg, which could not be measured: {error} Or give "
                "--budget steps."
            )
        if not tuned:
            self.plan.give_up(one, error)

    def _job(self, one: Candidate, what: str, measure: Measure) -> jobs.Job:
        return jobs.Job(f"{one.name}, {what}:", partial(_calmly, one, self.grids.get(one.name, {}), measure))

    def _by_gradients(self, chosen: Sequence[Candidate], tuned: bool) -> dict[str, int]:
        def measure(one: Candidate, report: jobs.OnProgress) -> dict[int, int]:
            return _count(self.plan, one, self.workers, report)

        short = {self._job(one, "counting gradients", measure): one for one in chosen}
        work: dict[str, budgets.Work] = {}
        for job, outcome in jobs.run_jobs(list(short), self.processes, None):
            if isinstance(outcome, Exception):
                self._failed(short[job], outcome, tuned)
            else:
                work[short[job].name] = {int(rounds): gradients for rounds, gradients in outcome.items()}
        self._total = self._total or work[self.reference.name]
        return {name: budgets.equal_rounds(self.plan.config.rounds, own, self._total) for name, own in work.items()}

    def _by_time(self, chosen: Sequence[Candidate], tuned: bool) -> dict[str, int]:
        """Measure methods that have no number of rounds yet, by turns with FedAvg, and store what follows."""
        stored = _read(self.path)
        before = {one.name: stored.get(one.name) for one in chosen}
        if tuned:
            before = {name: own and own.get("tuned") for name, own in before.items()}
        known: dict[str, int] = {name: int(own["rounds"]) for name, own in before.items() if own}
        missing = [one for one in chosen if one.name not in known and one is not self.reference]
        if not missing and (tuned or self.reference.name in known):
            return known
        typical = self._typical([self.reference, *missing], tuned)
        total = typical[0]
        for at, one in enumerate([self.reference, *missing]):
            if at not in typical or one.name in known or (tuned and at == 0):
                continue
            own = typical[at]
            known[one.name] = budgets.timed_rounds(self.plan.config.rounds, own, total)
            values = {
                "rounds": known[one.name],
                "seconds_per_round": own.round,
                "relative_to_fedavg": own.round / total.round,
            }
            stored[one.name] = stored[one.name] | {"tuned": values} if tuned else values
        run_directory.write_text(self.path / storage.BUDGET, score_tables.dumps(stored, indent=1) + "\n")
        return known

    def _typical(self, turn: Sequence[Candidate], tuned: bool) -> dict[int, Seconds]:
        """Return the medians of several short runs of each candidate, by its index, without those that failed."""

        def measure(one: Candidate, report: jobs.OnProgress) -> dict[str, float]:
            return _measure(self.plan, one, report)

        measured: dict[int, list[Seconds]] = {at: [] for at in range(len(turn))}
        for _ in range(REPEATS):
            short = {self._job(turn[at], "measuring time", measure): at for at in measured}
            for job, outcome in jobs.run_jobs(list(short), 1, None):
                at = short[job]
                if isinstance(outcome, Exception):
                    self._failed(turn[at], outcome, tuned)
                    del measured[at]
                else:
                    measured[at].append(Seconds(**outcome))
        return {at: _median(own) for at, own in measured.items()}


def _calmly(one: Candidate, grid: Grid, measure: Measure, report: jobs.OnProgress) -> Any:
    """Measure a method; if it diverges, with the smallest learning rates of its grid, which change no work."""
    try:
        return measure(one, report)
    except WorkerError:
        raise
    except TrainingError as error:
        calm = candidates.with_smallest_rates(one, grid)
        try:
            return measure(calm, report)
        except TrainingError:
            where = "in the short runs that measure its work, also with the smallest learning rates of its grid"
            raise TrainingError(f"training failed {where}: {error}") from None


def _count(plan: "ComparisonPlan", one: Candidate, workers: int, report: jobs.OnProgress) -> dict[int, int]:
    """Return the gradients that short runs compute, by their number of rounds."""
    found = {}
    for rounds in budgets.PILOT_ROUNDS:
        result = run(one.method, plan.clients, **_settings(plan, one, rounds, workers))
        if result.interrupted:
            raise jobs.Interrupted
        assert result.work is not None
        found[rounds] = result.work["gradients"]
    return found


def _measure(plan: "ComparisonPlan", one: Candidate, report: jobs.OnProgress) -> dict[str, float]:
    """Return the processor time of the parts of a short run in this process; on a GPU, wall-clock time."""
    clock = time.process_time if find_device(plan.config.device).type == "cpu" else time.perf_counter
    ends: list[tuple[str, float]] = []  # phase and end of every round

    def ended(now: Progress) -> None:
        ends.append((now.phase, clock()))

    began = clock()
    result = run(one.method, plan.clients, progress=ended, **_settings(plan, one, TIMED_ROUNDS, 1))
    if result.interrupted:
        raise jobs.Interrupted
    over = clock()
    phases = [phase for phase, _ in ends]
    rounds = [at for phase, at in ends if phase == max(phases, key=phases.count)]
    typical = median(after - before for before, after in pairwise(rounds))
    return {"start": max(0.0, rounds[0] - began - typical), "round": typical, "end": over - rounds[-1]}


def _median(found: list[Seconds]) -> Seconds:
    return Seconds(*(median(getattr(one, name) for one in found) for name in ("start", "round", "end")))


def _read(path: Path) -> dict[str, Any]:
    """Return what was measured before, by method."""
    try:
        found: dict[str, Any] = json.loads((path / storage.BUDGET).read_text(encoding="utf-8"))
        return found
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise InputError(
            f"{str(path / storage.BUDGET)!r} is damaged: {error!r}; use --overwrite to measure and train again."
        ) from None


def _own_settings(one: Candidate) -> dict[str, Any]:
    return {name: value for name, value in one.options.items() if name != "rounds"}


def _settings(plan: "ComparisonPlan", one: Candidate, rounds: int, workers: int) -> Mapping[str, Any]:
    settings = {name: value for name, value in plan.settings.items() if name not in ("checkpoint_every", "log")}
    own = {"rounds": rounds, "seed": plan.seeds[0], "workers": workers, "eval_every": 0}
    return settings | _own_settings(one) | own
