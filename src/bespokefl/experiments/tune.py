"""Hyper-parameters chosen on validation data: every point of a grid is trained on the same clients and compared.

Test data can choose nothing, as the clients are trained without theirs. What is on disk, in a folder of its own:

tuning.json   what was compared, every figure, and the choice; points that are in it are not trained again
grid.csv      one line per point
"""

import inspect
import json
import shlex
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from itertools import product
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import torch

from bespokefl import methods
from bespokefl.core.errors import InputError, TrainingError, unknown
from bespokefl.core.method import Method
from bespokefl.core.parts import Part
from bespokefl.data.clients import Clients
from bespokefl.engines import simulation
from bespokefl.experiments import folder, tables
from bespokefl.experiments import start as starts
from bespokefl.experiments.config import LOADING, Config
from bespokefl.experiments.result import Result
from bespokefl.experiments.run import RUNS, find_method, hold_back, load_clients, run
from bespokefl.experiments.weights import described, fingerprint

OPTIONS = ("rounds", "participation", "batch_size", "local_epochs", "local_steps")  # of a run, that a grid may have
FILE, TABLE = "tuning.json", "grid.csv"
SIGNS, WHAT = (FILE,), "a tuning"
DIGITS = 12  # a mean's last bits must not break a tie
SCORES = ("validation_accuracy", "validation_loss")

Grid = Mapping[str, Sequence[Any]]
Cells = dict[str, dict[str, Any]]  # by what was trained: its figures


@dataclass(frozen=True)
class Point:
    """One point of the grid, and what it means."""

    values: dict[str, Any]
    method: Method
    options: dict[str, Any]  # those of OPTIONS, as they are for this point

    def key(self, seed: int) -> str:
        """All that makes its figures, beside what is common to all points."""
        return tables.dumps({"hyper": self.method.hyper(), "options": self.options, "seed": seed})


@dataclass(frozen=True)
class Step:
    """What a progress display is told after every round."""

    text: str  # the point
    number: int  # of the training in hand, from 1
    total: int  # trainings
    rounds: simulation.Progress


Report = Callable[[Step], None]


class Tuning:
    """A grid and what its points are worth on validation data."""

    def __init__(
        self, about: Mapping[str, Any], points: Sequence[Point], seeds: Sequence[int], cells: Cells, interrupted: bool
    ) -> None:
        self.about = dict(about)  # what all points have in common
        self.points = tuple(points)
        self.seeds = tuple(seeds)
        self.cells = cells
        self.interrupted = interrupted
        self.path: Path | None = None  # where it was saved
        self.table = [self._line(point) for point in points]  # one dict per point, as in grid.csv

    def _line(self, point: Point) -> dict[str, Any]:
        """Means over the seeds; empty for a point that failed, or has not been trained with all seeds yet."""
        own = [self.cells.get(point.key(seed)) for seed in self.seeds]
        done = [cell for cell in own if cell is not None]
        failed = next((cell["failed"] for cell in done if cell["failed"]), None)
        whole = len(done) == len(own) and not failed
        line: dict[str, Any] = dict(point.values)
        for name in SCORES:
            known = [cell[name] for cell in done if cell.get(name) is not None]
            full = whole and len(known) == len(own)
            line[name] = float(np.mean(known)) if full else None
            if len(self.seeds) > 1:
                line[f"{name}_std"] = float(np.std(known, ddof=1)) if full else None
        line["seconds"] = sum(cell["seconds"] for cell in done)
        line["failed"] = failed
        return line

    @property
    def by(self) -> str:
        """What decides: accuracy, or the loss where there is no accuracy."""
        found = any(line["validation_accuracy"] is not None for line in self.table)
        return "validation_accuracy" if found else "validation_loss"

    @property
    def chosen(self) -> int | None:
        """The position of the best point, the first of equals; None if none could be trained, or it is unfinished."""
        values = [line[self.by] for line in self.table]
        known = [at for at, value in enumerate(values) if value is not None]
        if self.interrupted or not known:
            return None
        sign = 1 if self.by == "validation_accuracy" else -1
        return max(known, key=lambda at: (round(sign * values[at], DIGITS), -at))

    @property
    def best(self) -> dict[str, Any]:
        """The chosen point."""
        return dict(self._best().values)

    @property
    def method(self) -> Method:
        """The method with the chosen hyper-parameters: `run(tuning.method, clients, **tuning.options)`."""
        return self._best().method

    @property
    def options(self) -> dict[str, Any]:
        """The options of a run that the grid had, as they were chosen."""
        return {name: value for name, value in self.best.items() if name not in self.method.hyper()}

    @property
    def flags(self) -> str:
        """The chosen point as `bespoke run` takes it: "--set pull=1.0 --batch-size 32"."""
        hyper = self.method.hyper()
        return " ".join(_flag(name, value, name in hyper) for name, value in self.best.items())

    def _best(self) -> Point:
        at = self.chosen
        if at is not None:
            return self.points[at]
        if self.interrupted:
            raise InputError("the tuning was interrupted and has chosen nothing yet; call it again with the same out.")
        failed = next((line["failed"] for line in self.table if line["failed"]), "there are no validation data.")
        raise TrainingError(f"none of the {len(self.points)} points could be trained; the first said: {failed}")

    def __repr__(self) -> str:
        done = sum(line[self.by] is not None or line["failed"] is not None for line in self.table)
        lines = [f"{self.about['method']}: {done} of {len(self.table)} points, {len(self.seeds)} seeds"]
        for at, line in enumerate(self.table):
            value = "failed" if line["failed"] else "not trained" if line[self.by] is None else f"{line[self.by]:.4f}"
            mark = "  <- chosen" if at == self.chosen else ""
            lines.append(f"  {worded(self.points[at].values)}: {self.by.replace('_', ' ')} {value}{mark}")
        return "\n".join(lines)

    def save(self, path: str | PathLike[str]) -> Path:
        """Write both files, each whole or not at all."""
        self.path = Path(path)
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(f"cannot write to {str(path)!r}: {error.strerror or error}.") from None
        about = {
            "about": self.about,
            "seeds": self.seeds,
            "by": self.by,
            "chosen": None if self.chosen is None else self.best,
            "points": self.table,
            "cells": self.cells,
        }
        folder.write_text(self.path / FILE, tables.dumps(about, indent=1) + "\n")
        folder.write_text(self.path / TABLE, tables.csv_text(self.table))
        return self.path


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
              values to try, {"pull": (0.1, 1), "lr": (0.01, 0.1)}; regression is chosen by loss, ties keep the first
    seeds     the figures are means over runs with these seeds
    out       a folder for the table; what is in it already is not trained again
    settings  all else that `run` takes
    """
    _check_settings(settings)
    chosen = find_method(method)
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
    cells = {} if out is None else _earlier(Path(out), about, overwrite)
    settings = settings | {"start": start, "newcomers": 0.0, "keep_rounds": False, "eval_every": 0}
    clients = replace(clients, test=_nothing(clients.test))  # so that it can choose nothing
    todo = [(point, seed) for point in points for seed in numbers if point.key(seed) not in cells]
    interrupted = False
    try:
        for number, (point, seed) in enumerate(todo, start=1):
            if _failed(point, numbers, cells):
                continue
            text = worded(point.values) + (f", seed {seed}" if len(numbers) > 1 else "")
            told = None if progress is None else _teller(progress, text, number, len(todo))
            cell = _train(point, clients, settings | {"seed": seed, "progress": told})
            if cell is None:
                interrupted = True
                break
            cells[point.key(seed)] = cell
            if out is not None:
                Tuning(about, points, numbers, cells, interrupted=number < len(todo)).save(out)
    except KeyboardInterrupt:
        interrupted = True
    found = Tuning(about, points, numbers, cells, interrupted)
    if out is not None and cells:
        found.save(out)
    return found


def tune_config(config: Config, grid: Grid, seeds: Sequence[int] | None, progress: Report | None = None) -> Tuning:
    """The same for what a config says; its `out` is the folder for the table."""
    target = Path(config.out) if config.out is not None else folder.fresh(RUNS, f"tune-{config.method}")
    if not folder.is_run(target, SIGNS):
        folder.check(target, config.overwrite, SIGNS, WHAT)
    for key in grid:
        if key in config.set:
            raise InputError(f"{key} is in the grid and has a fixed value, too; leave one of them out.")
    method = methods.build(config.method, dict(config.set))
    expand(method, grid, {name: getattr(config, name) for name in OPTIONS})  # mistakes are told before data are read
    apart = {*LOADING, "method", "set", "out", "overwrite"}
    settings = {one.name: getattr(config, one.name) for one in fields(config) if one.name not in apart}
    clients = load_clients(config)
    place: dict[str, Any] = {"out": target, "overwrite": config.overwrite}
    return tune(method, clients, grid=grid, seeds=seeds, progress=progress, **place, **settings)


def expand(method: Method, grid: Grid, options: Mapping[str, Any]) -> list[Point]:
    """All points of a grid, the last key changing fastest; refuses what the method or a run does not take."""
    if not isinstance(grid, Mapping) or not grid:
        raise InputError('a grid needs at least one key and its values, such as "pull=0.1,1,2", got none.')
    hyper, name = method.hyper(), method.name or type(method).__name__
    tried = {key: _values(values) for key, values in grid.items()}
    for key, values in tried.items():
        if key not in hyper and key not in OPTIONS:
            raise unknown(f"grid key for {name}", key, [*hyper, *OPTIONS], see=f"bespoke methods {name}")
        if not values:
            raise InputError(f"the grid's {key} must be one or more values to try, got {grid[key]!r}.")
    if "local_epochs" in grid and ("local_steps" in grid or options["local_steps"] is not None):
        raise InputError("local_epochs has no effect beside local_steps; leave one of them out.")
    points = []
    for combination in product(*tried.values()):
        given = dict(zip(tried, combination, strict=True))
        built = _with(method, {key: value for key, value in given.items() if key in hyper})
        chosen = {key: value for key, value in given.items() if key not in hyper}
        config = Config(**{"method": name, **options, **chosen})
        fitted = {key: getattr(built, key) if key in hyper else getattr(config, key) for key in grid}
        points.append(Point(fitted, built, {key: getattr(config, key) for key in options}))
    seen: dict[str, Point] = {}
    for point in points:
        if point.key(0) in seen:
            raise InputError(f"the grid has {worded(point.values)} twice; leave one of them out.")
        seen[point.key(0)] = point
    return points


def _values(values: Any) -> list[Any]:
    """The values of a key, lists among them as tuples; none if it is no list of values."""
    listed = values.tolist() if isinstance(values, np.ndarray) else values
    if isinstance(listed, str) or not isinstance(listed, Sequence):
        return []
    return [
        tuple(one) if isinstance(one, list) else one.item() if isinstance(one, np.generic) else one for one in listed
    ]


def worded(point: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={value}" for name, value in point.items())


def command(config: Config, tuning: Tuning) -> str:
    """The command that runs what was tuned with what was chosen."""
    words = ["bespoke", "run", config.method]
    apart = {"method", "set", "out", "overwrite", *tuning.options}
    for one in fields(config):
        value = getattr(config, one.name)
        if one.name not in apart and value != one.default:
            words.append(_flag(one.name, value, False))
    words += [_flag(name, value, True) for name, value in config.set.items()]
    return " ".join([*words, tuning.flags])


def _flag(name: str, value: Any, hyper: bool) -> str:
    text = str(value).lower() if isinstance(value, bool) else str(value)
    if hyper:
        return f"--set {shlex.quote(f'{name}={text}')}"
    flag = f"--{name.replace('_', '-')}"
    return flag if value is True else f"{flag} {shlex.quote(text)}"


def _with(method: Method, hyper: Mapping[str, Any]) -> Method:
    """The method with some of its hyper-parameters replaced."""
    if methods.REGISTRY.get(method.name) is type(method):
        return methods.build(method.name, {k: v for k, v in method.hyper().items() if v is not None} | dict(hyper))
    return replace(method, **hyper)


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


def _earlier(path: Path, about: Mapping[str, Any], overwrite: bool) -> Cells:
    """The figures that a folder holds of the same tuning; refuses a folder that holds anything else."""
    if overwrite or not folder.is_run(path, SIGNS):
        folder.check(path, overwrite, SIGNS, WHAT)
        return {}
    try:
        held = json.loads((path / FILE).read_text(encoding="utf-8"))
        before, cells = held["about"], dict(held["cells"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"the tuning in {str(path)!r} is damaged: {error!r}; use --overwrite to replace it.") from None
    now = tables.plain(dict(about))
    different = [name for name in now if before.get(name) != now[name]]
    python = [name for name in ("method", "model", "loss") if str(now[name]).startswith("<")]
    if different or python:
        reason = f"another {different[0]}" if different else f"a {python[0]} made in Python, which may have changed"
        raise InputError(
            f"{str(path)!r} holds a tuning with {reason}; use --overwrite to replace it, or another folder."
        )
    return cells


def _train(point: Point, clients: Clients, settings: Mapping[str, Any]) -> dict[str, Any] | None:
    """The figures of one training; None if it was interrupted."""
    began = time.perf_counter()
    scores: dict[str, float | None] = dict.fromkeys(SCORES)
    failed = None
    try:
        result: Result = run(point.method, clients, **{**settings, **point.options})
        if result.interrupted:
            return None
        scores = {name: float(np.nanmean(result.personal[name])) for name in SCORES if name in result.personal}
    except TrainingError as error:
        failed = str(error)
    options = {"hyper": tables.plain(point.method.hyper()), "options": point.options, "seed": settings["seed"]}
    return {**options, **scores, "seconds": time.perf_counter() - began, "failed": failed}


def _failed(point: Point, seeds: Sequence[int], cells: Cells) -> bool:
    """Whether another seed's training has failed, so that there is no mean to find."""
    return any(cells.get(point.key(seed), {}).get("failed") for seed in seeds)


def _teller(progress: Report, text: str, number: int, total: int) -> simulation.Report:
    return lambda rounds: progress(Step(text, number, total, rounds))


def _nothing(part: Part) -> Part:
    return Part(torch.zeros(0, dtype=torch.int64), torch.zeros(len(part) + 1, dtype=torch.int64))
