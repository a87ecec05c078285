"""Carrying out a comparison: tune, train what is not there yet, several at once where they are small."""

import logging
import shlex
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from bespokefl.core.errors import DiskError, InputError, TrainingError
from bespokefl.engines.progress import Progress
from bespokefl.engines.transports.processes import WorkerError
from bespokefl.workflows.compare import candidates
from bespokefl.workflows.compare import storage as compare_folder
from bespokefl.workflows.compare.candidates import Contender
from bespokefl.workflows.compare.plan import ComparisonPlan
from bespokefl.workflows.compare.result import Comparison
from bespokefl.workflows.results import run_directory, score_tables
from bespokefl.workflows.run import jobs
from bespokefl.workflows.run.convert import check_clients, find_device
from bespokefl.workflows.tune.api import Step, tune
from bespokefl.workflows.tune.result import Grid

log = logging.getLogger("bespokefl")


def carry_out(
    plan: ComparisonPlan,
    tuning: bool,
    grids: Mapping[str, Grid],
    out: Path | None,
    overwrite: bool,
    progress: jobs.Report | None,
) -> Comparison:
    """Tune, train what is not there yet, and compare."""
    candidates.check_grids(plan.contenders, grids)
    wanted = {one.name: candidates.grid(one, tuning, grids) for one in plan.contenders}
    plan.leave_out()
    check_clients(plan.clients)
    find_device(plan.config.device)
    if any(wanted.values()) and not int(plan.clients.validation.sizes.sum()):
        raise InputError("tuning needs validation data to choose by, but the clients have none.")
    parallel = plan.parallel()
    keep = tempfile.TemporaryDirectory(prefix="bespoke-") if out is None else None
    place = Path(keep.name) if keep is not None else out
    assert place is not None
    try:
        with run_directory.lock(place) as place:
            return _carry_out(plan, wanted, parallel, place, overwrite, keep, progress)
    except DiskError as error:
        again = "call it again" if plan.command is None else f"{plan.command} --out {shlex.quote(str(place))}"
        raise DiskError(error.fact, kept=error.kept, cure=error.cure, then=again) from None


def _carry_out(
    plan: ComparisonPlan,
    wanted: Mapping[str, Grid],
    parallel: tuple[int, int],
    place: Path,
    overwrite: bool,
    keep: "tempfile.TemporaryDirectory[str] | None",
    progress: jobs.Report | None,
) -> Comparison:
    processes, workers = parallel
    compare_folder.begin(place, plan.identity(), plan.clients, overwrite or keep is not None, plan.unnamed())
    grids_of = {one: grid for one in plan.contenders if (grid := wanted[one.name])}
    first, second = sum(map(candidates.points, grids_of.values())), len(plan.contenders) * len(plan.seeds)
    interrupted = False
    try:
        _tune_all(plan, grids_of, place, processes, workers, _part(progress, 0, first + second))
        again = "" if keep is not None or plan.unnamed() else _again(plan, place)
        _run_all(plan, place, processes, workers, again, _part(progress, first, first + second))
    except jobs.Interrupted:
        interrupted = True
    found = plan.comparison(place, interrupted, keep)
    for (name, seed), said in plan.failed.items():
        log.warning("%s failed with seed %d: %s", name, seed, said)
    if keep is None:
        found.save(place)
    return found


def _tune_all(
    plan: ComparisonPlan,
    grids: Mapping[Contender, Grid],
    place: Path,
    processes: int,
    workers: int,
    progress: jobs.Report | None,
) -> None:
    todo = {f"{one.name}, tuning:": (one, grid) for one, grid in grids.items()}
    made = [
        jobs.Job(name, partial(_tune_job, plan, one, grid, place, workers), candidates.points(grid))
        for name, (one, grid) in todo.items()
    ]
    for job, outcome in jobs.do(made, processes, progress):
        _take_tuning(plan, *todo[job.name], outcome)


def _tune_job(
    plan: ComparisonPlan, one: Contender, grid: Grid, place: Path, workers: int, tell: jobs.JobReport
) -> dict[str, Any]:
    def report(step: Step) -> None:
        tell(step.done / step.total, f"{step.text}, round {step.rounds.done}/{step.rounds.total}", step.rounds.scores)

    settings = plan.settings | {"workers": workers}
    settings.pop("checkpoint_every", None)
    target = place / "tune" / one.slug
    python = not one.registered or plan.config.model.startswith("<") or str(plan.config.loss).startswith("<")
    found = tune(
        one.method,
        plan.clients,
        grid=grid,
        seeds=plan.seeds[:1],
        out=target,
        overwrite=python,
        progress=report,
        **settings,
    )
    if found.interrupted:
        raise jobs.Interrupted
    return {"chosen": found.chosen, "by": found.by, "points": score_tables.plain(found.table)}


def _take_tuning(plan: ComparisonPlan, one: Contender, grid: Grid, outcome: Any) -> None:
    """Use what was chosen."""
    if isinstance(outcome, Exception):
        plan.give_up(one, outcome)
        return
    at = outcome["chosen"]
    if at is None:
        said = next((line["failed"] for line in outcome["points"] if line["failed"]), "there were no scores.")
        for seed in plan.seeds:
            plan.failed[one.name, seed] = f"no point of its grid could be trained: {said}"
        return
    method, chosen = candidates.chosen(one, grid, at)
    plan.tuned[one.name] = {"by": outcome["by"], "chosen": chosen, "points": outcome["points"]}
    plan.contenders[plan.contenders.index(one)] = replace(one, method=method)


def _again(plan: ComparisonPlan, place: Path) -> str:
    """How to go on with less memory."""
    if plan.command is None:
        return "the same call with workers=1"
    return f"the same command with --out {shlex.quote(str(place))} --workers 1"


def _run_all(
    plan: ComparisonPlan, place: Path, processes: int, workers: int, again: str, progress: jobs.Report | None
) -> None:
    """Train what is not there: all methods with the first seed, then with the next.

    again    how a run whose workers died is gone on with, if it can be
    """
    todo = {
        f"{one.name}, seed {seed}:": (one, seed)
        for seed in plan.seeds
        for one in plan.contenders
        if one.name not in plan.left_out and (one.name, seed) not in plan.failed and not plan.is_there(one, seed, place)
    }
    made = [
        jobs.Job(name, partial(_run_job, plan, one, seed, compare_folder.of_run(place, one, seed), workers, again))
        for name, (one, seed) in todo.items()
    ]
    there = len(plan.contenders) * len(plan.seeds) - len(made)
    for job, outcome in jobs.do(made, processes, _part(progress, there)):
        one, seed = todo[job.name]
        if isinstance(outcome, InputError | DiskError):
            plan.give_up(one, outcome)
        elif outcome is not None:
            plan.failed[one.name, seed] = str(outcome)


def _run_job(
    plan: ComparisonPlan, one: Contender, seed: int, place: Path, workers: int, again: str, tell: jobs.JobReport
) -> str | None:
    """Train, and leave the folder of the run, or of its failure, whose sentence comes back."""

    def report(now: Progress) -> None:
        tell(now.done / now.total, f"round {now.done}/{now.total}", now.scores)

    try:
        result = plan.train(one.method, seed, place, workers, report)
    except WorkerError as error:  # its checkpoint stays: the same comparison goes on from it
        if not again or not error.kept:
            return str(WorkerError(error.fact))
        return str(WorkerError(error.fact, kept=error.kept, then=f"{again} goes on from there"))
    except TrainingError as error:
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir(parents=True)
        about = {"failed": str(error), "hyper": score_tables.plain(one.method.hyper())}
        run_directory.write_text(place / compare_folder.FAILED, score_tables.dumps(about, indent=1) + "\n")
        return str(error)
    if result.interrupted:
        raise jobs.Interrupted
    return None


def _part(progress: jobs.Report | None, before: int, total: int | None = None) -> jobs.Report | None:
    """A report of a part as one of the whole."""
    if progress is None:
        return None
    return lambda step: progress(replace(step, done=before + step.done, total=total or before + step.total))
