"""Diagnosing: before anybody trains long, whether federating helps each client, with whom, and by which method.

1. Survey: everybody's gradient at the start and its noise, as User-Centric FL asks for them.
2. Fits: everybody trains for a few steps from the same start, once on each half of its training data.
3. Sums: everybody's counts, and the means of its inputs, by class.

The gradient at the start is User-Centric FL's way to see who resembles whom. Fits of a few dozen steps see much more
(docs/diagnose.md has figures): they have moved to where clients' problems part, which one gradient only points to,
while steps without an effect on the loss have died down. So groups, W and both variances are from the fits, and the
survey says whether User-Centric FL's own first round would find the same. Test data are never looked at.
"""

import math
import time
from collections.abc import Sequence
from dataclasses import fields, replace
from importlib.metadata import version
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from bespokefl.core import rng
from bespokefl.core.client_index import ClientIndex
from bespokefl.core.errors import InputError
from bespokefl.core.nn.losses import Loss
from bespokefl.core.rows import Rows
from bespokefl.core.task import Task
from bespokefl.data.clients import Clients
from bespokefl.data.preprocessing.fit import prepare
from bespokefl.engines.client import Data
from bespokefl.engines.progress import Progress, Report
from bespokefl.engines.settings import Settings
from bespokefl.engines.simulation import Simulation
from bespokefl.methods import UCFL, Local
from bespokefl.methods.ucfl import choose_streams, collaboration
from bespokefl.theory.two_level import bayes_gain, gain
from bespokefl.workflows.diagnose import heterogeneity, similarity
from bespokefl.workflows.diagnose.result import FILE, SIGNS, WHAT, Client, Diagnosis, Survey
from bespokefl.workflows.results import run_directory
from bespokefl.workflows.results.models import PRECISIONS, Model, described
from bespokefl.workflows.run import initial_weights as starts
from bespokefl.workflows.run.client_loading import load_clients
from bespokefl.workflows.run.convert import check_clients, engine_data, find_device, select
from bespokefl.workflows.run.initial_weights import Start
from bespokefl.workflows.run.settings import Config
from bespokefl.workflows.run.task_builder import TaskSpec

Positions = NDArray[np.int64]

STEPS, LR = 50, 0.1  # of each fit
BATCH_SIZE = 50
SHOWN = ("data", "label", "client", "drop", "task", "text", "split", "clients", "fractions")  # in how to repeat it
NEAREST = 3  # peers that are named
MOST_STREAMED = 300  # clients for whom numbers of streams are tried, each of them


def diagnose(
    clients: Clients,
    *,
    model: Model = "mlp",
    steps: int = STEPS,
    lr: float = LR,
    seed: int = 0,
    start: Start | None = None,
    head: str | None = None,
    loss: str | Loss | None = None,
    scale: str | None = None,
    missing: str = "refuse",
    vocabulary: int | None = None,
    length: int | None = None,
    workers: int = 0,
    chunk: int | None = None,
    device: str = "cpu",
    precision: str = "float32",
    out: str | PathLike[str] | None = None,
    overwrite: bool = False,
    progress: Report | None = None,
) -> Diagnosis:
    """What federating would bring to each of these clients, who resembles whom, and which method to take.

    steps, lr   of the fits: each client makes so many steps, twice, each time on half of its training data
    out         a folder for diagnosis.json
    all else    as `run` takes it
    """
    if not isinstance(clients, Clients):
        raise InputError(f"clients must be Clients, got {type(clients).__name__}; data.split(...) makes them.")
    _check(steps, lr)
    if out is not None:
        run_directory.check(Path(out), overwrite, SIGNS, WHAT)
    check_clients(clients)
    if len(clients) < 2:
        raise InputError("a diagnosis needs at least 2 clients, got 1: who is alone has nobody to federate with.")
    if precision not in PRECISIONS:
        raise InputError(f"precision must be one of {', '.join(PRECISIONS)}, got {precision!r}.")
    began = time.perf_counter()
    order = sorted(range(len(clients)), key=lambda i: clients.names[i])
    canonical = select(clients, order)  # so that the order in which clients are listed decides nothing
    ready, preparation = prepare(canonical, scale=scale, missing=missing, vocabulary=vocabulary, length=length)
    spec = TaskSpec(
        model=model,
        shape=ready.shape,
        classes=ready.classes,
        tokens=preparation.tokens,
        loss=loss,
        head=head,
        seed=seed,
        precision=precision,
        device=find_device(device),
    )
    task = spec.build(None if start is None else starts.read(start))
    settings = Settings(rounds=0, batch_size=BATCH_SIZE, local_steps=steps, seed=seed, workers=workers, chunk=chunk)
    data = _untested(engine_data(ready, find_device(device), PRECISIONS[precision]))
    tell = progress or (lambda now: None)
    surveyed = _survey(task, data, settings, ready.classes)
    tell(Progress(1, 3, "survey"))
    first, second = _fits(task, data, replace(settings, rounds=1), ready.classes, lr)
    tell(Progress(2, 3, "fits"))
    sizes = ready.train.sizes.numpy()
    alike = similarity.compare(first, second, sizes, seed)
    found = _found(
        ready, alike, heterogeneity.measure(ready, alike.groups, alike.kind != similarity.ALIKE, seed), surveyed
    )
    tell(Progress(3, 3, "sums"))
    about = {
        "data": clients.data_name,
        "split": clients.split_name,
        "split_hash": clients.hash,
        "split_seed": clients.seed,
        "clients": len(clients),
        "model": described(model),
        "parameters": task.layout.width,
        "seed": seed,
        "steps": steps,
        "lr": lr,
        "batch_size": BATCH_SIZE,
        "sent": _sent(task, ready),
        "seconds": round(time.perf_counter() - began, 3),
        "versions": {name: version(name) for name in ("bespokefl", "torch", "numpy")},
    }
    found = replace(found, about=about).in_order(np.argsort(order))
    if out is not None:
        found.save(out, overwrite)
    return found


def diagnose_config(
    config: Config, *, steps: int = STEPS, lr: float = LR, progress: Report | None = None
) -> tuple[Diagnosis, Path]:
    """The same for what a config says, written to its folder."""
    _check(steps, lr)
    target = run_directory.stable_path(
        Path(config.out) if config.out is not None else run_directory.fresh(run_directory.RUNS, "diagnose")
    )
    run_directory.check(target, config.overwrite, SIGNS, WHAT)
    names = ("model", "seed", "start", "head", "loss", "scale", "missing", "vocabulary", "length")
    given = {name: getattr(config, name) for name in (*names, "workers", "chunk", "device", "precision")}
    clients = load_clients(config)
    found = diagnose(clients, steps=steps, lr=lr, progress=progress, **given)
    found.about["config"] = {
        one.name: getattr(config, one.name)
        for one in fields(config)
        if one.name in (*SHOWN, *names) and getattr(config, one.name) not in (None, one.default)
    }
    found.save(target, config.overwrite)
    return found, target / FILE


def _check(steps: int, lr: float) -> None:
    if isinstance(steps, bool) or not isinstance(steps, int) or steps < 1:
        raise InputError(f"steps must be a whole number of local steps from 1 on, got {steps!r}.")
    if isinstance(lr, bool) or not isinstance(lr, int | float) or not 0 < lr < math.inf:
        raise InputError(f"lr must be a number above 0, got {lr!r}.")


def _untested(data: Data) -> Data:
    """The same without test examples: what is not there cannot decide anything."""
    nothing: list[Positions] = [np.zeros(0, dtype=np.int64)] * len(data)
    return replace(data, test=ClientIndex.of_lists(nothing))


def _survey(task: Task, data: Data, settings: Settings, classes: int | None) -> dict[str, Any]:
    """User-Centric FL's special round: gradients at the start and their noise."""
    server = Simulation(UCFL(), task, data, settings, classes).run().server
    return {name: server[name] for name in ("gradients", "variances", "examples")}


def _fits(task: Task, data: Data, settings: Settings, classes: int | None, lr: float) -> tuple[Rows, Rows]:
    """How far a few local steps lead from the start, on the first and on the second half of everybody's data."""
    halves = [half for i, name in enumerate(data.names) for half in _halves(data.train.of(i).numpy(), settings, name)]
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


def _halves(own: Positions, settings: Settings, name: str) -> Sequence[Positions]:
    """Both halves, shuffled; a single example has to serve for both."""
    shuffled = rng.generator(settings.seed, "diagnose", "halves", name).permutation(own)
    middle = len(own) // 2
    return (shuffled[:middle], shuffled[middle:]) if middle else (own, own)


def _found(
    clients: Clients, alike: similarity.Likeness, how: heterogeneity.Kinds, surveyed: dict[str, Any]
) -> Diagnosis:
    """Everything put together, clients in canonical order."""
    sizes = clients.train.sizes.numpy()
    everybody = bayes_gain(alike.between, alike.variances)
    together = np.ones(len(clients))
    for group in np.unique(alike.groups):
        own = alike.groups == group
        if own.sum() > 1:
            together[own] = bayes_gain(alike.within, alike.variances[own])
    W = collaboration(alike.estimates, alike.variances, sizes)
    listed = [
        Client(
            name=name,
            examples=int(sizes[i]),
            variance=float(alike.variances[i]),
            gain_with_all=float(everybody[i]),
            gain_in_group=float(together[i]),
            paper_gain=float(value),
            group=int(alike.groups[i]),
            nearest=_nearest(clients.names, W[i], i),
        )
        for i, (name, value) in enumerate(zip(clients.names, gain(alike.between, alike.variances), strict=True))
    ]
    survey = None
    if len(clients) <= MOST_STREAMED:
        first = collaboration(surveyed["gradients"], surveyed["variances"], surveyed["examples"])
        streams, _, curve = choose_streams(first)
        wanted = alike.num_groups
        agreement = _agreement(choose_streams(first, streams=wanted)[1], alike.groups)
        same = alike.groups[:, None] == alike.groups
        survey = Survey(streams, [_number(one) for one in curve], agreement, float((first * same).sum(1).mean()))
    return Diagnosis(
        clients=listed,
        between=alike.between,
        within=alike.within,
        share=alike.share,
        surety=alike.surety,
        likeness=alike.kind,
        streams=alike.num_groups,
        explained=alike.explained,
        silhouettes=alike.silhouettes,
        collaboration=W.tolist(),
        survey=survey,
        kinds={name: _number(value) for name, value in how.figures.items()},
        present=tuple(name for name, there in how.present.items() if there),
        details={name: _number(value) for name, value in how.details.items()},
        true_groups=clients.groups,
    )


def _nearest(names: Sequence[str], row: NDArray[np.float64], own: int) -> list[str]:
    order = sorted((at for at in range(len(row)) if at != own), key=lambda at: (-row[at], names[at]))
    return [names[at] for at in order[:NEAREST] if row[at] > 0]


def _agreement(found: Positions, groups: Positions) -> float | None:
    """How well two groupings agree, 1 for perfectly, about 0 for by chance; None where there is but one group."""
    if not 1 < len(np.unique(groups)) < len(groups):
        return None
    from sklearn.metrics import adjusted_rand_score

    return float(adjusted_rand_score(groups, found))


def _number(value: Any) -> float | None:
    return None if value is None or not np.isfinite(value) else float(value)


def _sent(task: Task, clients: Clients) -> dict[str, int]:
    """Numbers that one client sends."""
    values = math.prod(clients.shape) if clients.x.is_floating_point() else heterogeneity.VOCABULARY
    width = min(heterogeneity.WIDTH, values)
    classes = clients.classes or 1
    fits = 2 * task.layout.width
    return {"survey": task.layout.width + 1, "fits": fits, "sums": classes * (width + 1) + 1}
