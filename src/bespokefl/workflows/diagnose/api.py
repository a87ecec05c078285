"""Predict whether federating helps each client, with whom, and by which method, from a few local steps and trials.

1. Survey: every client computes its gradient at the initial weights and its noise, as in User-Centric FL.
2. Fits: every client trains for a few steps from the same initial weights, once on each half of its training data.
3. Sums: every client counts its labels and averages its inputs by class.
4. Trials: short trainings with a few methods and alone, judged on held-out training and validation data.

User-Centric FL compares clients by their gradients at the initial weights. Fits of a few dozen steps separate them much
better (docs/diagnose.md has figures): they move to where the clients' problems differ. So groups, W and both variances
come from the fits, and the survey tells whether User-Centric FL's own first round would find the same groups. What
federating gives in accuracy comes from the trials. Test data are never used.
"""

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from importlib.metadata import version
from itertools import count
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from bespokefl.core import rng
from bespokefl.core.client_index import ClientIndex
from bespokefl.core.errors import InputError, unknown
from bespokefl.core.method import State
from bespokefl.core.rows import Rows
from bespokefl.core.task import Task
from bespokefl.data.clients import Clients
from bespokefl.data.preprocessing.fit import prepare
from bespokefl.engines.client import Data
from bespokefl.engines.outcome import OnProgress, Progress
from bespokefl.engines.settings import Settings
from bespokefl.engines.simulation import Simulation
from bespokefl.methods import UCFL, Local
from bespokefl.methods.ucfl import choose_streams, collaboration
from bespokefl.metrics.metric import check_metric, choose_metric, metrics_of
from bespokefl.theory.two_level import bayes_gain, gain
from bespokefl.workflows.diagnose import heterogeneity, recommendation, similarity, trials
from bespokefl.workflows.diagnose.result import FILE, KIND, MARKERS, Client, Diagnosis, Survey
from bespokefl.workflows.results import run_directory
from bespokefl.workflows.results.models import PRECISIONS
from bespokefl.workflows.results.summary import origin_of
from bespokefl.workflows.run import initial_weights
from bespokefl.workflows.run.client_loading import load_clients
from bespokefl.workflows.run.convert import check_clients, engine_data, find_device, select
from bespokefl.workflows.run.settings import LOADING, Mark, RunSettings
from bespokefl.workflows.run.task_builder import TaskSpec
from bespokefl.workflows.tune import shared_settings

STEPS, LR = 50, 0.1  # of each fit
BATCH_SIZE = 50
COMPUTING = ("workers", "chunk", "device", "precision")
SETTINGS = ("model", "seed", "start", "head", "loss", *RunSettings.marked(Mark.PREPARATION), *COMPUTING)
NUM_NEAREST = 3  # peers listed per client
MAX_SURVEYED = 300  # clients; every number of streams up to theirs is tried


def diagnose(
    clients: Clients,
    *,
    steps: int = STEPS,
    lr: float = LR,
    trial_rounds: int = trials.ROUNDS,
    metric: str | None = None,
    out: str | PathLike[str] | None = None,
    overwrite: bool = False,
    progress: OnProgress | None = None,
    **settings: Any,
) -> Diagnosis:
    """Predict what each client gains by federating, which clients are similar, and which method fits.

    Parameters
    ----------
    clients : Clients
        At least two clients. Their test data are not used.
    steps : int
        Local steps of each fit. Every client makes two fits, each on half of its training data.
    lr : float
        Learning rate of the fits.
    trial_rounds : int
        Rounds of the trials, which compare federated methods with Local on held-out training and validation data; 0:
        no trials. They take most of the time.
    metric : str, optional
        The metric that judges the trials. Default: accuracy, or loss for regression.
    out : path, optional
        Directory for diagnosis.json; `overwrite` replaces a diagnosis there.
    progress : callable, optional
        Called after each step.
    **settings
        The keyword arguments model, seed, start, head, loss, scale, missing, vocabulary, length, workers, chunk, device
        and precision of `bespokefl.run`.

    Raises
    ------
    InputError
        If a setting is invalid or there are fewer than two clients.

    Examples
    --------
    >>> found = bf.diagnose(clients, seed=3)
    >>> print(*found.sentences(), found.recommendation.flags, sep="\\n")
    """
    shared_settings.check_clients_type(clients)
    for name in settings:
        if name not in SETTINGS:
            own = ("steps", "lr", "trial_rounds", "metric", "out", "overwrite", "progress")
            raise unknown("setting", name, [*SETTINGS, *own])
    _check(steps, lr, trial_rounds)
    score = choose_metric(None if metric is None else check_metric(metric), metrics_of(clients.classes))
    if out is not None:
        run_directory.check(Path(out), overwrite, MARKERS, KIND)
    config = shared_settings.config_of("diagnose", clients, settings)
    check_clients(clients)
    if len(clients) < 2:
        raise InputError("a diagnosis needs at least 2 clients, got 1: a single client has no peers to federate with.")
    started = time.perf_counter()
    order = sorted(range(len(clients)), key=lambda i: clients.names[i])
    canonical = select(clients, order)  # the order in which clients are listed has no influence
    plan = _Plan(steps, lr, trial_rounds, score)
    found, about = _diagnose(canonical, config, settings, plan, progress or (lambda now: None))
    about |= {
        "seconds": round(time.perf_counter() - started, 3),
        "versions": {name: version(name) for name in ("bespokefl", "torch", "numpy")},
    }
    found = replace(found, about=about).in_order(np.argsort(order))
    if out is not None:
        found.save(out, overwrite)
    return found


def diagnose_config(config: RunSettings, *, progress: OnProgress | None = None, **plan: Any) -> tuple[Diagnosis, Path]:
    """Diagnose the clients of a config and write the result to its output directory.

    `plan` are the arguments steps, lr, trial_rounds and metric of `diagnose`.
    """
    target = shared_settings.output_directory(config, "diagnose")
    run_directory.check(target, config.overwrite, MARKERS, KIND)
    settings = {name: getattr(config, name) for name in SETTINGS}
    found = diagnose(load_clients(config), progress=progress, **plan, **settings)
    found.about["config"] = {
        one.name: getattr(config, one.name)
        for one in fields(config)
        if one.name in (*LOADING, *SETTINGS)
        and one.name not in COMPUTING
        and getattr(config, one.name) not in (None, one.default)
    }
    found.save(target, config.overwrite)
    return found, target / FILE


@dataclass(frozen=True)
class _Plan:
    """How to diagnose: the arguments of `diagnose`."""

    steps: int
    lr: float
    trial_rounds: int
    metric: str


def _check(steps: int, lr: float, trial_rounds: int) -> None:
    for name, value, least, what in (
        ("steps", steps, 1, "local steps of each fit"),
        ("trial_rounds", trial_rounds, 0, "rounds of the trials; 0: none"),
    ):
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise InputError(f"{name} must be an integer of at least {least}, got {value!r} ({what}).")
    if isinstance(lr, bool) or not isinstance(lr, int | float) or not 0 < lr < math.inf:
        raise InputError(f"lr must be a number > 0, got {lr!r} (learning rate of the fits).")


def _diagnose(
    clients: Clients, config: RunSettings, given: dict[str, Any], plan: _Plan, report: OnProgress
) -> tuple[Diagnosis, dict[str, Any]]:
    """Diagnose clients in canonical order; also return what was diagnosed, and how."""
    ready, preparation = prepare(clients, **config.select(Mark.PREPARATION))
    device, seed, start = find_device(config.device, config.precision), config.seed, given.get("start")
    spec = TaskSpec.of(
        config,
        model=given.get("model", config.model),
        loss=given.get("loss"),
        shape=ready.shape,
        classes=ready.classes,
        tokens=preparation.tokens,
        device=device,
    )
    task = spec.build(None if start is None else initial_weights.read(start))
    settings = Settings(
        rounds=0, batch_size=BATCH_SIZE, local_steps=plan.steps, seed=seed, workers=config.workers, chunk=config.chunk
    )
    data = engine_data(ready, device, PRECISIONS[config.precision])
    data = replace(data, test=ClientIndex.of_lists([np.zeros(0)] * len(data)))
    server = Simulation(UCFL(), task, data, settings, ready.classes).run().server  # its survey: there are no rounds
    report(Progress(1, 3, "survey"))
    first, second = _fits(task, data, replace(settings, rounds=1), ready.classes, plan.lr)
    report(Progress(2, 3, "fits"))
    alike = similarity.compare(first, second, ready.train.sizes.numpy(), seed)
    how = heterogeneity.measure(ready, alike.groups, alike.kind != similarity.ALIKE, seed)
    found = _diagnosis(ready, alike, how, _survey_result(server, alike))
    report(Progress(3, 3, "sums"))
    if plan.trial_rounds:
        candidates = trials.candidates_of(recommendation.group_methods(found))
        steps = count(4)  # after the three above
        total = 3 + trials.number_of_runs(candidates)
        rounds = replace(settings, rounds=plan.trial_rounds)
        found = found.with_trials(
            trials.run(
                *(task, data, rounds, ready.classes, candidates, plan.metric),
                report=lambda phase: report(Progress(next(steps), total, phase)),
            )
        )
    return found, {
        **{name: value for name, value in origin_of(clients).items() if name != "examples"},
        "clients": len(clients),
        "model": config.model,
        "parameters": task.layout.width,
        "seed": seed,
        "steps": plan.steps,
        "lr": plan.lr,
        "trial_rounds": plan.trial_rounds,
        "metric": plan.metric,
        "batch_size": BATCH_SIZE,
        "sent": _sent(task, ready),
    }


def _fits(task: Task, data: Data, settings: Settings, classes: int | None, lr: float) -> tuple[Rows, Rows]:
    """Return how far a few local steps move the weights, on the first and the second half of every client's data."""
    halves = []
    for i, name in enumerate(data.names):
        own = data.train.of(i).numpy()
        shuffled, middle = rng.generator(settings.seed, "diagnose", "halves", name).permutation(own), len(own) // 2
        halves += [shuffled[:middle], shuffled[middle:]] if middle else [own, own]  # a single example is in both
    twice = np.repeat(np.arange(len(data)), 2)
    both = Data(
        x=data.x,
        y=data.y,
        names=tuple(f"{name}/{half}" for name in data.names for half in (1, 2)),
        train=ClientIndex.of_lists(halves),
        validation=data.validation.take(twice),
        test=data.test.take(twice),
    )
    outcome = Simulation(Local(lr=lr), task, both, settings, classes).run()
    moved = outcome.personal_rows - task.start
    at = 2 * torch.arange(len(data))
    return moved[at], moved[at + 1]


def _diagnosis(
    clients: Clients, alike: similarity.Similarity, how: heterogeneity.Heterogeneity, survey: Survey | None
) -> Diagnosis:
    sizes = clients.train.sizes.numpy()
    gain_with_all = bayes_gain(alike.between, alike.variances)
    gain_in_group = np.ones(len(clients))
    for group in np.unique(alike.groups):
        own = alike.groups == group
        if own.sum() > 1:
            gain_in_group[own] = bayes_gain(alike.within, alike.variances[own])
    paper_gain = gain(alike.between, alike.variances)
    W = collaboration(alike.estimates, alike.variances, sizes)
    return Diagnosis(
        clients=[
            Client(
                name=name,
                examples=int(sizes[i]),
                variance=float(alike.variances[i]),
                gain_with_all=float(gain_with_all[i]),
                gain_in_group=float(gain_in_group[i]),
                paper_gain=float(paper_gain[i]),
                group=int(alike.groups[i]),
                nearest=_nearest(clients.names, W[i], i),
            )
            for i, name in enumerate(clients.names)
        ],
        likeness=alike.kind,
        streams=alike.num_groups,
        **{name: getattr(alike, name) for name in ("between", "within", "share", "surety", "explained", "silhouettes")},
        collaboration=W.tolist(),
        survey=survey,
        kinds={name: _finite(value) for name, value in how.figures.items()},
        present=tuple(name for name, present in how.present.items() if present),
        details={name: _finite(value) for name, value in how.details.items()},
        true_groups=clients.groups,
    )


def _survey_result(server: State, alike: similarity.Similarity) -> Survey | None:
    """Return what User-Centric FL's first round would find; None for so many clients that it would take too long."""
    if len(alike.groups) > MAX_SURVEYED:
        return None
    W = collaboration(server["gradients"], server["variances"], server["examples"])
    streams, _, silhouettes = choose_streams(W)
    found = choose_streams(W, streams=alike.num_groups)[1]
    agreement = None
    if 1 < alike.num_groups < len(alike.groups):
        from sklearn.metrics import adjusted_rand_score

        agreement = float(adjusted_rand_score(alike.groups, found))
    same = alike.groups[:, None] == alike.groups
    return Survey(streams, [_finite(one) for one in silhouettes], agreement, float((W * same).sum(1).mean()))


def _nearest(names: Sequence[str], row: NDArray[np.float64], own: int) -> list[str]:
    order = sorted((at for at in range(len(row)) if at != own), key=lambda at: (-row[at], names[at]))
    return [names[at] for at in order[:NUM_NEAREST] if row[at] > 0]


def _finite(value: Any) -> float | None:
    return None if value is None or not np.isfinite(value) else float(value)


def _sent(task: Task, clients: Clients) -> dict[str, int]:
    """Return how many numbers one client sends."""
    values = math.prod(clients.shape) if clients.x.is_floating_point() else heterogeneity.VOCABULARY
    width = min(heterogeneity.SKETCH_WIDTH, values)
    sums = (clients.classes or 1) * (width + 1) + 1
    return {"survey": task.layout.width + 1, "fits": 2 * task.layout.width, "sums": sums}
