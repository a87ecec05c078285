"""Hyper-parameters chosen on validation data: every point of a grid is trained on the same clients and compared.

Test data can choose nothing, as the clients are trained without theirs. Points are trained side by side, each in a
process of its own, where there are as many as workers; else one after the other, each with all workers. That changes
the time they take and nothing else.
"""

import inspect
import logging
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import torch

from bespokefl import methods
from bespokefl.core import rng
from bespokefl.core.client_index import ClientIndex
from bespokefl.core.errors import DiskError, InputError, TrainingError, unknown
from bespokefl.core.method import Method
from bespokefl.data.clients import Clients
from bespokefl.data.preprocessing.fit import prepare
from bespokefl.engines.progress import Progress
from bespokefl.engines.transports.processes import WorkerError
from bespokefl.models import build
from bespokefl.workflows.results import run_directory, score_tables
from bespokefl.workflows.results.models import Model, described, fingerprint
from bespokefl.workflows.results.result import Result
from bespokefl.workflows.run import initial_weights as starts
from bespokefl.workflows.run import jobs
from bespokefl.workflows.run.api import run
from bespokefl.workflows.run.client_loading import hold_back, load_clients
from bespokefl.workflows.run.settings import LOADING, Config
from bespokefl.workflows.tune.result import (
    OPTIONS,
    SCORES,
    SIGNS,
    WHAT,
    Cells,
    Grid,
    Point,
    Tuning,
    earlier,
    expand,
    worded,
)

log = logging.getLogger("bespokefl")

TOLD = re.compile(r"(.*) (\S+) (\d+)/(\d+)", re.DOTALL)  # by a training: its point, the phase, the round of how many


@dataclass(frozen=True)
class Step:
    """What a progress display is told after every round."""

    text: str  # the point
    number: int  # of trainings: those that have ended, and this one
    total: int  # trainings
    rounds: Progress
    beside: float = 0.0  # how much is done of the trainings in hand beside this one

    @property
    def done(self) -> float:
        """Trainings, with the parts of those in hand."""
        return self.number - 1 + self.rounds.done / self.rounds.total + self.beside


Report = Callable[[Step], None]


def tune(
    method: Method | str,
    clients: Clients,
    *,
    grid: Grid,
    seeds: Sequence[int] | None = None,
    out: str | PathLike[str] | None = None,
    overwrite: bool = False,
    progress: Report | None = None,
    **settings: Any,
) -> Tuning:
    """Train every point of a grid with the same clients and choose by the mean personal accuracy on validation data.

    grid      hyper-parameters of the method, or rounds, participation, batch_size, local_epochs, local_steps, and the
              values to try, {"prox_weight": (0.1, 1), "lr": (0.01, 0.1)}; regression is chosen by loss, ties
              keep the first
    seeds     the figures are means over runs with these seeds
    out       a folder for the table; what is in it already is not trained again
    settings  all else that `run` takes; `workers` are shared by the points that are trained at the same time
    """
    _check_settings(settings)
    chosen = methods.of(method)
    if not isinstance(clients, Clients):
        raise InputError(f"clients must be Clients, got {type(clients).__name__}; data.split(...) makes them.")
    config = _config(chosen, clients, settings)
    points = expand(chosen, grid, {name: getattr(config, name) for name in OPTIONS})
    numbers = _seeds(seeds, config.seed)
    clients, _ = hold_back(clients, config.newcomers, config.seed)
    if not int(clients.validation.sizes.sum()):
        raise InputError("tuning needs validation data to choose by, but the clients have none.")
    given = settings.get("start")
    start = None if given is None else starts.read(given)
    about = _about(config, chosen, clients, "" if start is None else fingerprint(start))
    cells = {} if out is None else earlier(Path(out), about, overwrite)
    clients = replace(clients, test=_nothing(clients.test))  # so that it can choose nothing
    clients = _prepared(clients, config)
    todo = [(point, seed) for point in points for seed in numbers if point.key(seed) not in cells]
    processes = _processes(config, clients, settings.get("model", Config.model), len(todo))
    fixed = {"start": start, "newcomers": 0.0, "keep_rounds": False, "eval_every": 0}
    settings = settings | fixed | {"workers": 1 if processes > 1 else config.workers}

    def job(point: Point, seed: int) -> jobs.Job:
        def work(tell: jobs.JobReport) -> dict[str, Any] | None:
            if _failed(point, numbers, cells):  # as they are when this training begins
                return None
            return _train(point, clients, settings | {"seed": seed, "progress": _teller(tell)})

        return jobs.Job(worded(point.values) + (f", seed {seed}" if len(numbers) > 1 else ""), work)

    made = {job(point, seed): (point, seed) for point, seed in todo}
    ended, interrupted = 0, False

    def report(now: jobs.Step) -> None:
        step = _step(now, ended)
        if progress is not None and step is not None:
            progress(step)

    try:
        for one, outcome in jobs.do(list(made), processes, report):
            ended += 1
            point, seed = made[one]
            if isinstance(outcome, InputError | DiskError):
                raise outcome
            if isinstance(outcome, TrainingError):
                log.warning("%s: %s", one.name, outcome)
                outcome = _cell(point, seed, 0.0, failed=str(outcome), died=True)
            if outcome is not None:
                cells[point.key(seed)] = outcome
                if out is not None:
                    Tuning(about, points, numbers, cells, interrupted=ended < len(made)).save(out)
    except (jobs.Interrupted, KeyboardInterrupt):
        interrupted = True
    found = Tuning(about, points, numbers, cells, interrupted)
    if out is not None and cells:
        found.save(out)
    return found


def tune_config(config: Config, grid: Grid, seeds: Sequence[int] | None, progress: Report | None = None) -> Tuning:
    """The same for what a config says; its `out` is the folder for the table."""
    target = (
        Path(config.out) if config.out is not None else run_directory.fresh(run_directory.RUNS, f"tune-{config.method}")
    )
    if not run_directory.is_run(target, SIGNS):
        run_directory.check(target, config.overwrite, SIGNS, WHAT)
    for key in grid:
        if key in config.set:
            raise InputError(f"{key} is in the grid and has a fixed value, too; leave one of them out.")
    method = methods.build(config.method, dict(config.set))
    expand(method, grid, {name: getattr(config, name) for name in OPTIONS})  # mistakes are told before data are read
    apart = {*LOADING, "method", "set", "out", "overwrite"}
    settings = {one.name: getattr(config, one.name) for one in fields(config) if one.name not in apart}
    clients = load_clients(config)
    place: dict[str, Any] = {"out": target, "overwrite": config.overwrite}
    with run_directory.lock(target):
        return tune(method, clients, grid=grid, seeds=seeds, progress=progress, **place, **settings)


# -- what is tuned


def _check_settings(settings: Mapping[str, Any]) -> None:
    known = [name for name in inspect.signature(run).parameters if name not in ("method", "clients", "progress")]
    for name in settings:
        if name not in known:
            raise unknown("setting", name, [*known, "grid", "seeds", "out"])


def _config(method: Method, clients: Clients, settings: Mapping[str, Any]) -> Config:
    """The settings of all points, checked."""
    apart = {"model", "loss", "start"}  # may be Python objects, which no config holds
    named = {name: value for name, value in settings.items() if name not in apart}
    loss = settings.get("loss")
    return Config(
        method=method.name or type(method).__name__,
        data=clients.data_name,
        model=described(settings.get("model", Config.model)),
        loss=f"<{getattr(loss, '__name__', 'function')}>" if callable(loss) else loss,
        **named,
    )


def _seeds(seeds: Sequence[int] | None, default: int) -> list[int]:
    numbers = [default] if seeds is None else list(seeds)
    if not numbers or not all(isinstance(one, int) for one in numbers) or len(set(numbers)) < len(numbers):
        raise InputError(f"seeds must be one or more different whole numbers, got {seeds!r}.")
    return numbers


def _about(config: Config, method: Method, clients: Clients, start: str) -> dict[str, Any]:
    """What all points have in common: figures in a folder are used again only if this is the same."""
    registered = methods.REGISTRY.get(config.method) is type(method)
    return {
        "method": config.method if registered else f"<{type(method).__name__}>",
        "data": clients.data_name,
        "split": clients.split_name,
        "split_hash": clients.hash,
        "clients": list(clients.names),
        "start": start,
        **{name: getattr(config, name) for name in ("model", "head", "loss", "precision", "engine")},
    }


def _nothing(part: ClientIndex) -> ClientIndex:
    return ClientIndex(torch.zeros(0, dtype=torch.int64), torch.zeros(len(part) + 1, dtype=torch.int64))


def _prepared(clients: Clients, config: Config) -> Clients:
    """Once for all points; it is what each of the runs would do."""
    if clients.preparation is not None:
        return clients
    return prepare(clients, **{key: getattr(config, key) for key in ("scale", "missing", "vocabulary", "length")})[0]


# -- training


def _processes(config: Config, clients: Clients, model: Model, num: int) -> int:
    """How many of these trainings to do at the same time: 1, then with all workers, if there are too few for that."""
    if num < 2 or config.state_dir is not None:  # a folder of states is one run's
        return 1
    tokens = None if clients.preparation is None else clients.preparation.tokens
    with rng.torch_seeded(0, "size"):
        module = build(model, clients.shape, clients.classes or 1, tokens)()
    size = len(clients) * sum(parameter.numel() for parameter in module.parameters())
    processes = jobs.at_once(size, config.workers, config.device)
    return processes if processes <= num else 1


def _train(point: Point, clients: Clients, settings: Mapping[str, Any]) -> dict[str, Any]:
    """The figures of one training."""
    began, seed = time.perf_counter(), settings["seed"]
    try:
        result: Result = run(point.method, clients, **{**settings, **point.options})
    except WorkerError:
        raise  # it is not the point that failed: the same command tries it again
    except TrainingError as error:
        return _cell(point, seed, time.perf_counter() - began, failed=str(error))
    if result.interrupted:
        raise jobs.Interrupted
    scores = {name: float(np.nanmean(result.personal[name])) for name in SCORES if name in result.personal}
    return _cell(point, seed, time.perf_counter() - began, **scores)


def _cell(point: Point, seed: int, seconds: float, **found: Any) -> dict[str, Any]:
    made = {"hyper": score_tables.plain(point.method.hyper()), "options": point.options, "seed": seed}
    return {**made, **dict.fromkeys(SCORES), "seconds": seconds, "failed": None, **found}


def _failed(point: Point, seeds: Sequence[int], cells: Cells) -> bool:
    """Whether another seed's training has failed, so that there is no mean to find."""
    return any(cells.get(point.key(seed), {}).get("failed") for seed in seeds)


# -- progress


def _teller(tell: jobs.JobReport) -> Callable[[Progress], None]:
    def report(now: Progress) -> None:
        tell(now.done / now.total, f"{now.phase} {now.done}/{now.total}", now.scores)

    return report


def _step(now: jobs.Step, ended: int) -> Step | None:
    """What a training has told; None if it is not of a round."""
    told = TOLD.fullmatch(now.text)
    if told is None:
        return None
    text, phase, done, total = told.groups()
    rounds = Progress(int(done), int(total), phase, dict(now.scores))
    alone = Step(text, ended + 1, now.total, rounds)
    return replace(alone, beside=now.done - alone.done)
