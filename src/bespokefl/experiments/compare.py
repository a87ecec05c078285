"""Comparing: methods × seeds on one split, from the same start, with the same draws of clients.

What is on disk, in a folder of its own:

plan.json           what all runs have in common: a folder is gone on with only if this is the same
split.json          whose examples are whose
runs/METHOD-SEED    the folder of each run; those that are there are not trained again
tune/METHOD         the tuning of each method, where it was asked for
compare.json        what came out, for the report and other programs
clients.csv         one line per method, seed and client
"""

import hashlib
import inspect
import json
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from functools import partial
from os import PathLike
from pathlib import Path
from typing import Any

from bespokefl.core import chance
from bespokefl.core.errors import InputError, TrainingError, unknown
from bespokefl.core.method import Method
from bespokefl.data.clients import Clients
from bespokefl.engines import simulation
from bespokefl.engines.workers import cores
from bespokefl.experiments import contenders, folder, jobs, tables, toml
from bespokefl.experiments import start as starts
from bespokefl.experiments.comparison import BASELINES, FILE, TABLE, Comparison, Entry, Facts
from bespokefl.experiments.config import LOADING, Config
from bespokefl.experiments.contenders import Contender
from bespokefl.experiments.handover import check_clients, find_device
from bespokefl.experiments.personalize import labels_of
from bespokefl.experiments.result import Result, load_run
from bespokefl.experiments.run import RUNS, SPLIT_FILE, load_clients, run, run_config
from bespokefl.experiments.tune import FILE as TUNING
from bespokefl.experiments.tune import Grid, Step, tune
from bespokefl.experiments.weights import Model, described, fingerprint
from bespokefl.models import build

PLAN, FAILED = "plan.json", "failed.json"
SIGNS, WHAT = (PLAN,), "a comparison"
SEEDS = (0, 1, 2)
MANY = 20_000_000  # parameters of all clients together; up to here several runs at once fit into memory
# Options of a run that a comparison settles itself, or by which methods or seeds would have other clients.
NOT_HERE = ("newcomers", "keep_rounds", "state_dir")
# What may differ between two calls that go on with each other: it changes no result, or is looked at by itself.
FREE = {"method", "set", "data", "split", "clients", "seed", "start", "workers", "chunk", "out", "overwrite"}
FREE |= {"checkpoint_every", *NOT_HERE}

Train = Callable[[Method, int, Path, int, simulation.Report], Result]  # method, seed, folder, workers, report


def compare(
    methods: Sequence[Method | str],
    clients: Clients,
    *,
    seeds: Sequence[int] = SEEDS,
    tune: bool = False,
    grids: Mapping[str, Grid] | None = None,
    out: str | PathLike[str] | None = None,
    overwrite: bool = False,
    progress: jobs.Report | None = None,
    **settings: Any,
) -> Comparison:
    """Train every method with every seed on the same clients, and compare them client by client.

    methods   with their hyper-parameters, `methods.Ditto(pull=0.5)`, or names; Local and FedAvg, over which gains are
              measured, always take part
    seeds     of the start, the draws of clients and the batches; for one seed they are the same for all methods
    tune      choose every method's hyper-parameters on validation data first, with the first seed
    grids     what to try, {"ditto": {"pull": (0.1, 1)}}, instead of the default grid; these methods are tuned anyway
    out       a folder for everything: what is in it already is not trained again
    settings  all else that `run` takes: model, rounds, participation, …
    """
    if not isinstance(clients, Clients):
        raise InputError(f"clients must be Clients, got {type(clients).__name__}; data.split(...) makes them.")
    _check_settings(settings)
    loss, start = settings.get("loss"), settings.get("start")
    model: Model = settings.get("model", Config.model)
    plain = {name: value for name, value in settings.items() if name not in ("model", "loss", "start")}
    config = Config(
        method="compare",
        data=clients.data_name,
        clients=len(clients),
        model=described(model),
        loss=f"<{getattr(loss, '__name__', 'function')}>" if callable(loss) else loss,
        **plain,
    )
    given = settings | {"start": None if start is None else starts.read(start)}

    def train(method: Method, seed: int, place: Path, workers: int, report: simulation.Report) -> Result:
        own = {"seed": seed, "workers": workers, "checkpoint": place, "progress": report}
        result = run(method, clients, **(given | own))
        if not result.interrupted:
            result.save(place, overwrite=True)
        return result

    plan = Plan(contenders.of(methods), clients, _seeds(seeds), config, given, model, train)
    return plan.carry_out(tune, grids or {}, None if out is None else Path(out), overwrite, progress)


def compare_config(
    config: Config,
    methods: Sequence[str],
    *,
    seeds: Sequence[int] | None = None,
    tune: bool = False,
    grids: Mapping[str, Grid] | None = None,
    progress: jobs.Report | None = None,
) -> Comparison:
    """The same for what a config says: its seed is the split's, its `set` has keys such as "ditto.pull"."""
    numbers = _seeds(SEEDS if seeds is None else seeds)
    for name in NOT_HERE:
        if getattr(config, name) != getattr(Config, name):
            raise InputError(f"a comparison does not take {name}; leave it out.")
    if config.model.startswith("<"):
        raise InputError(f"the model was a Python object, {config.model}, that has no name; give --model.")
    chosen = contenders.named(methods, config.set)
    for one in chosen:
        contenders.grid(one, tune, grids or {})  # mistakes are told before data are read
    contenders.check_grids(chosen, grids or {})
    target = Path(config.out) if config.out is not None else folder.fresh(RUNS, "compare")
    _check_place(target, config.overwrite)
    clients = load_clients(config)
    common = replace(config, split=str(target / SPLIT_FILE), overwrite=True, set={})

    def train(method: Method, seed: int, place: Path, workers: int, report: simulation.Report) -> Result:
        hyper = {name: value for name, value in method.hyper().items() if value is not None}
        own = replace(common, method=method.name, set=hyper, seed=seed, workers=workers, out=str(place))
        return run_config(own, report, resumed=folder.is_unfinished(place), clients=clients)

    apart = {*LOADING, "method", "seed", "set", "out", "overwrite", *NOT_HERE}
    settings = {one.name: getattr(config, one.name) for one in fields(config) if one.name not in apart}
    plan = Plan(chosen, clients, numbers, config, settings, config.model, train)
    plan.command = contenders.command(config, methods, numbers, tune, grids or {})
    return plan.carry_out(tune, grids or {}, target, config.overwrite, progress)


def compare_runs(
    runs: Sequence[Result | str | PathLike[str]], *, out: str | PathLike[str] | None = None, overwrite: bool = False
) -> Comparison:
    """Compare runs that are there: results, folders of runs, or folders of comparisons, all of one split.

    Runs that differ in nothing but their seed are one method; figures are of the seeds that all methods have.
    """
    if out is not None:
        folder.check(Path(out), overwrite, (FILE,), WHAT)
    results = [result for one in runs for result in _loaded(one)]
    if len(results) < 2:
        raise InputError(f"a comparison of runs needs at least two, got {len(results)}.")
    first = results[0]
    for other in results[1:]:
        if other.about["split_hash"] != first.about["split_hash"]:
            raise InputError(
                f"runs of different splits cannot be compared, got {_called(first)} of split "
                f"{first.about['split_hash'][:12]} and {_called(other)} of split {other.about['split_hash'][:12]}."
            )
        if other.names != first.names:
            raise InputError(
                f"runs of different clients cannot be compared, but {_called(first)} and {_called(other)} held back "
                "different newcomers."
            )
    entries, differing = contenders.grouped(results)
    notes = [f"The methods differ in more than the method: {differing}."] if differing else []
    about, settings = first.about, first.about["settings"]
    config = {"rounds": about["rounds"], **{name: value for name, value in settings.items() if name not in FREE}}
    data = {name: about[name] for name in ("split", "split_hash", "split_seed", "clients")}
    facts = Facts(
        data={"name": about["data"], **data, **{name: about["examples"][name] for name in ("shape", "labels")}},
        model=about["model"],
        config=config,
        config_text=toml.dumps({"data": about["data"], "split": about["split"], "model": about["model"], **config}),
        groups=_groups(first),
        seeds=(),
        notes=tuple(notes),
    )
    found = Comparison(entries, facts)
    if out is not None:
        found.save(out)
    return found


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
        keep = tempfile.TemporaryDirectory(prefix="bespoke-") if out is None else None
        place = Path(keep.name) if keep is not None else out
        assert place is not None
        self._begin(place, overwrite or keep is not None)
        processes, workers = self._parallel()
        grids_of = {one: grid for one in self.contenders if (grid := wanted[one.name])}
        first, second = sum(map(contenders.points, grids_of.values())), len(self.contenders) * len(self.seeds)
        interrupted = False
        try:
            self._tune_all(grids_of, place, processes, workers, _part(progress, 0, first + second))
            self._run_all(place, processes, workers, _part(progress, first, first + second))
        except jobs.Interrupted:
            interrupted = True
        found = self._comparison(place, interrupted, keep)
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
        workers = self.config.workers or cores()
        with chance.torch_seeded(0, "size"):
            module = build(self.model, self.clients.shape, self.clients.classes or 1)()
        size = sum(parameter.numel() for parameter in module.parameters())
        alone = size * len(self.clients) > MANY or self.config.device != "cpu" or not jobs.can_fork()
        return (1, self.config.workers) if alone or workers == 1 else (workers, 1)

    def _begin(self, place: Path, overwrite: bool) -> None:
        """Make the folder, or go on in one that is there for the same purpose."""
        _check_place(place, overwrite)
        now = self._identity()
        if folder.is_run(place, SIGNS):
            if overwrite:
                _clear(place)
            else:
                self._compare_plans(place, now)
        try:
            (place / "runs").mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(f"cannot write to {str(place)!r}: {error.strerror or error}.") from None
        self.clients.save_split(place / SPLIT_FILE)
        folder.write_text(place / PLAN, tables.dumps(now, indent=1) + "\n")

    def _identity(self) -> dict[str, Any]:
        common = {one.name: getattr(self.config, one.name) for one in fields(self.config) if one.name not in FREE}
        start = self.settings.get("start")
        state = None if start is None else starts.read(start)
        common["start"] = None if state is None else fingerprint(state)
        return {"split_hash": self.clients.hash, "config": tables.plain(common)}

    def _compare_plans(self, place: Path, now: Mapping[str, Any]) -> None:
        try:
            before = json.loads((place / PLAN).read_text(encoding="utf-8"))
            old, hash_before = dict(before["config"]), str(before["split_hash"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise InputError(
                f"the comparison in {str(place)!r} is damaged: {error!r}; use --overwrite to replace it."
            ) from None
        told = "use another folder, or --overwrite to replace it."
        if hash_before != now["split_hash"]:
            raise InputError(
                f"{str(place)!r} holds a comparison of split {hash_before[:12]}, and this one is of split "
                f"{now['split_hash'][:12]}; {told}"
            )
        new = now["config"]
        for name in new:
            if old.get(name) != new[name]:
                raise InputError(
                    f"{str(place)!r} holds a comparison with {name} = {old.get(name)} (config {_hash(old)}), and this "
                    f"one has {name} = {new[name]} (config {_hash(new)}); {told}"
                )
        python = [what for what in ("model", "loss") if str(new[what]).startswith("<")]
        python += [one.name for one in self.contenders if not one.registered]
        if python:
            raise InputError(
                f"{str(place)!r} holds a comparison, and {python[0]} was made in Python and may have changed; {told}"
            )

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
            share = (step.number - 1 + step.rounds.done / step.rounds.total) / step.total
            tell(share, f"{step.text}, round {step.rounds.done}/{step.rounds.total}", step.rounds.scores)

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
            jobs.Job(name, partial(self._run_job, one, seed, _place(place, one, seed), workers))
            for name, (one, seed) in todo.items()
        ]
        there = len(self.contenders) * len(self.seeds) - len(made)
        for job, outcome in jobs.do(made, processes, _part(progress, there)):
            one, seed = todo[job.name]
            if isinstance(outcome, InputError):
                self._give_up(one, outcome)
            elif isinstance(outcome, Exception):
                self.failed[one.name, seed] = str(outcome)
            elif outcome is not None:
                self.failed[one.name, seed] = outcome

    def _run_job(self, one: Contender, seed: int, place: Path, workers: int, tell: jobs.Tell) -> str | None:
        """Train, and leave the folder of the run, or of its failure, whose sentence comes back."""

        def report(now: simulation.Progress) -> None:
            tell(now.done / now.total, f"round {now.done}/{now.total}", now.scores)

        try:
            result = self.train(one.method, seed, place, workers, report)
        except TrainingError as error:
            shutil.rmtree(place, ignore_errors=True)
            place.mkdir(parents=True)
            about = {"failed": str(error), "hyper": tables.plain(one.method.hyper())}
            folder.write_text(place / FAILED, tables.dumps(about, indent=1) + "\n")
            return str(error)
        if result.interrupted:
            raise jobs.Interrupted
        return None

    def _is_there(self, one: Contender, seed: int, place: Path) -> bool:
        """Whether this run has ended before; refuses one that was something else."""
        target = _place(place, one, seed)
        if (target / FAILED).is_file():
            held = json.loads((target / FAILED).read_text(encoding="utf-8"))
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
        """A method that cannot be run on these clients is left out, a baseline's mistake is everybody's."""
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
                target = _place(place, one, seed)
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
        )
        return Comparison(entries, facts, keep)


def _place(place: Path, one: Contender, seed: int) -> Path:
    return place / "runs" / f"{one.slug}-{seed}"


def _part(progress: jobs.Report | None, before: int, total: int | None = None) -> jobs.Report | None:
    """A report of a part as one of the whole."""
    if progress is None:
        return None
    return lambda step: progress(replace(step, done=before + step.done, total=total or before + step.total))


def _check_place(place: Path, overwrite: bool) -> None:
    if not folder.is_run(place, SIGNS):
        folder.check(place, overwrite, SIGNS, WHAT)


def _clear(place: Path) -> None:
    """Remove what a comparison has written, and nothing else."""
    for kind, signs in (("runs", [folder.SIGNS, (FAILED,), ("config.toml",)]), ("tune", [(TUNING,)])):
        for one in (place / kind).iterdir() if (place / kind).is_dir() else ():
            if any(folder.is_run(one, sign) for sign in signs):
                shutil.rmtree(one)
        with suppress(OSError):
            (place / kind).rmdir()
    for name in (PLAN, SPLIT_FILE, FILE, TABLE):
        (place / name).unlink(missing_ok=True)


def _hash(config: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(config, sort_keys=True).encode()).hexdigest()[:12]


def _check_settings(settings: Mapping[str, Any]) -> None:
    apart = {"method", "clients", "progress", "checkpoint", "seed", *NOT_HERE}
    known = [name for name in inspect.signature(run).parameters if name not in apart]
    for name in settings:
        if name in apart:
            raise InputError(f"a comparison does not take {name}; leave it out.")
        if name not in known:
            raise unknown("setting", name, [*known, "seeds", "tune", "grids", "out"])


def _seeds(seeds: Sequence[int]) -> list[int]:
    numbers = list(seeds)
    if not numbers or not all(isinstance(one, int) for one in numbers) or len(set(numbers)) < len(numbers):
        raise InputError(f"seeds must be one or more different whole numbers, got {seeds!r}.")
    return sorted(numbers)


def _loaded(run: Result | str | PathLike[str]) -> list[Result]:
    """The runs that are meant: one, or all of a comparison."""
    if isinstance(run, Result):
        return [run]
    path = Path(run)
    if folder.is_run(path, SIGNS):
        return [load_run(one) for one in sorted((path / "runs").iterdir()) if folder.is_run(one)]
    if folder.is_unfinished(path) and not folder.is_run(path):
        raise InputError(f"the run in {str(path)!r} is unfinished; bespoke resume {path} goes on with it.")
    return [load_run(path)]


def _called(result: Result) -> str:
    return f"{result.method} with seed {result.about['seed']}" if result.path is None else repr(str(result.path))


def _groups(result: Result) -> tuple[int, ...] | None:
    """The true groups of the clients, which the split of a run may know."""
    if result.path is None or not (result.path / SPLIT_FILE).is_file():
        return None
    split = json.loads((result.path / SPLIT_FILE).read_text(encoding="utf-8"))
    if split["groups"] is None:
        return None
    known = dict(zip(split["names"], split["groups"], strict=True))
    return tuple(known[name] for name in result.names)
