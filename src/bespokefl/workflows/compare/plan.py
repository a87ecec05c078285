"""Carry out a comparison: tune the methods, train what is missing, several runs at once if they are small."""

import json
import logging
import shlex
import shutil
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import partial
from pathlib import Path
from typing import Any

from bespokefl import methods as registry
from bespokefl.core.errors import DiskError, InputError, TrainingError
from bespokefl.data.clients import Clients
from bespokefl.engines.outcome import OnProgress
from bespokefl.engines.transports.processes import WorkerError
from bespokefl.metrics.metric import choose_metric, metrics_of
from bespokefl.models import Model
from bespokefl.workflows.compare import budget as budgets
from bespokefl.workflows.compare import candidates, pilot, storage
from bespokefl.workflows.compare.candidates import Candidate
from bespokefl.workflows.compare.result import BASELINES, Comparison, ComparisonMetadata, Entry, data_of
from bespokefl.workflows.compare.tuning import Tuner
from bespokefl.workflows.results import run_directory, score_tables
from bespokefl.workflows.results.models import fingerprint
from bespokefl.workflows.results.result import Result, load_run
from bespokefl.workflows.results.summary import origin_of
from bespokefl.workflows.run import initial_weights, jobs, toml
from bespokefl.workflows.run.convert import check_clients, find_device
from bespokefl.workflows.run.settings import RunSettings
from bespokefl.workflows.tune import shared_settings
from bespokefl.workflows.tune.duration import DEFAULT_TIME, read_time
from bespokefl.workflows.tune.grid import Grid

log = logging.getLogger("bespokefl")

UNTUNED = "Untuned: all methods have their given or default hyper-parameters, and tuning may change the order."

# Settings of a run that a comparison sets itself, or that would give methods or seeds different clients.
NOT_ACCEPTED = ("newcomers", "keep_rounds", "state_dir")
# Settings that may change when a comparison is resumed: they change no result, or are checked separately.
MAY_CHANGE = {"method", "set", "data", "split", "clients", "seed", "start", "workers", "chunk", "out", "overwrite"}
MAY_CHANGE |= {"cluster", "checkpoint_every", "log", *NOT_ACCEPTED}

MIN_POINTS = 10  # of a curve, between round 0 and the last round

Train = Callable[[Candidate, int, Path, int, OnProgress], Result]  # candidate, seed, directory, workers, report
Time = bool | str | float | None  # for tuning: False for none, True and None for the default


@dataclass
class ComparisonPlan:
    """A comparison to carry out, and its outcome so far."""

    candidates: list[Candidate]
    clients: Clients
    seeds: list[int]
    config: RunSettings  # settings of all runs
    settings: dict[str, Any]  # the same as keyword arguments of `run`
    model: Model
    train: Train
    command: str | None = None
    budget: str = budgets.STEPS
    tune: Time = False
    tuning: dict[str, Any] | None = None  # what was tuned and how; None if nothing was
    metric: str | None = None  # what is tuned, tested and shown first; None: accuracy, or loss for regression
    left_out: dict[str, str] = field(default_factory=dict)  # reasons by name
    tuned: dict[str, dict[str, Any]] = field(default_factory=dict)
    failed: dict[tuple[str, int], str] = field(default_factory=dict)  # errors by name and seed

    def leave_out_unfit(self) -> None:
        """Leave out methods that need the clients' true groups if the split has none."""
        if self.clients.groups is None:
            reason = f"it needs a split that knows the clients' true groups, got {self.clients.split_name}."
            self.left_out |= {one.name: reason for one in self.candidates if one.method.needs_groups}
            self.candidates = [one for one in self.candidates if not one.method.needs_groups]

    def apply_budget(self) -> None:
        """Limit methods that set their own number of steps."""
        self.budget = budgets.check(self.budget)
        self.candidates = budgets.limited(self.candidates, self.budget)

    @property
    def tunes(self) -> bool:
        """Whether all methods are tuned; by default if the clients have validation data."""
        if self.tune is None:
            return bool(int(self.clients.validation.sizes.sum()))
        return self.tune is not False

    @property
    def tuning_limit(self) -> float | None:
        """The time for tuning in seconds; None if there is no limit."""
        if not self.tunes:
            return None
        return read_time(DEFAULT_TIME if self.tune is None or self.tune is True else self.tune)

    def parallel(self) -> tuple[int, int]:
        """Return the number of processes and of workers in each: several small runs at once, or all cores for one."""
        clients = shared_settings.prepared(self.clients, self.config)
        processes = shared_settings.num_processes(clients, self.model, self.config)
        return (1, self.config.workers) if processes == 1 else (processes, 1)

    def identity(self) -> dict[str, Any]:
        """Return the content of plan.json: what must not change, and what a killed comparison is described by."""
        start = self.settings.get("start")
        common = self._common() | {"start": None if start is None else fingerprint(initial_weights.read(start))}
        return {
            "split_hash": self.clients.hash,
            "config": score_tables.plain(common | {"budget": self.budget, "tune": self.tunes}),
            "methods": [one.name for one in self.candidates],
            "seeds": self.seeds,
            "command": self.command,
            "metric": self.metric,
        }

    def _common(self) -> dict[str, Any]:
        return {one.name: getattr(self.config, one.name) for one in fields(self.config) if one.name not in MAY_CHANGE}

    def from_python(self) -> list[str]:
        """Name everything that was made in Python and may have changed since."""
        found = [name for name in ("model", "loss") if str(getattr(self.config, name)).startswith("<")]
        return found + [one.name for one in self.candidates if registry.name_of(one.method) is None]

    def has_ended(self, one: Candidate, seed: int, path: Path) -> bool:
        """Return whether this run is left out, failed or ended before; reject a run with other hyper-parameters."""
        if one.name in self.left_out or (one.name, seed) in self.failed:
            return True
        target = storage.run_path(path, one, seed)
        if (target / storage.FAILED).is_file():
            stored = json.loads((target / storage.FAILED).read_text(encoding="utf-8"))
            before, ended = stored["hyper"], True
            self.failed[one.name, seed] = stored["failed"]
        elif run_directory.is_run(target):
            result = load_run(target)
            before, ended = score_tables.plain(result.hyper), not result.interrupted
        else:
            return False
        before, now = one.method.rename(before), score_tables.plain(one.method.hyper())
        name = next((name for name in now if before.get(name) != now[name]), None)
        if name is not None:
            raise InputError(
                f"{str(target)!r} was run with {name} = {before.get(name)}, and now it is {now[name]}; use another "
                "directory, or --overwrite to replace everything."
            )
        return ended

    def give_up(self, one: Candidate, error: Exception) -> None:
        """Record an error of a method; an invalid baseline or a full disk ends the comparison."""
        if isinstance(error, DiskError) or (isinstance(error, InputError) and one.method.name in BASELINES):
            raise error
        if isinstance(error, InputError):
            self.left_out[one.name] = str(error)
        else:
            self.failed |= {(one.name, seed): str(error) for seed in self.seeds}

    def comparison(self, path: Path, interrupted: bool, keep: object) -> Comparison:
        """Put all finished runs together; the result holds a reference to `keep`, a temporary directory."""
        entries = [self._entry(one, path) for one in self.candidates if one.name not in self.left_out]
        if not any(entry.runs for entry in entries):
            if interrupted:
                raise KeyboardInterrupt
            error = next((error for entry in entries for error in entry.failed.values()), "nothing was trained.")
            raise TrainingError(f"no method could be trained; the first error: {error}")
        own_rounds = {one.name: one.options.get("rounds", self.config.rounds) for one in self.candidates}
        untuned = [entry.name for entry in entries if entry.tuned is None and not entry.failed]
        clients, config, common = self.clients, self.config, self._common()
        written = {"data": config.data, "split": run_directory.SPLIT_FILE, "clients": len(clients), **common}
        comments = {"split": f"{clients.split_name}, seed {clients.seed}, hash {clients.hash}"}
        metadata = ComparisonMetadata(
            data=data_of(origin_of(clients) | {"clients": len(clients)}),
            model=config.model,
            config={name: value for name, value in common.items() if name != "model"},
            config_text=toml.dumps(written, comments),
            groups=clients.groups,
            seeds=tuple(self.seeds),
            left_out=tuple(sorted(self.left_out.items())),
            command=self.command,
            interrupted=interrupted,
            planned=len(entries) * len(self.seeds),
            notes=tuple(budgets.round_notes(own_rounds, config.rounds, self.budget)),
            budget=self.budget,
            tuning=(self.tuning or {"tuned": False, "sentences": [UNTUNED]}) | {"untuned": untuned},
            metric=self.metric,
        )
        return Comparison(entries, metadata, keep)

    def _entry(self, one: Candidate, path: Path) -> Entry:
        entry = Entry(
            one.name,
            registry.name_of(one.method) or registry.title_of(one.method),
            score_tables.plain(one.method.hyper()),
            failed={seed: error for (name, seed), error in self.failed.items() if name == one.name},
            tuned=self.tuned.get(one.name),
            about=one.method.summary(),
            citation=one.method.citation,
        )
        for seed in self.seeds:
            target = storage.run_path(path, one, seed)
            if seed not in entry.failed and run_directory.is_run(target):
                result = load_run(target, None if isinstance(self.model, str) else self.model)
                if not result.interrupted:
                    entry.runs[seed] = result
        return entry


def often_enough(config: RunSettings, rounds: int | None = None) -> int:
    """Return `eval_every`; by default so small that curves have ten points between the first and the last round.

    `rounds` are those of a method that has fewer than the comparison.
    """
    if config.eval_every != RunSettings.eval_every:
        return config.eval_every
    return min(config.eval_every, max(1, (rounds or config.rounds) // (MIN_POINTS + 1)))


def run_comparison(
    plan: ComparisonPlan,
    grids: Mapping[str, Grid],
    out: Path | None,
    overwrite: bool,
    progress: jobs.OnProgress | None,
) -> Comparison:
    """Tune, train what is missing, and compare. Without `out`, runs are kept in a temporary directory."""
    plan.apply_budget()
    limit = plan.tuning_limit
    grid_of = candidates.grids_of(plan.candidates, plan.tunes, grids)
    plan.leave_out_unfit()
    check_clients(plan.clients)
    choose_metric(plan.metric, metrics_of(plan.clients.classes))
    find_device(plan.config.device, plan.config.precision)
    if any(grid_of.values()) and not int(plan.clients.validation.sizes.sum()):
        raise InputError("tuning needs validation data to choose by, but the clients have none; use --no-tune.")
    given = frozenset(one.name for one in plan.candidates if candidates.given_grid(one, grids) is not None)
    processes, workers = plan.parallel()
    temporary = tempfile.TemporaryDirectory(prefix="bespoke-") if out is None else None
    path = out or Path(temporary.name if temporary is not None else "")
    try:
        with run_directory.lock(path) as path:
            storage.open_directory(
                path, plan.identity(), plan.clients, overwrite or temporary is not None, plan.from_python()
            )
            interrupted = _Runner(plan, path, processes, workers, progress, out is not None).run(grid_of, given, limit)
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
    progress: jobs.OnProgress | None
    resumable: bool

    def run(self, grid_of: Mapping[str, Grid], given: frozenset[str], limit: float | None) -> bool:
        """Tune, then train; return whether it was interrupted."""
        plan = self.plan
        try:
            equal = plan.budget in (budgets.GRADIENTS, budgets.TIME)
            short_runs = pilot.Pilot(plan, self.path, self.processes, self.workers, grid_of)
            if equal:
                short_runs.equalise()
            tuner = Tuner(plan, self.path, self.processes, self.workers, limit, grid_of, given)
            total = tuner.num_trainings + len(plan.candidates) * len(plan.seeds)
            tuner.run(lambda before: self._shifted(before, total))
            if equal and plan.tuned:
                short_runs.equalise(tuned=True)
            todo = {
                jobs.Job(f"{one.name}, seed {seed}", partial(self._train, one, seed)): (one, seed)
                for seed in plan.seeds
                for one in plan.candidates
                if not plan.has_ended(one, seed, self.path)
            }
            for job, outcome in jobs.run_jobs(list(todo), self.processes, self._shifted(total - len(todo), total)):
                one, seed = todo[job]
                if isinstance(outcome, InputError | DiskError):
                    plan.give_up(one, outcome)
                elif outcome is not None:
                    plan.failed[one.name, seed] = str(outcome)
        except jobs.Interrupted:
            return True
        return False

    def _shifted(self, before: int, total: int) -> jobs.OnProgress | None:
        """Report the progress of a part as progress of the whole comparison."""
        report = self.progress
        if report is None:
            return None
        return lambda step: report(replace(step, number=before + step.number, done=before + step.done, total=total))

    def _train(self, one: Candidate, seed: int, report: jobs.OnProgress) -> str | None:
        """Train one run into its directory. If it fails, write the error there instead and return it."""
        path = storage.run_path(self.path, one, seed)
        try:
            result = self.plan.train(one, seed, path, self.workers, jobs.report_rounds(report))
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
