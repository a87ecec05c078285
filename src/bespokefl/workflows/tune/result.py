"""A grid of hyper-parameters, and what its points are worth on validation data.

What is on disk, in a folder of its own:

tuning.json   what was compared, every figure, and the choice; points that are in it are not trained again
grid.csv      one line per point
"""

import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from itertools import product
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from bespokefl import methods
from bespokefl.core.errors import InputError, TrainingError, count, unknown
from bespokefl.core.files import unwritten
from bespokefl.core.method import Method
from bespokefl.workflows.results import run_directory, score_tables
from bespokefl.workflows.run.settings import Mark, RunSettings

OPTIONS = RunSettings.marked(Mark.TUNABLE)  # settings of a run that may be part of a grid
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
        return score_tables.dumps({"hyper": self.method.hyper(), "options": self.options, "seed": seed})


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
        """The chosen point as `bespoke run` takes it: "--set prox_weight=1.0 --batch-size 32"."""
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
        points, seeds = count(len(self.table), "point"), count(len(self.seeds), "seed")
        lines = [f"{self.about['method']}: {done} of {points}, {seeds}"]
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
            raise unwritten(path, error) from None
        about = {
            "about": self.about,
            "seeds": self.seeds,
            "by": self.by,
            "chosen": None if self.chosen is None else self.best,
            "points": self.table,
            "cells": self.cells,
        }
        run_directory.write_text(self.path / FILE, score_tables.dumps(about, indent=1) + "\n")
        run_directory.write_text(self.path / TABLE, score_tables.csv_text(self.table))
        return self.path


def expand(method: Method, grid: Grid, options: Mapping[str, Any]) -> list[Point]:
    """All points of a grid, the last key changing fastest; refuses what the method or a run does not take."""
    if not isinstance(grid, Mapping) or not grid:
        raise InputError('a grid needs at least one key and its values, such as "prox_weight=0.1,1,2", got none.')
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
        config = RunSettings(**{"method": name, **options, **chosen})
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


def command(config: RunSettings, tuning: Tuning) -> str:
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


def earlier(path: Path, about: Mapping[str, Any], overwrite: bool) -> Cells:
    """The figures that a folder holds of the same tuning; refuses a folder that holds anything else."""
    if overwrite or not run_directory.is_run(path, SIGNS):
        run_directory.check(path, overwrite, SIGNS, WHAT)
        return {}
    try:
        held = json.loads((path / FILE).read_text(encoding="utf-8"))
        before, cells = held["about"], {key: cell for key, cell in held["cells"].items() if not cell.get("died")}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(f"the tuning in {str(path)!r} is damaged: {error!r}; use --overwrite to replace it.") from None
    now = score_tables.plain(dict(about))
    different = [name for name in now if before.get(name) != now[name]]
    python = [name for name in ("method", "model", "loss") if str(now[name]).startswith("<")]
    if different or python:
        reason = f"another {different[0]}" if different else f"a {python[0]} made in Python, which may have changed"
        raise InputError(
            f"{str(path)!r} holds a tuning with {reason}; use --overwrite to replace it, or another folder."
        )
    return cells
