"""A comparison that is to be made: who takes part, on what, and what has come of it."""

import json
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from bespokefl.core import rng
from bespokefl.core.errors import DiskError, InputError, TrainingError
from bespokefl.core.method import Method
from bespokefl.data.clients import Clients
from bespokefl.data.preprocessing.fit import prepare
from bespokefl.engines.progress import Report
from bespokefl.models import build
from bespokefl.workflows.compare import storage as compare_folder
from bespokefl.workflows.compare.candidates import Contender
from bespokefl.workflows.compare.result import BASELINES, Comparison, ComparisonMetadata, Entry
from bespokefl.workflows.results import run_directory, score_tables
from bespokefl.workflows.results.models import Model, fingerprint
from bespokefl.workflows.results.result import Result, load_run
from bespokefl.workflows.run import initial_weights as starts
from bespokefl.workflows.run import jobs, toml
from bespokefl.workflows.run.convert import labels_of
from bespokefl.workflows.run.settings import Config

# Options of a run that a comparison settles itself, or by which methods or seeds would have other clients.
NOT_HERE = ("newcomers", "keep_rounds", "state_dir")
# What may differ between two calls that go on with each other: it changes no result, or is looked at by itself.
FREE = {"method", "set", "data", "split", "clients", "seed", "start", "workers", "chunk", "out", "overwrite"}
FREE |= {"checkpoint_every", *NOT_HERE}

Train = Callable[[Method, int, Path, int, Report], Result]  # method, seed, folder, workers, report


@dataclass
class ComparisonPlan:
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

    # -- before anything is trained

    def leave_out(self) -> None:
        """Methods that need the clients' true groups take no part where the split knows none."""
        for one in self.contenders:
            if one.method.needs_groups and self.clients.groups is None:
                self.left_out[one.name] = (
                    f"it needs a split that knows the clients' true groups, got {self.clients.split_name}."
                )
        self.contenders = [one for one in self.contenders if one.name not in self.left_out]

    def parallel(self) -> tuple[int, int]:
        """Processes, and workers in each: several runs at once where they are small, else all cores for one."""
        how = {name: getattr(self.config, name) for name in ("scale", "missing", "vocabulary", "length")}
        ready = self.clients if self.clients.preparation is not None else prepare(self.clients, **how)[0]
        tokens = None if ready.preparation is None else ready.preparation.tokens
        with rng.torch_seeded(0, "size"):
            module = build(self.model, ready.shape, ready.classes or 1, tokens)()
        size = sum(parameter.numel() for parameter in module.parameters())
        processes = jobs.at_once(size * len(self.clients), self.config.workers, self.config.device)
        return (1, self.config.workers) if processes == 1 else (processes, 1)

    def identity(self) -> dict[str, Any]:
        """By what a folder is known to be of this comparison, and what to tell of one that was killed."""
        common = self._common()
        start = self.settings.get("start")
        common["start"] = None if start is None else fingerprint(starts.read(start))
        methods = [one.name for one in self.contenders]
        told = {"methods": methods, "seeds": self.seeds, "command": self.command}
        return {"split_hash": self.clients.hash, "config": score_tables.plain(common), **told}

    def _common(self) -> dict[str, Any]:
        """What two calls that go on with each other must agree in."""
        return {one.name: getattr(self.config, one.name) for one in fields(self.config) if one.name not in FREE}

    def unnamed(self) -> list[str]:
        """What was made in Python, and may have changed since."""
        given = {"model": self.config.model, "loss": self.config.loss}
        found = [what for what, name in given.items() if str(name).startswith("<")]
        return found + [one.name for one in self.contenders if not one.registered]

    # -- on the way

    def is_there(self, one: Contender, seed: int, place: Path) -> bool:
        """Whether this run has ended before; refuses one that was something else."""
        target = compare_folder.of_run(place, one, seed)
        if (target / compare_folder.FAILED).is_file():
            held = json.loads((target / compare_folder.FAILED).read_text(encoding="utf-8"))
            before, ended = held["hyper"], True
            self.failed[one.name, seed] = held["failed"]
        elif run_directory.is_run(target):
            result = load_run(target)
            before, ended = score_tables.plain(result.hyper), not result.interrupted
        else:
            return False
        now = score_tables.plain(one.method.hyper())
        different = [name for name in now if before.get(name) != now[name]]
        if different:
            name = different[0]
            raise InputError(
                f"{str(target)!r} was run with {name} = {before.get(name)}, and now it is {now[name]}; use another "
                "folder, or --overwrite to replace everything."
            )
        return ended

    def give_up(self, one: Contender, error: Exception) -> None:
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

    def comparison(self, place: Path, interrupted: bool, keep: object) -> Comparison:
        """All runs that have ended, put together; `keep` lives as long as that does."""
        entries = []
        for one in self.contenders:
            if one.name in self.left_out:
                continue
            entry = Entry(
                one.name,
                one.method.name or type(one.method).__name__,
                score_tables.plain(one.method.hyper()),
                failed={seed: said for (name, seed), said in self.failed.items() if name == one.name},
                tuned=self.tuned.get(one.name),
                about=one.method.summary(),
                citation=one.method.citation,
            )
            for seed in self.seeds:
                target = compare_folder.of_run(place, one, seed)
                if seed not in entry.failed and run_directory.is_run(target):
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
        common = self._common()
        data = {
            "name": clients.data_name,
            "split": clients.split_name,
            "split_hash": clients.hash,
            "split_seed": clients.seed,
            "clients": len(clients),
            "shape": clients.shape,
            "labels": None if clients.classes is None else labels_of(clients),
        }
        written = {"data": config.data, "split": run_directory.SPLIT_FILE, "clients": len(clients), **common}
        comments = {"split": f"{clients.split_name}, seed {clients.seed}, hash {clients.hash}"}
        facts = ComparisonMetadata(
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
