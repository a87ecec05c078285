"""`bespokefl.run` and `bespokefl.resume`: clients, a method and a model in, a result out."""

import inspect
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from os import PathLike
from pathlib import Path
from shlex import quote
from typing import Any, TypeVar

import torch

from bespokefl import data as datasets
from bespokefl import methods, trackers
from bespokefl.core.callback import Callback
from bespokefl.core.errors import DiskError, InputError, unknown
from bespokefl.core.method import Method
from bespokefl.core.nn.losses import Loss
from bespokefl.core.system.files import absolute
from bespokefl.core.user_input.plugins import short
from bespokefl.data.clients import Clients
from bespokefl.data.sources.synthetic import is_synthetic
from bespokefl.engines.interrupts import delay_interrupts
from bespokefl.engines.outcome import OnProgress
from bespokefl.engines.storage.checkpoints import OtherRunError
from bespokefl.models import Model
from bespokefl.workflows.results import run_directory
from bespokefl.workflows.results.models import described
from bespokefl.workflows.results.result import Result
from bespokefl.workflows.run import resume as finding
from bespokefl.workflows.run.client_loading import load_clients
from bespokefl.workflows.run.initial_weights import Start
from bespokefl.workflows.run.settings import RunSettings
from bespokefl.workflows.run.trainer import RunInputs, RunStorage, build, package, simulate

Function = TypeVar("Function", bound=Callable[..., Any])


def takes_settings(function: Function) -> Function:
    """Replace `**settings` in the signature, and `{settings}` in the docstring, by the fields of `RunSettings`.

    Settings that the function has as parameters of its own keep their types and their documentation.
    """
    signature = inspect.signature(function)
    own = {name: one for name, one in signature.parameters.items() if one.kind is not one.VAR_KEYWORD}
    added = [one for one in fields(RunSettings) if one.name in RunSettings.arguments() and one.name not in own]
    keyword = inspect.Parameter.KEYWORD_ONLY
    parameters = [inspect.Parameter(one.name, keyword, default=one.default, annotation=one.type) for one in added]
    function.__signature__ = signature.replace(parameters=[*own.values(), *parameters])  # type: ignore[attr-defined]
    function.__annotations__ |= {one.name: one.type for one in added}
    function.__annotations__.pop("settings", None)
    lines = []
    for one in added:
        kind = one.type.__name__ if isinstance(one.type, type) else str(one.type).replace(" | ", " or ")
        lines.append(f"{one.name} : {kind}, default={one.default!r}")
        lines += textwrap.wrap(one.metadata["help"], 112, initial_indent="    ", subsequent_indent="    ")
    function.__doc__ = (function.__doc__ or "").replace("{settings}", "\n    ".join(lines))
    return function


@takes_settings
def run(
    method: Method | str,
    clients: Clients,
    *,
    model: Model = RunSettings.model,
    loss: str | Loss | None = None,
    start: Start | None = None,
    device: str | torch.device = RunSettings.device,
    checkpoint: str | PathLike[str] | None = None,
    checkpoint_every: str | int = RunSettings.checkpoint_every,
    progress: OnProgress | None = None,
    callbacks: Sequence[Callback] = (),
    **settings: Any,
) -> Result:
    """Train a method on clients and evaluate every client's model.

    Parameters
    ----------
    method : Method or str
        A method with its hyper-parameters, such as `methods.Ditto(prox_weight=0.5)`, or the name of one.
    clients : Clients
        The clients, as `Dataset.split` makes them.
    model : str, callable or torch.nn.Module, default='mlp'
        A name ("mlp", "mlp(hidden=(50,))", "module:function"), a function that makes a module, or a module, whose
        weights are then the initial weights.
    loss : str, callable or None, default=None
        A name ("cross_entropy", "mse"), or a function of outputs and targets that returns one loss per example; None
        chooses by the labels.
    start : mapping, torch.nn.Module, path or None, default=None
        Initial weights: a state dict, a module, a .safetensors file, or the directory of a run with a global model.
    device : str or torch.device, default='cpu'
        The device to compute on.
    checkpoint : path or None, default=None
        A directory for checkpoints. The same call with the same directory resumes an interrupted run.
    checkpoint_every : str or int, default='60s'
        Rounds (10) or seconds ("60s") between checkpoints; 0: only when the run is interrupted.
    progress : callable or None, default=None
        Called with a `Progress` after every round; it has scores if the round was evaluated, as the last one is.
    callbacks : sequence of Callback, default=()
        Called when the run begins, after evaluations, rounds and checkpoints, and when it ends.
    {settings}

    Returns
    -------
    Result
        Scores and models of all clients. `Result.save` writes them to a directory.

    Raises
    ------
    InputError, TrainingError
        If an argument is wrong; if the training diverges or a worker process dies.

    Examples
    --------
    >>> import bespokefl as bf
    >>> clients = bf.load("digits").split("dirichlet(alpha=0.4)", clients=20)
    >>> result = bf.run("ditto", clients, rounds=50)  # doctest: +SKIP
    """
    named = settings | {"device": str(device), "checkpoint_every": str(checkpoint_every)}
    inputs = _python_inputs(methods.of(method), clients, model, loss, start, named)
    inputs = replace(inputs, callbacks=_callbacks(inputs.settings, callbacks))
    if checkpoint is None:
        built = build(inputs)
        return package(built, *simulate(built, progress))
    with run_directory.lock(Path(checkpoint)) as directory:
        storage = RunStorage(directory)
        try:
            built = build(inputs)
            return package(built, *simulate(built, progress, storage), storage)
        except DiskError as error:
            raise run_directory.explain_disk_error(error, directory) from None
        except OtherRunError as error:
            raise InputError(f"{error.fact}; use another directory.") from None


def _python_inputs(
    method: Method,
    clients: Clients,
    model: Model,
    loss: str | Loss | None,
    start: Start | None,
    named: Mapping[str, Any],
) -> RunInputs:
    """The inputs of a run from Python, whose clients, model, loss and initial weights may be in no file."""
    known = inspect.signature(run).parameters
    for name in named:
        if name not in known:
            raise unknown("argument of run", name, known)
    if not isinstance(clients, Clients):
        raise InputError(f"clients must be Clients, got {type(clients).__name__}; data.split(...) makes them.")
    settings = RunSettings(
        method=methods.name_of(method) or method.name or type(method).__name__,
        data=clients.data_name,
        split=run_directory.SPLIT_FILE,
        clients=len(clients),
        model=described(model),
        loss=None if callable(loss) else loss,
        **named,
    )
    comments = {"split": f"{clients.split_name}, seed {clients.seed}"}  # in config.toml, on what came from Python
    if clients.data_name not in datasets.names():
        client = "" if clients.client is None else ", client=clients.client"
        comments["data"] = (
            "These data came from Python; to repeat the run, save them, "
            f'numpy.savez("data.npz", x=clients.x, y=clients.y{client}), and name that file here.'
        )
    if methods.name_of(method) is None:
        comments["method"] = f"The run cannot be repeated from this file: {type(method).__name__} is not registered."
    if callable(loss):
        comments["loss"] = "The run cannot be repeated from this file: its loss was a Python function."
    return RunInputs(
        settings=settings, method=method, clients=clients, model=model, loss=loss, start=start, comments=comments
    )


def _callbacks(settings: RunSettings, given: Sequence[Callback]) -> list[Callback]:
    """The trackers that the settings name, and the callbacks of the caller."""
    if not isinstance(given, Sequence) or not all(isinstance(one, Callback) for one in given):
        raise InputError(f"callbacks must be a list of objects derived from bf.Callback, got {given!r}.")
    return [*trackers.of(settings.log), *given]


def run_config(
    settings: RunSettings,
    progress: OnProgress | None = None,
    *,
    resumed: bool = False,
    clients: Clients | None = None,
    callbacks: Sequence[Callback] = (),
) -> Result:
    """Train with these settings and write the results to their directory, or resume the run that is in it.

    `clients` are those that the settings describe, if they are loaded already.
    """
    watching = _callbacks(settings, callbacks)
    unnamed = settings.out is None
    target = run_directory.stable_path(
        run_directory.RUNS / short(settings.method) if unnamed else Path(str(settings.out))
    )
    if unnamed:
        run_directory.check_above(target)  # before anything is made
    elif not resumed:
        run_directory.check(target, settings.overwrite)
    with run_directory.lock(target, rename=unnamed) as target:
        if not resumed:
            run_directory.check(target, settings.overwrite)  # again, as no other process can change it now
        replaced = run_directory.ReplacedFolder(target) if settings.overwrite and not resumed else None
        storage = RunStorage(target, f"bespoke resume {quote(str(target))}", replaced)
        inputs = replace(_inputs(settings, clients), callbacks=watching)
        try:
            built = build(inputs)
            outcome, seconds = simulate(built, progress, storage)
            with delay_interrupts("the training is over, and its results are being written"):
                result = package(built, outcome, seconds, storage)
                result.save(target, settings.overwrite)
        except DiskError as error:
            raise run_directory.explain_disk_error(
                error, target, unchanged=replaced is not None and replaced.unchanged
            ) from None
    return result


def _inputs(settings: RunSettings, clients: Clients | None) -> RunInputs:
    """The inputs of a run that has settings only; data and split are stored so that they are found again."""
    method = methods.build(settings.method, dict(settings.set))
    if settings.model.startswith("<"):
        raise InputError(
            f"the model was a Python object, {settings.model}, that cannot be made from its name; give --model."
        )
    clients = load_clients(settings) if clients is None else clients
    comments: dict[str, str] = {}
    named = settings.data in datasets.names() or is_synthetic(settings.data)
    data, split = settings.data if named else str(absolute(settings.data)), clients.split_name
    if settings.split is not None and settings.split.endswith(".json"):
        comments["split"] = f"{clients.split_name}, seed {clients.seed}"
        split = run_directory.SPLIT_FILE
    return RunInputs(
        settings=replace(settings, data=data, clients=len(clients), split=split),
        method=method,
        clients=clients,
        model=settings.model,
        loss=settings.loss,
        start=settings.start,
        comments=comments,
    )


def resume(
    path: str | PathLike[str],
    progress: OnProgress | None = None,
    *,
    state_dir: str | PathLike[str] | None = None,
    workers: int | None = None,
    cluster: str | None = None,
    callbacks: Sequence[Callback] = (),
) -> Result:
    """Resume an interrupted run from its last checkpoint. The result is identical to an uninterrupted run.

    Parameters
    ----------
    path : path
        The directory of the run.
    progress : callable or None, default=None
        Called with a `Progress` after every round.
    state_dir : path or None, default=None
        A directory for files with the clients' states; None: as before the interruption.
    workers : int or None, default=None
        Number of processes, 0 for one per core; None: as before the interruption.
    cluster : str or None, default=None
        A Ray cluster, or "none" for this machine alone; None: as before the interruption.
    callbacks : sequence of Callback, default=()
        As in `run`. Trackers of the setting `log` continue without being named again.

    Raises
    ------
    InputError
        If the directory has no interrupted run, or if its files or data have changed.
    """
    directory = run_directory.stable_path(Path(path))
    settings = finding.read(directory)
    states = settings.state_dir if state_dir is None else str(state_dir)
    processes = settings.workers if workers is None else workers
    nodes = settings.cluster if cluster is None else cluster
    changed = replace(settings, out=str(directory), state_dir=states, workers=processes, cluster=nodes)
    try:
        return run_config(changed, progress, resumed=True, callbacks=callbacks)
    except OtherRunError as error:
        raise finding.rejected(error, directory, settings) from None
