"""A comparison to carry out: its methods, seeds and settings, and the outcome so far."""

import json
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from bespokefl.core.errors import DiskError, InputError, TrainingError
from bespokefl.core.method import Method
from bespokefl.data.clients import Clients
from bespokefl.engines.progress import Report
from bespokefl.workflows.compare import storage
from bespokefl.workflows.compare.candidates import Candidate
from bespokefl.workflows.compare.result import BASELINES, Comparison, ComparisonMetadata, Entry
from bespokefl.workflows.results import run_directory, score_tables
from bespokefl.workflows.results.models import Model, fingerprint
from bespokefl.workflows.results.result import Result, load_run
from bespokefl.workflows.run import initial_weights, toml
from bespokefl.workflows.run.convert import labels_of
from bespokefl.workflows.run.settings import Config
from bespokefl.workflows.tune import shared_settings

# Settings of a run that a comparison sets itself, or that would give methods or seeds different clients.
NOT_ACCEPTED = ("newcomers", "keep_rounds", "state_dir")
# Settings that may change when a comparison is resumed: they change no result, or are checked separately.
MAY_CHANGE = {"method", "set", "data", "split", "clients", "seed", "start", "workers", "chunk", "out", "overwrite"}
MAY_CHANGE |= {"checkpoint_every", *NOT_ACCEPTED}

Train = Callable[[Method, int, Path, int, Report], Result]  # method, seed, directory, workers, report


@dataclass
class ComparisonPlan:
    """A comparison to carry out, and its outcome so far."""

    candidates: list[Candidate]
    clients: Clients
    seeds: list[int]
    config: Config  # settings of all runs
    settings: dict[str, Any]  # the same as keyword arguments of `run`
    model: Model
    train: Train
    command: str | None = None
    left_out: dict[str, str] = field(default_factory=dict)  # reasons by name
    tuned: dict[str, dict[str, Any]] = field(default_factory=dict)
    failed: dict[tuple[str, int], str] = field(default_factory=dict)  # errors by name and seed

    def leave_out_unfit(self) -> None:
        """Leave out methods that need the clients' true groups if the split has none."""
        for one in self.candidates:
            if one.method.needs_groups and self.clients.groups is None:
                self.left_out[one.name] = (
                    f"it needs a split that knows the clients' true groups, got {self.clients.split_name}."
                )
        self.candidates = [one for one in self.candidates if one.name not in self.left_out]

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
            "config": score_tables.plain(common),
            "methods": [one.name for one in self.candidates],
            "seeds": self.seeds,
            "command": self.command,
        }

    def _common(self) -> dict[str, Any]:
        return {one.name: getattr(self.config, one.name) for one in fields(self.config) if one.name not in MAY_CHANGE}

    def from_python(self) -> list[str]:
        """Name everything that was made in Python and may have changed since."""
        found = [name for name in ("model", "loss") if str(getattr(self.config, name)).startswith("<")]
        return found + [one.name for one in self.candidates if not one.registered]

    def has_ended(self, one: Candidate, seed: int, path: Path) -> bool:
        """Return whether this run has ended before; reject a run with other hyper-parameters."""
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
        clients, config, common = self.clients, self.config, self._common()
        written = {"data": config.data, "split": run_directory.SPLIT_FILE, "clients": len(clients), **common}
        comments = {"split": f"{clients.split_name}, seed {clients.seed}, hash {clients.hash}"}
        facts = ComparisonMetadata(
            data={
                "name": clients.data_name,
                "split": clients.split_name,
                "split_hash": clients.hash,
                "split_seed": clients.seed,
                "clients": len(clients),
                "shape": clients.shape,
                "labels": None if clients.classes is None else labels_of(clients),
            },
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

    def _entry(self, one: Candidate, path: Path) -> Entry:
        entry = Entry(
            one.name,
            one.method.name or type(one.method).__name__,
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
