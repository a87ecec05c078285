"""A run: clients, a method and a model in, a result out."""

import hashlib
import logging
import time
from contextlib import ExitStack
from dataclasses import fields, replace
from importlib.metadata import version
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from bespokefl import data as datasets
from bespokefl import methods
from bespokefl.core import chance
from bespokefl.core.errors import BespokeError, DiskError, InputError, listing, unknown
from bespokefl.core.losses import LOSSES, Loss
from bespokefl.core.method import Method
from bespokefl.core.task import Task
from bespokefl.data.clients import Clients
from bespokefl.data.folder import divided
from bespokefl.data.prepare import prepare
from bespokefl.engines.checkpoint import Checkpoints, Every
from bespokefl.engines.client import Data
from bespokefl.engines.evaluation import non_finite
from bespokefl.engines.progress import Report
from bespokefl.engines.simulation import Simulated, Simulation
from bespokefl.engines.stopping import stop_softly
from bespokefl.experiments import config as configs
from bespokefl.experiments import folder, privacy, tables
from bespokefl.experiments import start as starts
from bespokefl.experiments.about import summary
from bespokefl.experiments.config import SPLIT, Config
from bespokefl.experiments.final import Final
from bespokefl.experiments.handover import (
    check_clients,
    engine_settings,
    find_device,
    in_order,
    rounds_of,
    scores_of,
    select,
)
from bespokefl.experiments.handover import engine_data as engine_data
from bespokefl.experiments.personalize import labels_of, serve
from bespokefl.experiments.result import Result
from bespokefl.experiments.start import Start
from bespokefl.experiments.weights import (
    PRECISIONS,
    START,
    Blueprint,
    Kept,
    Model,
    Recipe,
    State,
    described,
    untrained,
    write_state,
)
from bespokefl.models import build

log = logging.getLogger("bespokefl")

SPLIT_FILE = "split.json"
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
    scale: str | None = None,
    missing: str = "refuse",
    vocabulary: int | None = None,
    length: int | None = None,
    newcomers: float = 0.0,
    keep_rounds: bool = False,
    eval_every: int = 5,
    workers: int = 0,
    chunk: int | None = None,
    device: str = "cpu",
    precision: str = "float32",
    engine: str = "simulation",
    faults: str = "",
    clip: float | None = None,
    noise: float | None = None,
    delta: float | None = None,
    checkpoint: str | PathLike[str] | None = None,
    checkpoint_every: str | int = "60s",
    state_dir: str | None = None,
    progress: Report | None = None,
) -> Result:
    """Train these clients by this method.

    method      with its hyper-parameters, `methods.Ditto(pull=0.5)`, or the name of one with its defaults
    model       a name ("mlp", "mlp(hidden=(50,))", "module:function"), a function that makes a module, or a module,
                with whose weights it then begins
    local_steps instead of local_epochs
    start       a state dict, a .safetensors file, or the folder of a run, to begin with its global model
    head        the module whose parameters are the head; None: "head", else the last linear layer
    scale       of features, learnt from training data: "pooled" over all clients, each client's "own", "none";
                None: pooled for tables, none for arrays
    missing     values of a table: "refuse", or "mean" of the training data
    vocabulary, length  of texts: words that are known at most, words that each is cut or filled to
    newcomers   share of the clients to hold back from training; they are personalized at the end and reported apart
    keep_rounds keep the common model of every round, for newcomers to choose from (PersFL)
    eval_every  rounds between evaluations of all clients; the last round is always evaluated
    workers     processes, 0 for all cores; they do not change the result
    chunk       clients that are computed at once; None: chosen by a rule
    faults      simulated failures, by share of clients: "nan:0.05, huge:0.01, wrong-shape:0.01, slow:0.1, drop:0.1"
    clip        the length that every upload is cut to, measured from where it began
    noise       Gaussian noise on uploads, in units of clip; result.json then tells each client's ε
    delta       the δ of that (ε, δ); None: 1e-5
    checkpoint  a folder for checkpoints: called again with the same folder, a run that was stopped goes on
    checkpoint_every  rounds (10) or seconds ("60s") between them; 0: only when the run is stopped
    state_dir   keep clients' states in files here; None: in memory, if they fit
    progress    called after every round
    """
    chosen = find_method(method)
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
        split=SPLIT_FILE,
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
        scale=scale,
        missing=missing,
        vocabulary=vocabulary,
        length=length,
        newcomers=newcomers,
        keep_rounds=keep_rounds,
        eval_every=eval_every,
        workers=workers,
        chunk=chunk,
        device=str(device),
        precision=precision,
        engine=engine,
        faults=faults,
        clip=clip,
        noise=noise,
        delta=delta,
        checkpoint_every=str(checkpoint_every),
        state_dir=state_dir,
    )
    given = (config, comments, chosen, clients, model, loss, start, progress)
    if checkpoint is None:
        return _train(*given)
    with folder.held(Path(checkpoint)):
        return _train(*given, Path(checkpoint))


def find_method(method: Method | str) -> Method:
    """A method as it is given, or by its name with its defaults."""
    found = methods.build(method) if isinstance(method, str) else method
    if not isinstance(found, Method):
        raise InputError(f"method must be a method such as methods.Ditto() or its name, got {method!r}.")
    return found


def run_config(
    config: Config, progress: Report | None = None, *, resumed: bool = False, clients: Clients | None = None
) -> Result:
    """Load, split, train and save what a config says; `clients` are those that it would load, where they are there."""
    target = RUNS / config.method if config.out is None else Path(config.out)
    if config.out is None:
        folder.check_above(target)  # before anything is made
    elif not resumed:
        folder.check(target, config.overwrite)
    with folder.held(target, other=config.out is None) as target:
        if not resumed:
            folder.check(target, config.overwrite)  # now that nobody else is there
        return _run_config(config, progress, target, resumed, clients)


def _run_config(
    config: Config, progress: Report | None, target: Path, resumed: bool, clients: Clients | None
) -> Result:
    method = methods.build(config.method, dict(config.set))
    if config.model.startswith("<"):
        raise InputError(
            f"the model was a Python object, {config.model}, that cannot be made from its name; give --model."
        )
    clients = load_clients(config) if clients is None else clients
    comments: dict[str, str] = {}
    stored = dict[str, Any](data=_absolute(config.data), clients=len(clients), split=clients.split_name)
    if config.split is not None and config.split.endswith(".json"):
        comments["split"] = f"{clients.split_name}, seed {clients.seed}"
        stored["split"] = SPLIT_FILE
    given = (replace(config, **stored), comments, method, clients, config.model, config.loss, config.start, progress)
    with ExitStack() as ending:
        result = _train(*given, target, anew=config.overwrite and not resumed, ending=ending)
        try:
            result.save(target, config.overwrite)
        except DiskError as error:
            raise folder.no_room(error, target) from None
    return result


def resume(
    path: str | PathLike[str], progress: Report | None = None, *, state_dir: str | PathLike[str] | None = None
) -> Result:
    """Go on with a run that was stopped or killed, from its last checkpoint; the result is as if it had not been.

    state_dir   keep clients' states in files here from now on; None: where they were
    """
    place = Path(path)
    if not folder.is_unfinished(place):
        if folder.is_run(place):
            raise InputError(f"the run in {str(place)!r} is finished; there is nothing to resume.")
        raise InputError(f"{str(place)!r} is not the folder of an unfinished run: it has no checkpoints.")
    config = Config.of(configs.read(place / "config.toml"))
    states = config.state_dir if state_dir is None else str(state_dir)
    return run_config(replace(config, out=str(place), state_dir=states), progress, resumed=True)


def load_clients(config: Config) -> Clients:
    """The data of a config, split as it says."""
    drop = [one.strip() for one in config.drop.split(",") if one.strip()]
    options = {key: getattr(config, key) for key in ("label", "client", "task", "text", "missing")}
    dataset = datasets.load(config.data, drop=drop, **options)
    if config.split is not None and config.split.endswith(".json"):
        clients = dataset.with_split(config.split)
    else:
        clients = divided(
            dataset,
            config.split,
            SPLIT,
            number=config.clients,
            seed=config.seed,
            fractions=_fractions(config.fractions),
        )
    if config.clients not in (len(clients), None):
        log.warning("the split has %d clients of its own; clients = %d is not used", len(clients), config.clients)
    return clients


def _fractions(text: str) -> tuple[float, float, float]:
    try:
        train, validation, test = (float(one) for one in text.split(","))
    except ValueError:
        raise InputError(f"fractions must be three numbers such as 0.6,0.2,0.2, got {text!r}.") from None
    return train, validation, test


def hold_back(clients: Clients, share: float, seed: int) -> tuple[Clients, Clients | None]:
    """Those that train, and a share of the clients that come later; both keep the split's hash."""
    if not share:
        return clients, None
    if len(clients) < 2:
        raise InputError(f"newcomers = {share} needs at least 2 clients, one to train and one to hold back, got 1.")
    canonical = sorted(range(len(clients)), key=lambda i: clients.names[i])
    late = {canonical[i] for i in chance.sample(len(clients), share, seed, "newcomers")}
    return select(clients, [i for i in range(len(clients)) if i not in late]), select(clients, sorted(late))


def _train(
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
    anew: bool = False,
    ending: ExitStack | None = None,
) -> Result:
    """Everything after the checks of names: both ways to start a run come here.

    anew     what is in the place is of another run
    ending   what is to be left when the results are written
    """
    privacy.check(config)
    everybody = clients
    teachers, _ = hold_back(everybody, config.newcomers, config.seed)
    how = {key: getattr(config, key) for key in ("scale", "missing", "vocabulary", "length")}
    prepared, preparation = everybody, everybody.preparation
    if preparation is None:
        prepared, preparation = prepare(everybody, learn_from=teachers.names, **how)
    check_clients(prepared)
    clients, late = hold_back(prepared, config.newcomers, config.seed)
    if method.needs_groups and clients.groups is None:
        raise InputError(
            f"{config.method} needs a split that knows the clients' true groups, got {clients.split_name}."
        )
    device, dtype = find_device(config.device), PRECISIONS[config.precision]
    outputs = clients.classes or 1
    objective = _loss(loss, clients.classes)
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
    hyper = {name: value for name, value in method.hyper().items() if _in_toml(value)}
    lost = [one.name for one in fields(method) if one.name not in hyper and getattr(method, one.name) != one.default]
    if lost:
        comments["set"] = f"The run cannot be repeated from this file: it cannot hold {listing(lost)}."
    final_config = replace(config, set=hyper, start=None if begun is None else START)

    def write_rest(into: Path) -> None:
        everybody.save_split(into / SPLIT_FILE)
        if begun is not None:
            write_state(begun, into / START)

    def begin(into: Path) -> None:
        write_rest(into)
        folder.write_text(into / "config.toml", final_config.to_toml(comments))

    checkpoints = None
    if place is not None:
        every = Every.of(config.checkpoint_every)
        identity = _identity(final_config, everybody, task)
        checkpoints = Checkpoints(place / folder.CHECKPOINTS, every, identity, begin, anew=anew)
    began = time.perf_counter()
    try:
        outcome = simulation.run(progress, checkpoints)
    except DiskError as error:
        if place is None or checkpoints is None:
            raise
        raise folder.no_room(error, place) from None
    if ending is not None:
        ending.enter_context(stop_softly("the training is over, and its results are being written"))
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
    found = _about(config, method, clients, data, outcome, seconds)
    found["python"] = _from_python(config, method, loss, lost)
    result = Result(
        config=final_config,
        about=found,
        names=clients.names,
        sizes={part: getattr(clients, part).sizes.numpy() for part in tables.SIZES},
        personal=scores_of(clients, data, outcome.personal),
        global_=None if outcome.globally is None else scores_of(clients, data, outcome.globally),
        rounds=rounds_of(clients, data, outcome.history, outcome.by_client),
        client_rounds=sorted(outcome.client_notes, key=lambda row: (row["round"], row["client"])),
        weights=Kept(recipe, in_order(clients, data, outcome.personal_rows), outcome.global_rows),
        final=Final(method, recipe, objective, config.head, outcome.server, task.start, outcome.kept_rows),
        write_rest=write_rest,
        comments=comments,
        preparation=preparation if preparation.changes else None,
        checkpoints=None if place is None else place / folder.CHECKPOINTS,
    )
    if late is not None:
        _serve_late(result, late)
    return result


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
        note = f"The {len(late)} clients held back were not personalized: {reason}."
        log.warning("%s", note)
        result.about["notes"].append(note)


def _from_python(config: Config, method: Method, loss: str | Loss | None, lost: list[str]) -> dict[str, str]:
    """What the files of a run cannot hold, and what it was."""
    found = {}
    if methods.REGISTRY.get(config.method) is not type(method):
        found["method"] = type(method).__name__
    elif lost:
        found["method"] = f"{type(method).__name__} with {listing(lost)}"
    if callable(loss):
        found["loss"] = getattr(loss, "__name__", type(loss).__name__)
    return found


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


def _absolute(source: str) -> str:
    """A name as it is, a file's path so that it is found from anywhere."""
    return source if source in datasets.names() else str(Path(source).resolve())


def _in_toml(value: Any) -> bool:
    if isinstance(value, tuple | list):
        return all(_in_toml(one) for one in value)
    return isinstance(value, bool | int | float | str)


def _about(
    config: Config, method: Method, clients: Clients, data: Data, outcome: Simulated, seconds: float
) -> dict[str, Any]:
    notes = []
    names = clients.label_names
    if names and all(name.isdigit() for name in names) and names != tuple(map(str, range(len(names)))):
        notes.append(f"Labels {listing(names)} are outputs 0 to {len(names) - 1} of the model, in this order.")
        log.warning(notes[-1])
    restored = sum(int(row.get("restored") or 0) for row in outcome.client_notes)
    if restored:
        notes.append(f"A client's head became non-finite and was restored {restored} times: use a smaller head_lr.")
    endless = non_finite(outcome.personal["test_loss"], data.test.sizes, data.names)
    if endless:
        notes.append(f"The test loss is not finite for {listing(endless)}: it is left out of the figures.")
    for part in ("validation", "test"):
        without = np.flatnonzero(getattr(clients, part).sizes.numpy() == 0).tolist()
        if without:
            who = listing([clients.names[i] for i in without])
            notes.append(f"Clients without {part} data are left out of the {part} figures: {who}.")
    origin = {
        "data": clients.data_name,
        "split": clients.split_name,
        "split_hash": clients.hash,
        "split_seed": clients.seed,
        "examples": {
            "shape": clients.shape,
            "tokens": not clients.x.is_floating_point(),
            "labels": None if clients.classes is None else labels_of(clients),
        },
    }
    return summary(
        config,
        method,
        outcome,
        origin=origin,
        names=clients.names,
        notes=notes,
        seconds=seconds,
        executor=outcome.executor,
        workers=outcome.workers,
        states=outcome.states,
    )
