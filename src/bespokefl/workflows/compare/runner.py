"""Carry out a comparison: tune the methods, train what is missing, several runs at once if they are small."""

import logging
import shlex
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from bespokefl.core.errors import DiskError, InputError, TrainingError
from bespokefl.engines.transports.processes import WorkerError
from bespokefl.workflows.compare import candidates, storage
from bespokefl.workflows.compare.candidates import Candidate
from bespokefl.workflows.compare.plan import ComparisonPlan
from bespokefl.workflows.compare.result import Comparison
from bespokefl.workflows.results import run_directory, score_tables
from bespokefl.workflows.run import jobs
from bespokefl.workflows.run.convert import check_clients, find_device
from bespokefl.workflows.tune.api import tune as run_tuning
from bespokefl.workflows.tune.grid import Grid

log = logging.getLogger("bespokefl")


def run_comparison(
    plan: ComparisonPlan,
    tune: bool,
    grids: Mapping[str, Grid],
    out: Path | None,
    overwrite: bool,
    progress: jobs.Report | None,
) -> Comparison:
    """Tune, train what is missing, and compare. Without `out`, runs are kept in a temporary directory."""
    grid_of = candidates.grids_of(plan.candidates, tune, grids)
    plan.leave_out_unfit()
    check_clients(plan.clients)
    find_device(plan.config.device)
    if any(grid_of.values()) and not int(plan.clients.validation.sizes.sum()):
        raise InputError("tuning needs validation data to choose by, but the clients have none.")
    processes, workers = plan.parallel()
    temporary = tempfile.TemporaryDirectory(prefix="bespoke-") if out is None else None
    path = out or Path(temporary.name if temporary is not None else "")
    try:
        with run_directory.lock(path) as path:
            storage.open_directory(
                path, plan.identity(), plan.clients, overwrite or temporary is not None, plan.from_python()
            )
            interrupted = _Runner(plan, path, processes, workers, progress, out is not None).run(grid_of)
            found = plan.comparison(path, interrupted, temporary)
            for (name, seed), error in plan.failed.items():
                log.warning("%s failed with seed %d: %s", name, seed, error)
            if temporary is None:
                found.save(path)
            return found
    except DiskError as disk:
        again = "call it again" if plan.command is None else f"{plan.command} --out {shlex.quote(str(path))}"
        raise DiskError(disk.fact, kept=disk.kept, cure=disk.cure, then=again) from None


@dataclass(frozen=True)
class _Runner:
    """Run the tunings and trainings of a plan."""

    plan: ComparisonPlan
    path: Path
    processes: int
    workers: int  # of each process
    progress: jobs.Report | None
    resumable: bool

    def run(self, grid_of: Mapping[str, Grid]) -> bool:
        """Tune, then train; return whether it was interrupted."""
        plan = self.plan
        tuned = [(one, grid_of[one.name]) for one in plan.candidates if grid_of[one.name]]
        num_tunings = sum(candidates.num_points(grid) for _, grid in tuned)
        total = num_tunings + len(plan.candidates) * len(plan.seeds)
        try:
            made = {self._tuning_job(one, grid): (one, grid) for one, grid in tuned}
            for job, outcome in jobs.run_jobs(list(made), self.processes, self._shifted(0, total)):
                self._use_tuning(*made[job], outcome)
            todo = {self._training_job(one, seed): (one, seed) for seed in plan.seeds for one in self._missing(seed)}
            for job, outcome in jobs.run_jobs(list(todo), self.processes, self._shifted(total - len(todo), total)):
                one, seed = todo[job]
                if isinstance(outcome, InputError | DiskError):
                    plan.give_up(one, outcome)
                elif outcome is not None:
                    plan.failed[one.name, seed] = str(outcome)
        except jobs.Interrupted:
            return True
        return False

    def _shifted(self, before: int, total: int) -> jobs.Report | None:
        """Report the progress of a part as progress of the whole comparison."""
        report = self.progress
        if report is None:
            return None
        return lambda step: report(replace(step, number=before + step.number, done=before + step.done, total=total))

    def _missing(self, seed: int) -> list[Candidate]:
        """Return the candidates that have neither ended nor failed with this seed."""
        return [
            one
            for one in self.plan.candidates
            if one.name not in self.plan.left_out
            and (one.name, seed) not in self.plan.failed
            and not self.plan.has_ended(one, seed, self.path)
        ]

    def _tuning_job(self, one: Candidate, grid: Grid) -> jobs.Job:
        return jobs.Job(f"{one.name}, tuning:", partial(self._tune, one, grid), candidates.num_points(grid))

    def _training_job(self, one: Candidate, seed: int) -> jobs.Job:
        return jobs.Job(f"{one.name}, seed {seed}", partial(self._train, one, seed))

    def _tune(self, one: Candidate, grid: Grid, report: jobs.Report) -> dict[str, Any]:
        plan = self.plan
        settings = plan.settings | {"workers": self.workers, "out": self.path / "tune" / one.slug, "progress": report}
        settings.pop("checkpoint_every", None)
        python = not one.registered or any(
            str(value).startswith("<") for value in (plan.config.model, plan.config.loss)
        )
        found = run_tuning(one.method, plan.clients, grid=grid, seeds=plan.seeds[:1], overwrite=python, **settings)
        if found.interrupted:
            raise jobs.Interrupted
        return {"chosen": found.chosen, "by": found.by, "points": score_tables.plain(found.table)}

    def _use_tuning(self, one: Candidate, grid: Grid, outcome: Any) -> None:
        """Give a candidate the chosen hyper-parameters, or record why there are none."""
        plan = self.plan
        if isinstance(outcome, Exception):
            plan.give_up(one, outcome)
        elif outcome["chosen"] is None:
            error = next((line["failed"] for line in outcome["points"] if line["failed"]), "there were no scores.")
            plan.give_up(one, TrainingError(f"no point of its grid could be trained: {error}"))
        else:
            point = candidates.points(one, grid)[outcome["chosen"]]
            plan.tuned[one.name] = {"by": outcome["by"], "chosen": point.values, "points": outcome["points"]}
            plan.candidates[plan.candidates.index(one)] = replace(one, method=point.method)

    def _train(self, one: Candidate, seed: int, report: jobs.Report) -> str | None:
        """Train one run into its directory. If it fails, write the error there instead and return it."""
        path = storage.run_path(self.path, one, seed)
        try:
            result = self.plan.train(one.method, seed, path, self.workers, jobs.report_rounds(report))
        except WorkerError as error:  # its checkpoint stays, and the same comparison resumes from it
            again = self._resume_hint()
            if not again or not error.kept:
                return str(WorkerError(error.fact))
            return str(WorkerError(error.fact, kept=error.kept, then=f"{again} resumes from there"))
        except TrainingError as error:
            shutil.rmtree(path, ignore_errors=True)
            path.mkdir(parents=True)
            content = {"failed": str(error), "hyper": score_tables.plain(one.method.hyper())}
            run_directory.write_text(path / storage.FAILED, score_tables.dumps(content, indent=1) + "\n")
            return str(error)
        if result.interrupted:
            raise jobs.Interrupted
        return None

    def _resume_hint(self) -> str:
        """Return how to resume with less memory; empty if the comparison cannot be resumed."""
        if not self.resumable or self.plan.from_python():
            return ""
        if self.plan.command is None:
            return "the same call with workers=1"
        return f"the same command with --out {shlex.quote(str(self.path))} --workers 1"
