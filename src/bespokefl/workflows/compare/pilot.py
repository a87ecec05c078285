"""Short runs before a comparison, which measure how much each method computes, so that totals can be made equal.

Gradients are counted, and the same in every call. Processor time depends on the machine: it is measured once for each
method, and the numbers of rounds that follow are stored (budget.json). A comparison that is resumed uses these.
"""

import json
import time
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from bespokefl.core.errors import InputError
from bespokefl.engines.outcome import Progress
from bespokefl.workflows.compare import budget as budgets
from bespokefl.workflows.compare import storage
from bespokefl.workflows.compare.budget import Seconds
from bespokefl.workflows.compare.candidates import Candidate
from bespokefl.workflows.compare.result import FEDAVG
from bespokefl.workflows.results import run_directory, score_tables
from bespokefl.workflows.run import jobs
from bespokefl.workflows.run.api import run
from bespokefl.workflows.run.convert import find_device

if TYPE_CHECKING:
    from bespokefl.workflows.compare.plan import ComparisonPlan

TIMED_ROUNDS = 5  # of a short run; the first one is not timed
REPEATS = 3  # of all short runs, by turns


def equalise(plan: "ComparisonPlan", path: Path, processes: int, workers: int) -> None:
    """Give methods that compute more than FedAvg fewer rounds."""
    timed = plan.budget == budgets.TIME
    rounds = _by_time(plan, path) if timed else _by_gradients(plan, processes, workers)
    for at, one in enumerate(plan.candidates):
        if one.name in rounds:
            plan.candidates[at] = replace(one, options=one.options | {"rounds": rounds[one.name]})


# -- gradients


def _by_gradients(plan: "ComparisonPlan", processes: int, workers: int) -> dict[str, int]:
    short = {
        jobs.Job(f"{one.name}, counting gradients:", partial(_count, plan, one, workers)): one
        for one in plan.candidates
    }
    work: dict[str, budgets.Work] = {}
    for job, outcome in jobs.run_jobs(list(short), processes, None):
        if isinstance(outcome, Exception):
            plan.give_up(short[job], outcome)
        else:
            work[short[job].name] = {int(rounds): gradients for rounds, gradients in outcome.items()}
    reference = work[_reference(plan).name]
    return {name: budgets.equal_rounds(plan.config.rounds, own, reference) for name, own in work.items()}


def _count(plan: "ComparisonPlan", one: Candidate, workers: int, report: jobs.OnProgress) -> dict[int, int]:
    """Return the gradients that short runs compute, by their number of rounds."""
    found = {}
    for rounds in budgets.PILOT_ROUNDS:
        result = run(one.method, plan.clients, **_settings(plan, rounds, workers))
        if result.interrupted:
            raise jobs.Interrupted
        assert result.work is not None
        found[rounds] = result.work["gradients"]
    return found


# -- processor time


def _by_time(plan: "ComparisonPlan", path: Path) -> dict[str, int]:
    """Measure methods that have no number of rounds yet, by turns with FedAvg, and store what follows."""
    stored = _read(path)
    known: dict[str, int] = {name: int(own["rounds"]) for name, own in stored.items()}
    reference = _reference(plan)
    missing = [one for one in plan.candidates if one.name not in known]
    if not missing:
        return known
    measured: dict[str, list[Seconds]] = {}
    given_up: set[str] = set()
    for _ in range(REPEATS):
        turn = [reference, *(one for one in missing if one.name not in {reference.name, *given_up})]
        short = {jobs.Job(f"{one.name}, measuring time:", partial(_measure, plan, one)): one for one in turn}
        for job, outcome in jobs.run_jobs(list(short), 1, None):
            one = short[job]
            if isinstance(outcome, Exception):
                plan.give_up(one, outcome)
                given_up.add(one.name)
            else:
                measured.setdefault(one.name, []).append(Seconds(**outcome))
    typical = {name: _median(own) for name, own in measured.items() if name not in given_up}
    for one in missing:
        if one.name in typical:
            own = typical[one.name]
            known[one.name] = budgets.timed_rounds(plan.config.rounds, own, typical[reference.name])
            stored[one.name] = {
                "rounds": known[one.name],
                "seconds_per_round": own.round,
                "relative_to_fedavg": own.round / typical[reference.name].round,
            }
    run_directory.write_text(path / storage.BUDGET, score_tables.dumps(stored, indent=1) + "\n")
    return known


def _measure(plan: "ComparisonPlan", one: Candidate, report: jobs.OnProgress) -> dict[str, float]:
    """Return the processor time of the parts of a short run in this process; on a GPU, wall-clock time."""
    clock = time.process_time if find_device(plan.config.device).type == "cpu" else time.perf_counter
    ends: list[tuple[str, float]] = []  # phase and end of every round

    def ended(now: Progress) -> None:
        ends.append((now.phase, clock()))

    began = clock()
    result = run(one.method, plan.clients, progress=ended, **_settings(plan, TIMED_ROUNDS, 1))
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


# -- both


def _reference(plan: "ComparisonPlan") -> Candidate:
    return next(one for one in plan.candidates if one.method.name == FEDAVG)


def _settings(plan: "ComparisonPlan", rounds: int, workers: int) -> Mapping[str, Any]:
    settings = {name: value for name, value in plan.settings.items() if name not in ("checkpoint_every", "log")}
    return settings | {"rounds": rounds, "seed": plan.seeds[0], "workers": workers, "eval_every": 0}
