"""Carrying out a comparison: tune, train what is not there yet, and put together what came out."""

import json
import logging
import shutil
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import partial
from pathlib import Path
from typing import Any

from bespokefl.core import chance
from bespokefl.core.errors import DiskError, InputError, TrainingError
from bespokefl.core.method import Method
from bespokefl.data.clients import Clients
from bespokefl.data.prepare import prepare
from bespokefl.engines.progress import Progress, Report
from bespokefl.experiments import compare_folder, contenders, folder, jobs, tables, toml
from bespokefl.experiments import start as starts
from bespokefl.experiments.comparison import BASELINES, Comparison, Entry, Facts
from bespokefl.experiments.config import Config
from bespokefl.experiments.contenders import Contender
from bespokefl.experiments.handover import check_clients, find_device
from bespokefl.experiments.personalize import labels_of
from bespokefl.experiments.result import Result, load_run
from bespokefl.experiments.run import SPLIT_FILE
from bespokefl.experiments.tune import Step, tune
from bespokefl.experiments.tuning import Grid
from bespokefl.experiments.weights import Model, fingerprint
from bespokefl.models import build

log = logging.getLogger("bespokefl")

# Options of a run that a comparison settles itself, or by which methods or seeds would have other clients.
NOT_HERE = ("newcomers", "keep_rounds", "state_dir")
# What may differ between two calls that go on with each other: it changes no result, or is looked at by itself.
FREE = {"method", "set", "data", "split", "clients", "seed", "start", "workers", "chunk", "out", "overwrite"}
FREE |= {"checkpoint_every", *NOT_HERE}

Train = Callable[[Method, int, Path, int, Report], Result]  # method, seed, folder, workers, report


@dataclass
class Plan:
    """A comparison that is to be carried out."""

    contenders: list[Contender]
    clients: Clients
    seeds: list[int]
    config: Config  # what all runs have in common
    settings: dict[str, Any]  # the same as `run` takes it
    model: Model
    train: Train
    command: str | None = None
    left_out: dict[str, str] = field(default_factory=dict)
    tuned: dict[str, dict[str, Any]] = field(default_factory=dict)
    failed: dict[tuple[str, int], str] = field(default_factory=dict)

    def carry_out(
        self,
        tuning: bool,
        grids: Mapping[str, Grid],
        out: Path | None,
        overwrite: bool,
        progress: jobs.Report | None,
    ) -> Comparison:
        """Tune, train what is not there yet, and compare."""
        contenders.check_grids(self.contenders, grids)
        wanted = {one.name: contenders.grid(one, tuning, grids) for one in self.contenders}
        self._leave_out()
        self._check()
        if any(wanted.values()) and not int(self.clients.validation.sizes.sum()):
            raise InputError("tuning needs validation data to choose by, but the clients have none.")
        parallel = self._parallel()
        keep = tempfile.TemporaryDirectory(prefix="bespoke-") if out is None else None
        place = Path(keep.name) if keep is not None else out
        assert place is not None
        try:
            with folder.held(place):
                return self._carry_out(wanted, parallel, place, overwrite, keep, progress)
        except DiskError as error:
            again = "call it again" if self.command is None else f'{self.command} --out "{place}"'
            raise DiskError(error.fact, kept=error.kept, cure=error.cure, then=again) from None

    def _carry_out(
        self,
        wanted: Mapping[str, Grid],
        parallel: tuple[int, int],
        place: Path,
        overwrite: bool,
        keep: "tempfile.TemporaryDirectory[str] | None",
        progress: jobs.Report | None,
    ) -> Comparison:
        processes, workers = parallel
        compare_folder.begin(place, self._identity(), self.clients, overwrite or keep is not None, self._unnamed())
        grids_of = {one: grid for one in self.contenders if (grid := wanted[one.name])}
        first, second = sum(map(contenders.points, grids_of.values())), len(self.contenders) * len(self.seeds)
        interrupted = False
        try:
            self._tune_all(grids_of, place, processes, workers, _part(progress, 0, first + second))
            self._run_all(place, processes, workers, _part(progress, first, first + second))
        except jobs.Interrupted:
            interrupted = True
        found = self._comparison(place, interrupted, keep)
        for (name, seed), said in self.failed.items():
            log.warning("%s failed with seed %d: %s", name, seed, said)
        if keep is None:
            found.save(place)
        return found

    # -- before anything is trained

    def _leave_out(self) -> None:
        for one in self.contenders:
            if one.method.needs_groups and self.clients.groups is None:
                self.left_out[one.name] = (
                    f"it needs a split that knows the clients' true groups, got {self.clients.split_name}."
                )
        self.contenders = [one for one in self.contenders if one.name not in self.left_out]

    def _check(self) -> None:
        check_clients(self.clients)
        find_device(self.config.device)

    def _parallel(self) -> tuple[int, int]:
        """Processes, and workers in each: several runs at once where they are small, else all cores for one."""
        how = {name: getattr(self.config, name) for name in ("scale", "missing", "vocabulary", "length")}
        ready = self.clients if self.clients.preparation is not None else prepare(self.clients, **how)[0]
        tokens = None if ready.preparation is None else ready.preparation.tokens
        with chance.torch_seeded(0, "size"):
            module = build(self.model, ready.shape, ready.classes or 1, tokens)()
        size = sum(parameter.numel() for parameter in module.parameters())
        processes = jobs.at_once(size * len(self.clients), self.config.workers, self.config.device)
        return (1, self.config.workers) if processes == 1 else (processes, 1)

    def _identity(self) -> dict[str, Any]:
        """By what a folder is known to be of this comparison, and what to tell of one that was killed."""
        common = {one.name: getattr(self.config, one.name) for one in fields(self.config) if one.name not in FREE}
        start = self.settings.get("start")
        common["start"] = None if start is None else fingerprint(starts.read(start))
        methods = [one.name for one in self.contenders]
        told = {"methods": methods, "seeds": self.seeds, "command": self.command}
        return {"split_hash": self.clients.hash, "config": tables.plain(common), **told}

    def _unnamed(self) -> list[str]:
        """What was made in Python, and may have changed since."""
        given = {"model": self.config.model, "loss": self.config.loss}
        found = [what for what, name in given.items() if str(name).startswith("<")]
        return found + [one.name for one in self.contenders if not one.registered]

    # -- tuning

    def _tune_all(
        self,
        grids: Mapping[Contender, Grid],
        place: Path,
        processes: int,
        workers: int,
        progress: jobs.Report | None,
    ) -> None:
        todo = {f"{one.name}, tuning:": (one, grid) for one, grid in grids.items()}
        made = [
            jobs.Job(name, partial(self._tune_job, one, grid, place, workers), contenders.points(grid))
            for name, (one, grid) in todo.items()
        ]
        for job, outcome in jobs.do(made, processes, progress):
            self._take_tuning(*todo[job.name], outcome)

    def _tune_job(self, one: Contender, grid: Grid, place: Path, workers: int, tell: jobs.Tell) -> dict[str, Any]:
        def report(step: Step) -> None:
            tell(
                step.done / step.total, f"{step.text}, round {step.rounds.done}/{step.rounds.total}", step.rounds.scores
            )

        settings = self.settings | {"workers": workers}
        settings.pop("checkpoint_every", None)
        target = place / "tune" / one.slug
        python = not one.registered or self.config.model.startswith("<") or str(self.config.loss).startswith("<")
        found = tune(
            one.method,
            self.clients,
            grid=grid,
            seeds=self.seeds[:1],
            out=target,
            overwrite=python,
            progress=report,
            **settings,
        )
        if found.interrupted:
            raise jobs.Interrupted
        return {"chosen": found.chosen, "by": found.by, "points": tables.plain(found.table)}

    def _take_tuning(self, one: Contender, grid: Grid, outcome: Any) -> None:
        """Use what was chosen."""
        if isinstance(outcome, Exception):
            self._give_up(one, outcome)
            return
        at = outcome["chosen"]
        if at is None:
            said = next((line["failed"] for line in outcome["points"] if line["failed"]), "there were no scores.")
            for seed in self.seeds:
                self.failed[one.name, seed] = f"no point of its grid could be trained: {said}"
            return
        method, chosen = contenders.chosen(one, grid, at)
        self.tuned[one.name] = {"by": outcome["by"], "chosen": chosen, "points": outcome["points"]}
        self.contenders[self.contenders.index(one)] = replace(one, method=method)

    # -- training

    def _run_all(self, place: Path, processes: int, workers: int, progress: jobs.Report | None) -> None:
        """Train what is not there: all methods with the first seed, then with the next."""
        todo = {
            f"{one.name}, seed {seed}:": (one, seed)
            for seed in self.seeds
            for one in self.contenders
            if one.name not in self.left_out
            and (one.name, seed) not in self.failed
            and not self._is_there(one, seed, place)
        }
        made = [
            jobs.Job(name, partial(self._run_job, one, seed, compare_folder.of_run(place, one, seed), workers))
            for name, (one, seed) in todo.items()
        ]
        there = len(self.contenders) * len(self.seeds) - len(made)
        for job, outcome in jobs.do(made, processes, _part(progress, there)):
            one, seed = todo[job.name]
            if isinstance(outcome, InputError | DiskError):
                self._give_up(one, outcome)
            elif outcome is not None:
                self.failed[one.name, seed] = str(outcome)

    def _run_job(self, one: Contender, seed: int, place: Path, workers: int, tell: jobs.Tell) -> str | None:
        """Train, and leave the folder of the run, or of its failure, whose sentence comes back."""

        def report(now: Progress) -> None:
            tell(now.done / now.total, f"round {now.done}/{now.total}", now.scores)

        try:
            result = self.train(one.method, seed, place, workers, report)
        except TrainingError as error:
            shutil.rmtree(place, ignore_errors=True)
            place.mkdir(parents=True)
            about = {"failed": str(error), "hyper": tables.plain(one.method.hyper())}
            folder.write_text(place / compare_folder.FAILED, tables.dumps(about, indent=1) + "\n")
            return str(error)
        if result.interrupted:
            raise jobs.Interrupted
        return None

    def _is_there(self, one: Contender, seed: int, place: Path) -> bool:
        """Whether this run has ended before; refuses one that was something else."""
        target = compare_folder.of_run(place, one, seed)
        if (target / compare_folder.FAILED).is_file():
            held = json.loads((target / compare_folder.FAILED).read_text(encoding="utf-8"))
            before, ended = held["hyper"], True
            self.failed[one.name, seed] = held["failed"]
        elif folder.is_run(target):
            result = load_run(target)
            before, ended = tables.plain(result.hyper), not result.interrupted
        else:
            return False
        now = tables.plain(one.method.hyper())
        different = [name for name in now if before.get(name) != now[name]]
        if different:
            name = different[0]
            raise InputError(
                f"{str(target)!r} was run with {name} = {before.get(name)}, and now it is {now[name]}; use another "
                "folder, or --overwrite to replace everything."
            )
        return ended

    def _give_up(self, one: Contender, error: Exception) -> None:
        """A method that cannot be run on these clients is left out, a baseline's mistake and a full disk are
        everybody's."""
        if isinstance(error, DiskError):
            raise error
        if not isinstance(error, InputError):
            for seed in self.seeds:
                self.failed[one.name, seed] = str(error)
        elif one.method.name in BASELINES:
            raise error
        else:
            self.left_out[one.name] = str(error)

    # -- what came out

    def _comparison(self, place: Path, interrupted: bool, keep: object) -> Comparison:
        entries = []
        for one in self.contenders:
            if one.name in self.left_out:
                continue
            entry = Entry(
                one.name,
                one.method.name or type(one.method).__name__,
                tables.plain(one.method.hyper()),
                failed={seed: said for (name, seed), said in self.failed.items() if name == one.name},
                tuned=self.tuned.get(one.name),
                about=one.method.summary(),
                citation=one.method.citation,
            )
            for seed in self.seeds:
                target = compare_folder.of_run(place, one, seed)
                if seed not in entry.failed and folder.is_run(target):
                    result = load_run(target, None if isinstance(self.model, str) else self.model)
                    if not result.interrupted:
                        entry.runs[seed] = result
            entries.append(entry)
        if not any(entry.runs for entry in entries):
            if interrupted:
                raise KeyboardInterrupt
            said = next((said for entry in entries for said in entry.failed.values()), "nothing was trained.")
            raise TrainingError(f"no method could be trained; the first said: {said}")
        clients, config = self.clients, self.config
        common = {one.name: getattr(config, one.name) for one in fields(config) if one.name not in FREE}
        data = {
            "name": clients.data_name,
            "split": clients.split_name,
            "split_hash": clients.hash,
            "split_seed": clients.seed,
            "clients": len(clients),
            "shape": clients.shape,
            "labels": None if clients.classes is None else labels_of(clients),
        }
        written = {"data": config.data, "split": SPLIT_FILE, "clients": len(clients), **common}
        comments = {"split": f"{clients.split_name}, seed {clients.seed}, hash {clients.hash}"}
        facts = Facts(
            data=data,
            model=config.model,
            config={name: value for name, value in common.items() if name != "model"},
            config_text=toml.dumps(written, comments),
            groups=clients.groups,
            seeds=tuple(self.seeds),
            left_out=tuple(sorted(self.left_out.items())),
            command=self.command,
            interrupted=interrupted,
            planned=len(entries) * len(self.seeds),
        )
        return Comparison(entries, facts, keep)


def _part(progress: jobs.Report | None, before: int, total: int | None = None) -> jobs.Report | None:
    """A report of a part as one of the whole."""
    if progress is None:
        return None
    return lambda step: progress(replace(step, done=before + step.done, total=total or before + step.total))
