"""A run: clients, a method and a model in, a result out."""

from contextlib import ExitStack
from dataclasses import replace
from os import PathLike
from pathlib import Path
from shlex import quote
from typing import Any

from bespokefl import data as datasets
from bespokefl import methods
from bespokefl.core.errors import DiskError, InputError
from bespokefl.core.files import absolute
from bespokefl.core.method import Method
from bespokefl.core.nn.losses import Loss
from bespokefl.data.clients import Clients
from bespokefl.data.sources.synthetic import is_synthetic
from bespokefl.engines.progress import Report
from bespokefl.engines.storage.checkpoints import OtherRunError
from bespokefl.workflows.results import run_directory
from bespokefl.workflows.results.models import Model, described
from bespokefl.workflows.results.result import Result
from bespokefl.workflows.run import resume as unfinished
from bespokefl.workflows.run.client_loading import load_clients
from bespokefl.workflows.run.initial_weights import Start
from bespokefl.workflows.run.settings import Config
from bespokefl.workflows.run.trainer import train


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

    method      with its hyper-parameters, `methods.Ditto(prox_weight=0.5)`, or the name of one with its defaults
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
    chosen = methods.of(method)
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
        split=run_directory.SPLIT_FILE,
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
        return train(*given)
    with run_directory.held(Path(checkpoint)) as place:
        try:
            return train(*given, place)
        except DiskError as error:
            raise run_directory.no_room(error, place) from None
        except OtherRunError as error:
            raise InputError(f"{error.fact}; use another folder.") from None


def run_config(
    config: Config, progress: Report | None = None, *, resumed: bool = False, clients: Clients | None = None
) -> Result:
    """Load, split, train and save what a config says; `clients` are those that it would load, where they are there."""
    target = run_directory.steady(run_directory.RUNS / config.method if config.out is None else Path(config.out))
    if config.out is None:
        run_directory.check_above(target)  # before anything is made
    elif not resumed:
        run_directory.check(target, config.overwrite)
    with run_directory.held(target, other=config.out is None) as target:
        if not resumed:
            run_directory.check(target, config.overwrite)  # now that nobody else is there
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
        stored["split"] = run_directory.SPLIT_FILE
    given = (replace(config, **stored), comments, method, clients, config.model, config.loss, config.start, progress)
    with ExitStack() as ending:
        other = run_directory.ReplacedFolder(target) if config.overwrite and not resumed else None
        try:
            put = None if other is None else other.replace
            result = train(*given, target, put=put, ending=ending, command=f"bespoke resume {quote(str(target))}")
            result.save(target, config.overwrite)
        except DiskError as error:
            raise run_directory.no_room(error, target, stays=other is not None and other.stays) from None
    return result


def resume(
    path: str | PathLike[str],
    progress: Report | None = None,
    *,
    state_dir: str | PathLike[str] | None = None,
    workers: int | None = None,
) -> Result:
    """Go on with a run that was stopped or killed, from its last checkpoint; the result is as if it had not been.

    state_dir   keep clients' states in files here from now on; None: where they were
    workers     processes from now on, 0 for all cores; None: as many as there were
    """
    place = run_directory.steady(Path(path))
    config = unfinished.read(place)
    states = config.state_dir if state_dir is None else str(state_dir)
    number = config.workers if workers is None else workers
    try:
        return run_config(replace(config, out=str(place), state_dir=states, workers=number), progress, resumed=True)
    except OtherRunError as error:
        raise unfinished.refused(error, place, config) from None


def _absolute(source: str) -> str:
    """A name as it is, a file's path so that it is found from anywhere."""
    return source if source in datasets.names() or is_synthetic(source) else str(absolute(source))
