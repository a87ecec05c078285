"""The training of a run, from clients, a method and a model to the result, with checkpoints on the way."""

import hashlib
import logging
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import fields, replace
from importlib.metadata import version
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from torch import nn

from bespokefl.core.errors import BespokeError, InputError, count, listing
from bespokefl.core.files import absolute
from bespokefl.core.method import Method
from bespokefl.core.nn.losses import Loss, fitting
from bespokefl.core.task import Task
from bespokefl.data.clients import Clients
from bespokefl.data.preprocessing.fit import prepare
from bespokefl.data.preprocessing.transform import Preparation
from bespokefl.engines.client import Data
from bespokefl.engines.interrupts import delay_interrupts
from bespokefl.engines.progress import Report
from bespokefl.engines.simulation import Simulation
from bespokefl.engines.storage.checkpoints import CheckpointInterval, Checkpoints, describe_latest, has_checkpoint
from bespokefl.engines.transports.processes import WorkerError
from bespokefl.models import build
from bespokefl.workflows.newcomers.personalize import serve
from bespokefl.workflows.results import run_directory, score_tables
from bespokefl.workflows.results import summary as about
from bespokefl.workflows.results.models import (
    PRECISIONS,
    START,
    Blueprint,
    InMemoryModels,
    Model,
    Recipe,
    State,
    untrained,
    write_state,
)
from bespokefl.workflows.results.result import Result
from bespokefl.workflows.results.server_artifact import ServerArtifact
from bespokefl.workflows.run import initial_weights as starts
from bespokefl.workflows.run import privacy_accounting
from bespokefl.workflows.run.client_loading import hold_back
from bespokefl.workflows.run.code_fingerprint import mark
from bespokefl.workflows.run.convert import (
    check_clients,
    engine_data,
    engine_settings,
    find_device,
    in_order,
    rounds_of,
    scores_of,
)
from bespokefl.workflows.run.initial_weights import Start
from bespokefl.workflows.run.settings import Config

log = logging.getLogger("bespokefl")


def train(
    config: Config,
    comments: dict[str, str],
    method: Method,
    clients: Clients,
    model: Model,
    loss: str | Loss | None,
    start: Start | None,
    progress: Report | None,
    place: Path | None = None,
    *,
    put: Callable[[Callable[[Path], None]], None] | None = None,
    ending: ExitStack | None = None,
    command: str | None = None,
) -> Result:
    """Everything after the checks of names: both ways to start a run come here.

    put      what is in the place is of another run: this fills a new folder and puts it there, see `Checkpoints`
    ending   what is to be left when the results are written
    command  that goes on with the run; None: the same call does
    """
    privacy_accounting.check(config)
    if config.state_dir is not None:
        config = replace(config, state_dir=str(absolute(config.state_dir)))  # for a resume from elsewhere
    everybody = clients
    clients, late, preparation = _prepared(everybody, config)
    if method.needs_groups and clients.groups is None:
        raise InputError(
            f"{config.method} needs a split that knows the clients' true groups, got {clients.split_name}."
        )
    device, dtype = find_device(config.device), PRECISIONS[config.precision]
    outputs = clients.classes or 1
    objective = fitting(loss, clients.classes)
    task = Task(
        build(model, clients.shape, outputs, preparation.tokens),
        objective,
        head=config.head,
        seed=config.seed,
        device=device,
        dtype=dtype,
        classifies=clients.classes is not None,
    )
    begun: State | None = None
    if start is not None:
        begun = starts.read(start)
        starts.begin(task, begun)
        comments["start"] = f"a copy of {start}" if isinstance(start, str | PathLike) else "given in Python"
    settings = engine_settings(config, warm=start is not None or isinstance(model, nn.Module))
    data = engine_data(clients, device, dtype)
    simulation = Simulation(method, task, data, settings, clients.classes)
    if config.keep_rounds and method.global_model(simulation.server) is None:
        raise InputError(f"{config.method} has no common model to keep of every round; leave keep_rounds out.")
    hyper, lost = _writable(method)
    python = about.from_python(config, method, loss, lost)
    if lost:
        comments["set"] = f"The run cannot be repeated from this file: it cannot hold {listing(lost)}."
    final_config = replace(config, set=hyper, start=None if begun is None else START)

    def write_rest(into: Path) -> None:
        everybody.save_split(into / run_directory.SPLIT_FILE)
        if begun is not None:
            write_state(begun, into / START)

    def begin(into: Path) -> None:
        write_rest(into)
        run_directory.write_text(into / "config.toml", final_config.to_toml(comments))

    checkpoints = None
    if place is not None:
        every = CheckpointInterval.of(config.checkpoint_every)
        identity = _identity(final_config, everybody, task) | {"python": python}
        made_with = {"device": str(device), "method": mark(method), "first losses": _first_losses(task, data)}
        checkpoints = Checkpoints(
            place / run_directory.CHECKPOINTS, every, identity, begin, replace_run=put, environment=made_with
        )
    began = time.perf_counter()
    try:
        outcome = simulation.run(progress, checkpoints)
    except Exception as error:
        if place is None or not simulation.failed or not has_checkpoint(place / run_directory.CHECKPOINTS):
            raise
        left, again = describe_latest(place / run_directory.CHECKPOINTS), command or "the same call"
        if isinstance(error, WorkerError):
            fewer = f"{again} with workers=1" if command is None else f"{command} --workers 1"
            then = f"{fewer} goes on from there and needs less memory"
            raise WorkerError(error.fact, kept=left, then=then) from None
        error.add_note(f"{left}; {again} goes on from there")
        raise
    if ending is not None:
        ending.enter_context(delay_interrupts("the training is over, and its results are being written"))
    seconds = time.perf_counter() - began

    blueprint = Blueprint.of(
        task,
        model=config.model,
        shape=clients.shape,
        outputs=outputs,
        seed=config.seed,
        precision=config.precision,
        tokens=preparation.tokens,
    )
    recipe = Recipe(blueprint, model, untrained(task.module, task.layout.names))
    told = about.summary(
        config,
        method,
        outcome,
        origin=about.origin_of(clients),
        names=clients.names,
        notes=about.notes_of(clients, data, outcome),
        seconds=seconds,
        executor=outcome.executor,
        workers=outcome.workers,
        states=outcome.states,
    )
    result = Result(
        config=final_config,
        about=told | {"python": python},
        names=clients.names,
        sizes={part: getattr(clients, part).sizes.numpy() for part in score_tables.SIZES},
        personal=scores_of(clients, data, outcome.personal),
        global_=None if outcome.globally is None else scores_of(clients, data, outcome.globally),
        rounds=rounds_of(clients, data, outcome.history, outcome.by_client),
        client_rounds=sorted(outcome.client_notes, key=lambda row: (row["round"], row["client"])),
        weights=InMemoryModels(recipe, in_order(clients, data, outcome.personal_rows), outcome.global_rows),
        final=ServerArtifact(method, recipe, objective, config.head, outcome.server, task.start, outcome.kept_rows),
        write_rest=write_rest,
        comments=comments,
        preparation=preparation if preparation.changes else None,
        checkpoints=None if place is None else place / run_directory.CHECKPOINTS,
    )
    if late is not None:
        _serve_late(result, late)
    return result


def _prepared(everybody: Clients, config: Config) -> tuple[Clients, Clients | None, Preparation]:
    """Those that train, those that come later, and how both were prepared, which is learnt from the former alone."""
    teachers, _ = hold_back(everybody, config.newcomers, config.seed)
    how = {key: getattr(config, key) for key in ("scale", "missing", "vocabulary", "length")}
    prepared, preparation = everybody, everybody.preparation
    if preparation is None:
        prepared, preparation = prepare(everybody, learn_from=teachers.names, **how)
    check_clients(prepared)
    return *hold_back(prepared, config.newcomers, config.seed), preparation


def _writable(method: Method) -> tuple[dict[str, Any], list[str]]:
    """The hyper-parameters that a config can hold, and the names of those that it cannot."""
    hyper = {name: value for name, value in method.hyper().items() if _in_toml(value)}
    lost = [one.name for one in fields(method) if one.name not in hyper and getattr(method, one.name) != one.default]
    return hyper, lost


def _in_toml(value: Any) -> bool:
    if isinstance(value, tuple | list):
        return all(_in_toml(one) for one in value)
    return isinstance(value, bool | int | float | str)


def _identity(config: Config, clients: Clients, task: Task) -> dict[str, Any]:
    """What a checkpoint must agree in with the run that goes on from it."""
    apart = {"data", "split", "out", "overwrite", "workers", "device", "checkpoint_every", "state_dir", "start", "set"}
    apart |= {"delta"}
    sha = hashlib.sha256()
    for block in task.start.blocks:
        sha.update(block.detach().cpu().contiguous().numpy().tobytes())
    return {
        **{one.name: getattr(config, one.name) for one in fields(config) if one.name not in apart},
        "set": dict(config.set),
        "split": clients.hash,
        "start": sha.hexdigest(),
        "version": version("bespokefl"),
    }


def _first_losses(task: Task, data: Data) -> str:
    """Of the first examples, with the first weights: another model or loss has others."""
    with torch.no_grad():
        losses = task.loss(task.predict(task.start, data.x[:3].unsqueeze(0))[0], data.y[:3])
    return ", ".join(f"{value:.4g}" for value in losses.tolist())


def _serve_late(result: Result, late: Clients) -> None:
    """Personalize those that were held back. What goes wrong here must not cost the run."""
    reason = "the run was interrupted" if result.interrupted else ""
    try:
        if not reason:
            result.newcomers = serve(result, late, workers=result.config.workers, device=result.config.device)
    except BespokeError as error:
        reason = str(error).rstrip(".")
    except KeyboardInterrupt:
        reason = "this was interrupted"
    if reason:
        note = f"{count(len(late), 'client')} held back, not personalized: {reason}."
        log.warning("%s", note)
        result.about["notes"].append(note)
