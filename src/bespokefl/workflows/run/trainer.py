"""Trains one method in three steps: build the run, simulate its rounds, package the result."""

import hashlib
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from functools import cached_property, partial
from importlib.metadata import version
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from torch import nn

from bespokefl import methods
from bespokefl.core.callback import Callback, RunInfo
from bespokefl.core.errors import BespokeError, InputError, count, listing
from bespokefl.core.method import Method
from bespokefl.core.nn.losses import Loss
from bespokefl.core.system.files import absolute
from bespokefl.core.task import Task
from bespokefl.core.user_input.plugins import code_digest
from bespokefl.data.clients import Clients
from bespokefl.data.preprocessing.fit import prepare
from bespokefl.data.preprocessing.transform import Preparation
from bespokefl.engines.callbacks import Callbacks
from bespokefl.engines.client import Data
from bespokefl.engines.outcome import OnProgress, Outcome
from bespokefl.engines.simulation import Simulation
from bespokefl.engines.storage.checkpoints import CheckpointInterval, Checkpoints, describe_latest, has_checkpoint
from bespokefl.engines.transports.processes import WorkerError
from bespokefl.metrics.differential_privacy import check_accountant
from bespokefl.metrics.metric import check_metric, choose_metric, metrics_of
from bespokefl.models import Model
from bespokefl.workflows.newcomers.personalize import serve
from bespokefl.workflows.results import run_directory, summary
from bespokefl.workflows.results.models import PRECISIONS, START, InMemoryModels, StateDict, write_state
from bespokefl.workflows.results.result import Result
from bespokefl.workflows.run import convert, initial_weights
from bespokefl.workflows.run.client_loading import hold_back
from bespokefl.workflows.run.code_fingerprint import mark
from bespokefl.workflows.run.initial_weights import Start
from bespokefl.workflows.run.settings import Mark, RunSettings
from bespokefl.workflows.run.task_builder import TaskSpec

log = logging.getLogger("bespokefl")


@dataclass(frozen=True, kw_only=True)
class RunInputs:
    """What a run is made of. `model`, `loss` and `start` may be Python objects, which settings cannot hold."""

    settings: RunSettings
    method: Method
    clients: Clients
    model: Model
    loss: str | Loss | None = None
    start: Start | None = None
    callbacks: Sequence[Callback] = ()
    comments: Mapping[str, str] = field(default_factory=dict)  # for keys of config.toml


@dataclass(frozen=True)
class RunStorage:
    """Where a run writes its checkpoints."""

    directory: Path
    command: str | None = None  # resumes the run; None: the same call of bespokefl.run does
    replaced: run_directory.ReplacedFolder | None = None  # results of another run, kept until the first checkpoint

    @property
    def checkpoints(self) -> Path:
        """The directory of the checkpoints."""
        return self.directory / run_directory.CHECKPOINTS

    def add_advice(self, error: Exception) -> None:
        """Add to the error of a failed round how to resume from the checkpoints; raises a `WorkerError` anew."""
        left, again = describe_latest(self.checkpoints), self.command or "the same call"
        if isinstance(error, WorkerError):
            fewer = f"{again} with workers=1" if self.command is None else f"{again} --workers 1"
            then = f"{fewer} resumes from there and needs less memory"
            raise WorkerError(error.fact, kept=left, then=then) from None
        error.add_note(f"{left}; {again} resumes from there")


@dataclass(frozen=True)
class BuiltRun:
    """A run that is ready to be simulated."""

    inputs: RunInputs
    settings: RunSettings
    clients: Clients  # those that train, preprocessed
    newcomers: Clients | None  # those that are held out of training
    preparation: Preparation
    start: StateDict | None  # given initial weights
    spec: TaskSpec
    task: Task
    data: Data
    simulation: Simulation

    @cached_property
    def saved_settings(self) -> RunSettings:
        """The settings in config.toml: with all hyper-parameters, and the initial weights by file name."""
        hyper = {name: value for name, value in self.inputs.method.hyper().items() if _fits_toml(value)}
        return replace(self.settings, set=hyper, start=None if self.start is None else START)

    @cached_property
    def lost(self) -> list[str]:
        """The names of changed hyper-parameters that TOML cannot hold."""
        method, saved = self.inputs.method, self.saved_settings.set
        return [
            one.name for one in fields(method) if one.name not in saved and getattr(method, one.name) != one.default
        ]

    @cached_property
    def comments(self) -> dict[str, str]:
        """The comments in config.toml, by key."""
        comments, start = dict(self.inputs.comments), self.inputs.start
        if start is not None:
            comments["start"] = f"a copy of {start}" if isinstance(start, str | PathLike) else "given in Python"
        if self.lost:
            comments["set"] = f"The run cannot be repeated from this file: it cannot hold {listing(self.lost)}."
        return comments

    @property
    def python(self) -> dict[str, str]:
        """Descriptions of what came from Python and is in no file of the run."""
        kind, loss, found = type(self.inputs.method), self.inputs.loss, {}
        if methods.name_of(self.inputs.method) != self.settings.method:
            found["method"] = kind.__name__
        elif self.lost:
            found["method"] = f"{kind.__name__} with {listing(self.lost)}"
        if callable(loss):
            found["loss"] = getattr(loss, "__name__", type(loss).__name__)
        return found

    @property
    def write_inputs(self) -> Callable[[Path], None]:
        """Writes the split and the given initial weights; results keep this, so it does not hold the simulation."""
        return partial(_write_inputs, self.inputs.clients, self.start)

    def write_config(self, directory: Path) -> None:
        """Write what `bespoke resume` needs besides checkpoints."""
        self.write_inputs(directory)
        run_directory.write_text(directory / "config.toml", self.saved_settings.to_toml(self.comments))

    def identity(self) -> dict[str, Any]:
        """What a checkpoint must have in common with the run that resumes from it."""
        sha, kind = hashlib.sha256(), type(self.inputs.method)
        for block in self.task.start.blocks:
            sha.update(block.detach().cpu().contiguous().numpy().tobytes())
        free = self.settings.marked(Mark.RESUMABLE)
        return {
            **{one.name: getattr(self.saved_settings, one.name) for one in fields(RunSettings) if one.name not in free},
            "split": self.inputs.clients.hash,
            "start": sha.hexdigest(),
            "version": version("bespokefl"),
            "python": self.python,
            **({} if kind in methods.REGISTRY.values() else {"the method's code": code_digest(kind)}),
        }

    def info(self, storage: RunStorage | None) -> RunInfo:
        """What callbacks are told about the run when it begins."""
        settings = asdict(self.saved_settings)
        name = f"{self.settings.method}-{self.settings.seed}" if storage is None else storage.directory.resolve().name
        return RunInfo(name, settings, Path.cwd())

    def environment(self) -> dict[str, str]:
        """What a checkpoint notes of the device, the method's code and the model (the losses of three examples)."""
        x, y = self.data.x[:3], self.data.y[:3]
        with torch.no_grad():
            losses = self.task.loss(self.task.predict(self.task.start, x.unsqueeze(0))[0], y)
        found = ", ".join(f"{value:.4g}" for value in losses.tolist())
        return {"device": str(self.spec.device), "method": mark(self.inputs.method), "first losses": found}


def build(inputs: RunInputs) -> BuiltRun:
    """Check the inputs, preprocess the clients and build the task and its simulation."""
    settings, method = inputs.settings, inputs.method
    if settings.noise:
        check_accountant()  # before training, not when ε is computed at its end
    if settings.state_dir is not None:  # the run may be resumed from another current directory
        settings = replace(settings, state_dir=str(absolute(settings.state_dir)))
    clients, newcomers, preparation = _prepare(inputs.clients, settings)
    if method.needs_groups and clients.groups is None:
        raise InputError(
            f"{settings.method} needs a split that knows the clients' true groups, got {clients.split_name}."
        )
    if settings.follow is not None:
        choose_metric(check_metric(settings.follow), metrics_of(clients.classes))
    spec = TaskSpec.of(
        settings,
        model=inputs.model,
        loss=inputs.loss,
        shape=clients.shape,
        classes=clients.classes,
        tokens=preparation.tokens,
        device=convert.find_device(settings.device, settings.precision),
    )
    start = None if inputs.start is None else initial_weights.read(inputs.start)
    task = spec.build(start)
    data = convert.engine_data(clients, spec.device, PRECISIONS[settings.precision])
    warm = start is not None or isinstance(inputs.model, nn.Module)
    simulation = Simulation(method, task, data, convert.engine_settings(settings, warm=warm), clients.classes)
    convert.check_keep_rounds(settings, simulation.method, simulation.server)
    return BuiltRun(inputs, settings, clients, newcomers, preparation, start, spec, task, data, simulation)


def simulate(
    run: BuiltRun, progress: OnProgress | None = None, storage: RunStorage | None = None
) -> tuple[Outcome, float]:
    """Run all rounds, from the start or from the last checkpoint; return the outcome and the seconds it took."""
    checkpoints = None
    if storage is not None:
        checkpoints = Checkpoints(
            storage.checkpoints,
            CheckpointInterval.of(run.settings.checkpoint_every),
            run.identity(),
            run.write_config,
            replace_run=None if storage.replaced is None else storage.replaced.replace,
            environment=run.environment(),
        )
    started = time.perf_counter()
    try:
        outcome = run.simulation.run(progress, checkpoints, Callbacks(run.inputs.callbacks, run.info(storage)))
    except Exception as error:
        if storage is not None and run.simulation.failed and has_checkpoint(storage.checkpoints):
            storage.add_advice(error)
        raise
    return outcome, time.perf_counter() - started


def package(run: BuiltRun, outcome: Outcome, seconds: float, storage: RunStorage | None = None) -> Result:
    """Make the result of a simulated run, and personalize the clients that were held out of training."""
    clients, data = run.clients, run.data
    timing = {"seconds": seconds, **asdict(outcome.executor), "workers": outcome.workers, "states": outcome.states}
    if outcome.placement:
        timing["clients_by_node"] = list(outcome.placement)
    about = summary.summarize_run(
        run.settings,
        run.inputs.method,
        outcome,
        origin=summary.origin_of(clients),
        names=clients.names,
        notes=summary.notes_of(clients, data, outcome),
        timing=timing,
    )
    recipe = run.spec.recipe(run.task)
    result = convert.make_result(
        run.saved_settings,
        run.inputs.method,
        outcome,
        clients,
        data,
        about=about | {"python": run.python},
        models=InMemoryModels(recipe, convert.in_order(clients, data, outcome.personal_rows), outcome.global_rows),
        spec=run.spec,
        task=run.task,
        preparation=run.preparation,
        write_rest=run.write_inputs,
        comments=run.comments,
        checkpoints=None if storage is None else storage.checkpoints,
    )
    if run.newcomers is not None:
        _personalize(result, run.newcomers)
    return result


def _prepare(everyone: Clients, settings: RunSettings) -> tuple[Clients, Clients | None, Preparation]:
    """Preprocess the clients by statistics of those that train, and separate the others."""
    training, _ = hold_back(everyone, settings.newcomers, settings.seed)
    prepared, preparation = everyone, everyone.preparation
    if preparation is None:
        prepared, preparation = prepare(everyone, learn_from=training.names, **settings.select(Mark.PREPARATION))
    convert.check_clients(prepared)
    return *hold_back(prepared, settings.newcomers, settings.seed), preparation


def _write_inputs(clients: Clients, start: StateDict | None, directory: Path) -> None:
    clients.save_split(directory / run_directory.SPLIT_FILE)
    if start is not None:
        write_state(start, directory / START)


def _fits_toml(value: Any) -> bool:
    if isinstance(value, tuple | list):
        return all(_fits_toml(one) for one in value)
    return isinstance(value, bool | int | float | str)


def _personalize(result: Result, newcomers: Clients) -> None:
    """Personalize the held-out clients. An error here becomes a note, as it must not cost the run."""
    reason = "the run was interrupted" if result.interrupted else ""
    try:
        if not reason:
            result.newcomers = serve(result, newcomers, workers=result.config.workers, device=result.config.device)
    except BespokeError as error:
        reason = str(error).rstrip(".")
    except KeyboardInterrupt:
        reason = "this was interrupted"
    if reason:
        note = f"{count(len(newcomers), 'client')} held back, not personalized: {reason}."
        log.warning("%s", note)
        result.about["notes"].append(note)
