"""A run: clients, a method and a model in, a result out."""

import logging
import platform
import time
from collections.abc import Mapping
from dataclasses import asdict, fields, replace
from importlib.metadata import version
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from bespokefl import data as datasets
from bespokefl import methods
from bespokefl.core.errors import InputError, listing, unknown
from bespokefl.core.method import Method
from bespokefl.core.task import LOSSES, Loss, Task
from bespokefl.data.clients import Clients
from bespokefl.engines.client import Data
from bespokefl.engines.federation import Settings
from bespokefl.engines.simulation import Outcome, Report, Simulation
from bespokefl.experiments import folder
from bespokefl.experiments import start as starts
from bespokefl.experiments.config import Config
from bespokefl.experiments.result import Result, Scores
from bespokefl.experiments.start import Start
from bespokefl.experiments.weights import (
    PRECISIONS,
    START,
    Blueprint,
    Kept,
    Model,
    State,
    described,
    untrained,
    write_state,
)
from bespokefl.models import build

log = logging.getLogger("bespokefl")

SPLIT = "split.json"
RUNS = Path("runs")


def run(
    method: Method | str,
    clients: Clients,
    *,
    model: Model = "mlp",
    rounds: int = 20,
    participation: float = 1.0,
    batch_size: int = 10,
    local_epochs: int = 1,
    local_steps: int | None = None,
    seed: int = 0,
    start: Start | None = None,
    head: str | None = None,
    loss: str | Loss | None = None,
    eval_every: int = 5,
    workers: int = 0,
    chunk: int | None = None,
    device: str = "cpu",
    precision: str = "float32",
    engine: str = "simulation",
    progress: Report | None = None,
) -> Result:
    """Train these clients by this method.

    method      with its hyper-parameters, `methods.Ditto(pull=0.5)`, or the name of one with its defaults
    model       a name ("mlp", "mlp(hidden=(50,))", "module:function"), a function that makes a module, or a module,
                with whose weights it then begins
    local_steps instead of local_epochs
    start       a state dict, a .safetensors file, or the folder of a run, to begin with its global model
    head        the module whose parameters are the head; None: "head", else the last linear layer
    eval_every  rounds between evaluations of all clients; the last round is always evaluated
    workers     processes, 0 for all cores; they do not change the result
    chunk       clients that are computed at once; None: chosen by a rule
    progress    called after every round
    """
    chosen = methods.build(method) if isinstance(method, str) else method
    if not isinstance(chosen, Method):
        raise InputError(f"method must be a method such as methods.Ditto() or its name, got {method!r}.")
    if not isinstance(clients, Clients):
        raise InputError(f"clients must be Clients, got {type(clients).__name__}; data.split(...) makes them.")
    comments = {"split": f"{clients.split_name}, seed {clients.seed}"}
    if clients.data_name not in datasets.names():
        client = "" if clients.client is None else ", client=clients.client"
        comments["data"] = (
            "These data came from Python; to repeat the run, save them, "
            f'numpy.savez("data.npz", x=clients.x, y=clients.y{client}), and name that file here.'
        )
    if methods.REGISTRY.get(chosen.name) is not type(chosen):
        comments["method"] = f"The run cannot be repeated from this file: {type(chosen).__name__} is not registered."
    if callable(loss):
        comments["loss"] = "The run cannot be repeated from this file: its loss was a Python function."
    config = Config(
        method=chosen.name or type(chosen).__name__,
        data=clients.data_name,
        split=SPLIT,
        clients=len(clients),
        model=described(model),
        head=head,
        loss=None if callable(loss) else loss,
        rounds=rounds,
        participation=participation,
        batch_size=batch_size,
        local_epochs=local_epochs,
        local_steps=local_steps,
        seed=seed,
        eval_every=eval_every,
        workers=workers,
        chunk=chunk,
        device=str(device),
        precision=precision,
        engine=engine,
    )
    return _train(config, comments, chosen, clients, model, loss, start, progress)


def run_config(config: Config, progress: Report | None = None) -> Result:
    """Load, split, train and save what a config says."""
    target = Path(config.out) if config.out is not None else folder.fresh(RUNS, config.method)
    folder.check(target, config.overwrite)
    method = methods.build(config.method, dict(config.set))
    if config.model.startswith("<"):
        raise InputError(
            f"the model was a Python object, {config.model}, that cannot be made from its name; give --model."
        )
    comments: dict[str, str] = {}
    dataset = datasets.load(config.data)
    stored = dict[str, Any](data=_absolute(config.data))
    if config.split.endswith(".json"):
        clients = dataset.with_split(config.split)
        comments["split"] = f"{clients.split_name}, seed {clients.seed}"
        stored["split"] = SPLIT
    else:
        clients = dataset.split(config.split, clients=config.clients, seed=config.seed)
    if config.clients not in (len(clients), Config.clients):
        log.warning("the split has %d clients of its own; clients = %d is not used", len(clients), config.clients)
    stored["clients"] = len(clients)
    result = _train(
        replace(config, **stored), comments, method, clients, config.model, config.loss, config.start, progress
    )
    if config.out is None:
        target = folder.fresh(RUNS, config.method)  # another run may have taken the first one
    result.save(target, config.overwrite)
    return result


def _train(
    config: Config,
    comments: dict[str, str],
    method: Method,
    clients: Clients,
    model: Model,
    loss: str | Loss | None,
    start: Start | None,
    progress: Report | None,
) -> Result:
    """Everything after the checks of names: both ways to start a run come here."""
    _check_clients(clients)
    if method.needs_groups and clients.groups is None:
        raise InputError(
            f"{config.method} needs a split that knows the clients' true groups, got {clients.split_name}."
        )
    device, dtype = _device(config.device), PRECISIONS[config.precision]
    outputs = clients.classes or 1
    task = Task(
        build(model, clients.shape, outputs),
        _loss(loss, clients.classes),
        head=config.head,
        seed=config.seed,
        device=device,
        dtype=dtype,
    )
    begun: State | None = None
    if start is not None:
        begun = starts.read(start)
        starts.begin(task, begun)
        comments["start"] = f"a copy of {start}" if isinstance(start, str | PathLike) else "given in Python"
    settings = Settings(
        rounds=config.rounds,
        participation=config.participation,
        batch_size=config.batch_size,
        local_epochs=config.local_epochs,
        local_steps=config.local_steps,
        seed=config.seed,
        eval_every=config.eval_every,
        workers=config.workers,
        chunk=config.chunk,
        warm=start is not None or isinstance(model, nn.Module),
        reference=config.engine == "reference",
    )
    data = engine_data(clients, device, dtype)
    began = time.perf_counter()
    outcome = Simulation(method, task, data, settings, clients.classes).run(progress)
    seconds = time.perf_counter() - began

    position = {name: at for at, name in enumerate(data.names)}
    back = torch.tensor([position[name] for name in clients.names])  # from the engine's order to the clients' own
    rows = outcome.personal_rows if data.names == clients.names else outcome.personal_rows[back.to(device)]
    blueprint = Blueprint.of(
        task,
        model=config.model,
        shape=clients.shape,
        outputs=outputs,
        seed=config.seed,
        precision=config.precision,
    )
    shared = untrained(task.module, task.layout.names)
    hyper = {name: value for name, value in method.hyper().items() if _in_toml(value)}
    lost = [one.name for one in fields(method) if one.name not in hyper and getattr(method, one.name) != one.default]
    if lost:
        comments["set"] = f"The run cannot be repeated from this file: it cannot hold {listing(lost)}."

    def write_rest(into: Path) -> None:
        clients.save_split(into / SPLIT)
        if begun is not None:
            write_state(begun, into / START)

    return Result(
        config=replace(config, set=hyper, start=None if begun is None else START),
        about=_about(config, method, clients, outcome, seconds),
        names=clients.names,
        sizes={part: getattr(clients, part).sizes.numpy() for part in ("train", "validation", "test")},
        personal=_scores(outcome.personal, back),
        global_=None if outcome.globally is None else _scores(outcome.globally, back),
        rounds=outcome.history,
        client_rounds=sorted(outcome.client_notes, key=lambda row: (row["round"], row["client"])),
        weights=Kept(blueprint, rows, outcome.global_rows, model, shared),
        write_rest=write_rest,
        comments=comments,
    )


def _check_clients(clients: Clients) -> None:
    idle = [clients.names[i] for i in (clients.train.sizes == 0).nonzero().flatten().tolist()]
    if idle:
        raise InputError(f"every client needs training examples, got none for {listing(idle)}; leave them out.")
    for what, values in (("x", clients.x), ("y", clients.y)):
        # A sum is finite only if all its terms are; in float64 it cannot overflow by itself.
        if values.is_floating_point() and not bool(torch.isfinite(values.sum(dtype=torch.float64))):
            raise InputError(f"{what} must be finite, but it holds NaN or infinity; remove or fill such values.")


def engine_data(clients: Clients, device: torch.device | str = "cpu", dtype: torch.dtype = torch.float32) -> Data:
    """The clients as an engine takes them: in canonical order, by name."""
    order = sorted(range(len(clients)), key=lambda i: clients.names[i])

    def numbers(values: Tensor) -> Tensor:
        return values.to(device=device, dtype=dtype if values.is_floating_point() else None)

    parts = (clients.train, clients.validation, clients.test)
    if order != list(range(len(order))):
        parts = tuple(part.take(order) for part in parts)  # type: ignore[assignment]
    groups = None if clients.groups is None else tuple(clients.groups[i] for i in order)
    return Data(numbers(clients.x), numbers(clients.y), tuple(clients.names[i] for i in order), *parts, groups)


def _loss(loss: str | Loss | None, classes: int | None) -> str | Loss:
    """The loss that was asked for, or the one for this kind of labels."""
    fitting = "mse" if classes is None else "cross_entropy"
    if loss is None or callable(loss):
        return loss or fitting
    if loss not in LOSSES:
        raise unknown("loss", loss, LOSSES)
    if loss != fitting:
        labels = "real-valued targets" if classes is None else f"{classes} classes"
        raise InputError(f"the loss {loss!r} does not fit the data, which have {labels}; use {fitting!r}.")
    return loss


def _device(name: str) -> torch.device:
    try:
        device = torch.device(name)
        torch.zeros(1, device=device).add_(1)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = str(error).splitlines()[0].rstrip(".")
        raise InputError(f"cannot compute on the device {name!r}: {reason}; use --device cpu.") from None
    return device


def _absolute(source: str) -> str:
    """A name as it is, a file's path so that it is found from anywhere."""
    return source if source in datasets.names() else str(Path(source).resolve())


def _in_toml(value: Any) -> bool:
    if isinstance(value, tuple | list):
        return all(_in_toml(one) for one in value)
    return isinstance(value, bool | int | float | str)


def _scores(scores: Mapping[str, Tensor], back: Tensor) -> Scores:
    """Scores by the names a person uses: those of test data, the result, come without a prefix."""
    found: Scores = {name.removeprefix("test_"): values[back].numpy() for name, values in scores.items()}
    return dict(sorted(found.items(), key=lambda item: ("_" in item[0], item[0])))


def _about(config: Config, method: Method, clients: Clients, outcome: Outcome, seconds: float) -> dict[str, Any]:
    interrupted = outcome.rounds_done < outcome.rounds_planned
    notes = []
    if interrupted:
        notes.append(f"Interrupted after round {outcome.rounds_done} of {outcome.rounds_planned}.")
    for part in ("validation", "test"):
        without = np.flatnonzero(getattr(clients, part).sizes.numpy() == 0).tolist()
        if without:
            who = listing([clients.names[i] for i in without])
            notes.append(f"Clients without {part} data are left out of the {part} figures: {who}.")
    apart = {"method", "set", "data", "split", "model", "seed", "rounds", "out", "overwrite"}
    return {
        "method": config.method,
        "hyper": method.hyper(),
        "data": clients.data_name,
        "split": clients.split_name,
        "split_hash": clients.hash,
        "split_seed": clients.seed,
        "clients": len(clients),
        "model": config.model,
        "seed": config.seed,
        "rounds": config.rounds,
        "rounds_planned": outcome.rounds_planned,
        "rounds_done": outcome.rounds_done,
        "interrupted": interrupted,
        "notes": notes,
        "settings": {one.name: getattr(config, one.name) for one in fields(config) if one.name not in apart},
        "personal": None,  # both are worked out from the clients' scores
        "global": None,
        "communication": asdict(outcome.communication),
        "timing": {
            "seconds_per_round": outcome.seconds_per_round,
            "seconds": seconds,
            "chunk": outcome.executor.chunk,
            "stacked": outcome.executor.stacked,
            "reason": outcome.executor.reason,
            "workers": outcome.workers,
        },
        "versions": {name: version(name) for name in ("bespokefl", "torch", "numpy")}
        | {"python": platform.python_version()},
    }
