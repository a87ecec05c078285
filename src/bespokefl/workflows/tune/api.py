"""Choose hyper-parameters on validation data: train every point of a grid on the same clients and compare them.

The clients are trained without their test data, so test data cannot influence the choice. If there are at least as many
trainings as workers, they run side by side in one process each; otherwise one after the other with all workers. Both
give the same figures.
"""

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from bespokefl import methods, trackers
from bespokefl.core.client_index import ClientIndex
from bespokefl.core.errors import DiskError, InputError, TrainingError
from bespokefl.core.method import Method
from bespokefl.core.user_input.plugins import short
from bespokefl.data.clients import Clients
from bespokefl.engines.outcome import Progress
from bespokefl.engines.transports.processes import WorkerError
from bespokefl.metrics.metric import check_metric, choose_metric, metrics_of
from bespokefl.workflows.results import run_directory, score_tables
from bespokefl.workflows.results.models import fingerprint
from bespokefl.workflows.run import initial_weights, jobs
from bespokefl.workflows.run.api import run
from bespokefl.workflows.run.client_loading import hold_back, load_clients
from bespokefl.workflows.run.settings import Mark, RunSettings
from bespokefl.workflows.tune import shared_settings
from bespokefl.workflows.tune.grid import Grid, Point, expand, in_words
from bespokefl.workflows.tune.result import KIND, MARKERS, SCORES, Cells, Tuning, mean_of_known, read_cells

log = logging.getLogger("bespokefl")

OUT_OF_TIME: dict[str, Any] = {"out of time": True}


class _OutOfTime(Exception):  # noqa: N818 (it is not an error)
    """The time for tuning is over."""


def tune(
    method: Method | str,
    clients: Clients,
    *,
    grid: Grid,
    seeds: Sequence[int] | int | None = None,
    metric: str | None = None,
    out: str | PathLike[str] | None = None,
    overwrite: bool = False,
    progress: jobs.OnProgress | None = None,
    **settings: Any,
) -> Tuning:
    """Train every point of a grid and choose the one with the best mean validation score.

    Parameters
    ----------
    clients : Clients
        Clients with validation data. Their test data are not used.
    grid : mapping of str to sequence
        Values to try for hyper-parameters of the method, or for rounds, participation, batch_size, local_epochs and
        local_steps.
    seeds : sequence of int or int, optional
        Scores are means over runs with these seeds; 5 means 0 to 4. Default: the seed of the settings.
    metric : str, optional
        The validation score that decides, such as "balanced_accuracy", "auc" or "rmse". Default: accuracy, or loss
        for regression.
    out : path, optional
        Directory for the table. Points that it already contains are not trained again, unless `overwrite`.
    progress : callable, optional
        Called with a `Step` after every round.
    **settings
        Other keyword arguments of `bespokefl.run`. `workers` are shared by trainings that run at the same time.

    Returns
    -------
    Tuning
        The scores of all points, and the choice: by the mean metric of the clients' personal models. Among equal scores
        the first point wins.

    Raises
    ------
    InputError
        If the grid or a setting is invalid, or if the clients have no validation data.

    Examples
    --------
    >>> tuning = bf.tune("ditto", clients, grid={"prox_weight": (0.1, 1.0), "lr": (0.01, 0.1)}, rounds=5)
    >>> result = bf.run(tuning.method, clients, rounds=5)
    """
    shared_settings.check_names(settings, ("grid", "seeds", "metric", "out"), ("callbacks",), "tuning")
    score = None if metric is None else check_metric(metric)
    chosen = methods.of(method)
    shared_settings.check_clients_type(clients)
    config = shared_settings.config_of(chosen.name or type(chosen).__name__, clients, settings)
    points = expand(chosen, grid, config.select(Mark.TUNABLE))
    trackers.of(config.log)  # report mistakes before training
    table = StoredTable(out, overwrite)
    return train_points(chosen, clients, points, config, settings, seeds, table, progress, metric=score)


@dataclass(frozen=True)
class StoredTable:
    """Where the table of a tuning is stored, and what is known of it."""

    out: str | PathLike[str] | None
    overwrite: bool = False
    known: Cells | None = None  # scores of this tuning; by default those in `out`


def train_points(
    method: Method,
    clients: Clients,
    points: Sequence[Point],
    config: RunSettings,
    settings: dict[str, Any],
    seeds: Sequence[int] | int | None,
    table: StoredTable,
    progress: jobs.OnProgress | None = None,
    *,
    metric: str | None = None,
    deadline: float = inf,
) -> Tuning:
    """Train those of the points that have no scores yet; the other arguments are those of `tune`.

    `config` has the same settings as `settings`, checked. After `deadline`, a time of `time.monotonic`, no round is
    trained, and the tuning that is returned is `out_of_time`.
    """
    numbers = shared_settings.check_seeds([config.seed] if seeds is None else seeds)
    clients, _ = hold_back(clients, config.newcomers, config.seed)
    if not int(clients.validation.sizes.sum()):
        raise InputError("tuning needs validation data to choose by, but the clients have none.")
    choose_metric(metric, metrics_of(clients.classes))
    start = settings.get("start")
    weights = None if start is None else initial_weights.read(start)
    about = _identity(config, method, clients, "" if weights is None else fingerprint(weights))
    cells = table.known
    if cells is None:
        cells = {} if table.out is None else read_cells(Path(table.out), about, table.overwrite, metric)
    untested = replace(clients, test=ClientIndex.of_lists([np.zeros(0)] * len(clients)))
    clients = shared_settings.prepared(untested, config)
    fixed = {"start": weights, "newcomers": 0.0, "keep_rounds": False, "eval_every": 0}
    tuning = Tuning(about, points, numbers, cells, False, metric)
    return _train_missing(tuning, clients, config, settings | fixed, table.out, progress, deadline)


def tune_config(
    config: RunSettings,
    grid: Grid,
    seeds: Sequence[int] | None,
    progress: jobs.OnProgress | None = None,
    metric: str | None = None,
) -> Tuning:
    """Tune the method of a config and write the table to its output directory."""
    target = shared_settings.output_directory(config, f"tune-{short(config.method)}")
    if not run_directory.is_run(target, MARKERS):
        run_directory.check(target, config.overwrite, MARKERS, KIND)
    for key in grid:
        if key in config.set:
            raise InputError(f"{key} has both a fixed value and values in the grid; leave one of them out.")
    method = methods.build(config.method, dict(config.set))
    expand(method, grid, config.select(Mark.TUNABLE))  # report mistakes before loading data
    clients = load_clients(config)
    settings = shared_settings.settings_of(config) | {"out": target, "overwrite": config.overwrite}
    with run_directory.lock(target):
        return tune(method, clients, grid=grid, seeds=seeds, metric=metric, progress=progress, **settings)


def _identity(config: RunSettings, method: Method, clients: Clients, start: str) -> dict[str, Any]:
    """Return what all points have in common; stored scores are used again only if this is unchanged."""
    return {
        "method": methods.name_of(method) or f"<{type(method).__name__}>",
        "data": clients.data_name,
        "split": clients.split_name,
        "split_hash": clients.hash,
        "clients": list(clients.names),
        "start": start,
        **{name: getattr(config, name) for name in ("model", "head", "loss", "precision", "engine")},
    }


def _train_missing(
    tuning: Tuning,
    clients: Clients,
    config: RunSettings,
    settings: Mapping[str, Any],
    out: str | PathLike[str] | None,
    progress: jobs.OnProgress | None,
    deadline: float,
) -> Tuning:
    """Train what has no scores yet, and write the table after every training."""
    cells, seeds = tuning.cells, tuning.seeds
    todo = [(point, seed) for point in tuning.points for seed in seeds if point.key(seed) not in cells]
    processes = shared_settings.num_processes(clients, settings.get("model", RunSettings.model), config)
    if len(todo) < max(2, processes) or config.state_dir is not None:  # a state directory serves one run at a time
        processes = 1
    settings = {**settings, "workers": 1 if processes > 1 else config.workers}

    def job(point: Point, seed: int) -> jobs.Job:
        def work(report: jobs.OnProgress) -> dict[str, Any] | None:
            if any(cells.get(point.key(other), {}).get("failed") for other in seeds):
                return None  # with another seed the point has failed since, so there is no mean to compute
            shown = jobs.report_rounds(report)

            def watched(now: Progress) -> None:
                shown(now)
                if time.monotonic() > deadline:
                    raise _OutOfTime

            if time.monotonic() > deadline:
                return OUT_OF_TIME
            try:
                return _train(point, clients, settings | {"seed": seed, "progress": watched})
            except _OutOfTime:
                return OUT_OF_TIME

        return jobs.Job(in_words(point.values) + (f", seed {seed}" if len(seeds) > 1 else ""), work)

    rounds_only = None if progress is None else lambda step: progress(step) if step.rounds is not None else None
    ended, interrupted, late = 0, False, False
    made = {job(point, seed): (point, seed) for point, seed in todo}
    try:
        for one, outcome in jobs.run_jobs(list(made), processes, rounds_only):
            ended += 1
            point, seed = made[one]
            if isinstance(outcome, InputError | DiskError):
                raise outcome
            if outcome == OUT_OF_TIME:
                late = True
                continue
            if isinstance(outcome, TrainingError):
                log.warning("%s: %s", one.name, outcome)
                outcome = _cell(point, seed, 0.0, failed=str(outcome), died=True)
            if outcome is not None:
                cells[point.key(seed)] = outcome
                if out is not None:
                    tuning.updated(interrupted=ended < len(made)).save(out)
    except (jobs.Interrupted, KeyboardInterrupt):
        interrupted = True
    found = tuning.updated(interrupted)
    found.out_of_time = late
    if out is not None and cells:
        found.save(out)
    return found


def _train(point: Point, clients: Clients, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Train one point with one seed and return its scores."""
    started, seed = time.perf_counter(), settings["seed"]
    try:
        result = run(point.method, clients, **{**settings, **point.options})
    except WorkerError:
        raise  # the point itself has not failed: the next call trains it again
    except TrainingError as error:
        return _cell(point, seed, time.perf_counter() - started, failed=str(error))
    if result.interrupted:
        raise jobs.Interrupted
    validated = [name for name in result.personal if name.startswith("validation_")]
    scores = {name: mean_of_known(result.personal[name]) for name in validated}
    constant: dict[str, Any] | None = None
    if result.constant is not None:
        constant = {"name": score_tables.constant_title(result.constant)}
        constant |= {name: mean_of_known(result.constant[name]) for name in validated if name in result.constant}
    return _cell(point, seed, time.perf_counter() - started, constant=constant, **scores)


def _cell(point: Point, seed: int, seconds: float, **values: Any) -> dict[str, Any]:
    trained = {"hyper": score_tables.plain(point.method.hyper()), "options": point.options, "seed": seed}
    return {**trained, **dict.fromkeys(SCORES), "seconds": seconds, "failed": None, **values}
