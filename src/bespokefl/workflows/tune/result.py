"""The result of a tuning, in memory and on disk.

tuning.json   what was tuned, all scores and the choice; a resumed tuning does not train the points in it again
grid.csv      one line per point
"""

import json
from collections.abc import Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from bespokefl.core.errors import InputError, TrainingError, count
from bespokefl.core.method import Method
from bespokefl.metrics.metric import metric_of
from bespokefl.workflows.results import run_directory, score_tables
from bespokefl.workflows.run.settings import RunSettings
from bespokefl.workflows.tune.grid import Point, in_words
from bespokefl.workflows.tune.shared_settings import flag, flags, set_flag

FILE, TABLE = "tuning.json", "grid.csv"
MARKERS, KIND = (FILE,), "a tuning"
DIGITS = 12  # scores are compared after rounding, so that the last bits of a mean do not break a tie
SCORES = ("validation_accuracy", "validation_loss")

Cells = dict[str, dict[str, Any]]  # scores by `Point.key`


class Tuning:
    """The points of a grid with their validation scores. `print(tuning)` shows them.

    `table` has one dict per point, as in grid.csv: its values, mean scores over the seeds, seconds, and why it failed.
    If the tuning was `interrupted`, nothing is chosen. `path` is the directory that it was saved to.
    """

    def __init__(
        self,
        about: Mapping[str, Any],
        points: Sequence[Point],
        seeds: Sequence[int],
        cells: Cells,
        interrupted: bool,
        metric: str | None = None,
    ) -> None:
        self.about = dict(about)  # what all points have in common: method, data, split, model and start
        self.points = tuple(points)
        self.seeds = tuple(seeds)
        self.cells = cells
        self.interrupted = interrupted
        self.out_of_time = False
        self.metric = metric  # that decides; None: accuracy, or loss for regression
        self.scores = shown_scores(metric)  # in the table
        self.path: Path | None = None
        self.table = [self._line(point) for point in points]

    @property
    def constant(self) -> dict[str, Any] | None:
        """Name and validation scores of the constant predictor, majority class or mean value; None if unknown."""
        return next((cell["constant"] for cell in self.cells.values() if cell.get("constant")), None)

    def updated(self, interrupted: bool) -> "Tuning":
        """Return the tuning with the scores that `cells` has now."""
        return Tuning(self.about, self.points, self.seeds, self.cells, interrupted, self.metric)

    def _line(self, point: Point) -> dict[str, Any]:
        """Return the mean scores of a point; None for a point that failed or lacks a seed."""
        own = [self.cells.get(point.key(seed)) for seed in self.seeds]
        done = [cell for cell in own if cell is not None]
        failed = next((cell["failed"] for cell in done if cell["failed"]), None)
        line: dict[str, Any] = dict(point.values)
        for name in self.scores:
            known = [cell[name] for cell in done if cell.get(name) is not None]
            complete = len(known) == len(own) and not failed
            line[name] = float(np.mean(known)) if complete else None
            if len(self.seeds) > 1:
                line[f"{name}_std"] = float(np.std(known, ddof=1)) if complete else None
        line["seconds"] = sum(cell["seconds"] for cell in done)
        line["failed"] = failed
        return line

    @property
    def by(self) -> str:
        """The score that decides: of `metric`, else "validation_accuracy", or "validation_loss" for regression."""
        if self.metric is not None:
            return f"validation_{self.metric}"
        found = any(line["validation_accuracy"] is not None for line in self.table)
        return "validation_accuracy" if found else "validation_loss"

    @property
    def chosen(self) -> int | None:
        """Index of the best point, the first of equals; None if it is unfinished or no point could be trained."""
        values = [line[self.by] for line in self.table]
        known = [at for at, value in enumerate(values) if value is not None]
        if self.interrupted or not known:
            return None
        return self.ranked(known)[0]

    def ranked(self, known: Sequence[int]) -> list[int]:
        """Sort indices of points that have scores, the best first; the first of equals stays first."""
        sign = 1 if metric_of(self.by).higher_is_better else -1
        return sorted(known, key=lambda at: (-round(sign * self.table[at][self.by], DIGITS), at))

    @property
    def best(self) -> dict[str, Any]:
        """Values of the chosen point."""
        return dict(self._best().values)

    @property
    def method(self) -> Method:
        """The method with the chosen hyper-parameters: `run(tuning.method, clients, **tuning.options)`."""
        return self._best().method

    @property
    def options(self) -> dict[str, Any]:
        """The chosen settings of the run, such as batch_size, if the grid has any."""
        return {name: value for name, value in self.best.items() if name not in self.method.hyper()}

    @property
    def flags(self) -> str:
        """The chosen point as flags of `bespoke run`: "--set prox_weight=1.0 --batch-size 32"."""
        hyper = self.method.hyper()
        return " ".join((set_flag if name in hyper else flag)(name, value) for name, value in self.best.items())

    def _best(self) -> Point:
        if self.chosen is not None:
            return self.points[self.chosen]
        if self.interrupted:
            raise InputError("the tuning was interrupted and has chosen nothing yet; call it again with the same out.")
        nothing = f"no client has a {self.by.replace('_', ' ', 1)}."
        failed = next((line["failed"] for line in self.table if line["failed"]), nothing)
        raise TrainingError(f"none of the {len(self.points)} points could be trained; the first error: {failed}")

    def __repr__(self) -> str:
        done = sum(line[self.by] is not None or line["failed"] is not None for line in self.table)
        points, seeds = count(len(self.table), "point"), count(len(self.seeds), "seed")
        lines = [f"{self.about['method']}: {done} of {points}, {seeds}"]
        for at, line in enumerate(self.table):
            value = "failed" if line["failed"] else "not trained" if line[self.by] is None else f"{line[self.by]:.4f}"
            mark = "  <- chosen" if at == self.chosen else ""
            lines.append(f"  {in_words(self.points[at].values)}: {self.by.replace('_', ' ')} {value}{mark}")
        return "\n".join(lines)

    def save(self, path: str | PathLike[str]) -> Path:
        """Write tuning.json and grid.csv to a directory and return it."""
        self.path = Path(path)
        content = {
            "about": self.about,
            "seeds": self.seeds,
            "by": self.by,
            "chosen": None if self.chosen is None else self.best,
            "points": self.table,
            "cells": self.cells,
        }
        run_directory.write_text(self.path / FILE, score_tables.dumps(content, indent=1) + "\n")
        run_directory.write_text(self.path / TABLE, score_tables.csv_text(self.table))
        return self.path


def run_command(config: RunSettings, tuning: Tuning) -> str:
    """Return the command that runs the tuned config with the chosen values."""
    fixed = [set_flag(name, value) for name, value in config.set.items()]
    return " ".join(["bespoke", "run", config.method, *flags(config, tuning.options), *fixed, tuning.flags])


def shown_scores(metric: str | None) -> tuple[str, ...]:
    """Return the scores in the table: that of the metric that decides, accuracy and loss."""
    return SCORES if metric is None else tuple(dict.fromkeys((f"validation_{metric}", *SCORES)))


def mean_of_known(values: np.ndarray) -> float | None:
    """Return the mean over the clients that have a value; None if none has."""
    return None if np.isnan(values).all() else float(np.nanmean(values))


def read_cells(path: Path, about: Mapping[str, Any], overwrite: bool, metric: str | None = None) -> Cells:
    """Return the stored scores of the same tuning; reject a directory with anything else.

    Points that an earlier version stored without the metric that decides are trained again.
    """
    if overwrite or not run_directory.is_run(path, MARKERS):
        run_directory.check(path, overwrite, MARKERS, KIND)
        return {}
    try:
        stored = json.loads((path / FILE).read_text(encoding="utf-8"))
        before, cells = stored["about"], {key: cell for key, cell in stored["cells"].items() if not cell.get("died")}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(f"the tuning in {str(path)!r} is damaged: {error!r}; use --overwrite to replace it.") from None
    now = score_tables.plain(dict(about))
    different = [name for name in now if before.get(name) != now[name]]
    python = [name for name in ("method", "model", "loss") if str(now[name]).startswith("<")]
    if different or python:
        reason = f"another {different[0]}" if different else f"a {python[0]} made in Python, which may have changed"
        raise InputError(
            f"{str(path)!r} holds a tuning with {reason}; use --overwrite to replace it, or another directory."
        )
    needed = SCORES[-1] if metric is None else f"validation_{metric}"
    return {key: cell for key, cell in cells.items() if cell["failed"] or needed in cell}
