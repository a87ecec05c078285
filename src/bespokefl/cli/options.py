"""The options that several commands have, and how they become a config."""

import ast
import inspect
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Annotated, Any

import typer

from bespokefl.core.errors import DiskError, InputError
from bespokefl.core.files import FULL
from bespokefl.workflows.run.settings import Config, read

INTERRUPTED = 130  # as shells have it: 128 + SIGINT

TABLES, PRIVATE = "Your own data", "What uploads may tell"
TRAINED, LOCALLY, COMPUTED, WRITTEN = (
    "What is trained",
    "How it is trained",
    "How it is computed",
    "What is shown and written",
)

Text = str | None
Whole = int | None
Real = float | None


@contextmanager
def telling(path: Path | None) -> Iterator[None]:
    """Print what came out. Where that goes to a full disk, it is said that the results are not lost."""
    try:
        yield
        sys.stdout.flush()
    except OSError as error:
        if error.errno not in FULL:
            raise
        raise DiskError(
            f"cannot write the output: {error.strerror}", kept=f"the results are in {str(path)!r}"
        ) from None


def _option(kind: Any, key: str, help: str, panel: str = TRAINED) -> Any:
    default = getattr(Config, key)
    told = help if default in (None, "") else f"{help} Default: {default}."
    return Annotated[
        kind, typer.Option(f"--{key.replace('_', '-')}", help=told, show_default=False, rich_help_panel=panel)
    ]


def _switch(key: str, help: str) -> Any:
    return Annotated[bool, typer.Option(f"--{key.replace('_', '-')}", help=help, rich_help_panel=WRITTEN)]


Set = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help='A hyper-parameter of the method, such as lr=0.1; see "bespoke methods METHOD". Can be repeated.',
        rich_help_panel=LOCALLY,
    ),
]
Workers = _option(Whole, "workers", "Processes; 0: all cores. Does not change the result.", COMPUTED)
StateDir = _option(Text, "state_dir", "Keep clients' states in files here, instead of in memory if they fit.", COMPUTED)
Out = _option(Text, "out", "The folder to write; a new one under runs/ if not given.", WRITTEN)
Overwrite = _switch("overwrite", "Replace what is there already.")
Quiet = Annotated[
    bool, typer.Option("--quiet", "-q", help="Print only the one line that matters.", rich_help_panel=WRITTEN)
]
Verbose = Annotated[bool, typer.Option("--verbose", "-v", help="Say what is chosen and why.", rich_help_panel=WRITTEN)]
RunFolder = Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a run.")]

# What makes a run, in the order of the help; each is a key of Config but `config` and `set_`.
RUN: dict[str, Any] = {
    "method": Annotated[Text, typer.Argument(help='A method: see "bespoke methods". May stand in the config instead.')],
    "config": Annotated[Path | None, typer.Option(help="A TOML file with the same keys; flags win.")],
    "data": _option(Text, "data", "A name (bespoke data list), or a file or folder of your own."),
    "label": _option(Text, "label", "Of a table: the column to be predicted.", TABLES),
    "client": _option(Text, "client", "Of a table: the column that names each row's client.", TABLES),
    "drop": _option(Text, "drop", "Columns to leave out: id,date.", TABLES),
    "task": _option(Text, "task", "classification or regression; else as the labels look.", TABLES),
    "text": _option(Text, "text", "The column of texts, if they are the examples.", TABLES),
    "missing": _option(
        Text, "missing", "Missing values: refuse, mean (of the training data), drop their rows.", TABLES
    ),
    "scale": _option(Text, "scale", "Scale features by training data: pooled, own (each client's), none.", TABLES),
    "vocabulary": _option(Whole, "vocabulary", "Of texts: how many words at most.", TABLES),
    "length": _option(Whole, "length", "Of texts: words that each is cut or filled to.", TABLES),
    "split": _option(
        Text, "split", '"dirichlet(alpha=0.4)", iid, by_column, …: see "bespoke split"; or a saved split.json.'
    ),
    "clients": _option(
        Whole, "clients", "Number of clients to split the data among. Default: the split's own (of its paper), else 20."
    ),
    "fractions": _option(Text, "fractions", "Of train, validation and test.", TABLES),
    "model": _option(Text, "model", '"mlp(hidden=(50,))", one of "bespoke models", or your own as module:function.'),
    "head": _option(Text, "head", 'The model\'s head, by name; else "head", else the last linear layer.'),
    "loss": _option(Text, "loss", "cross_entropy or mse; chosen by the labels if not given."),
    "start": _option(Text, "start", "Begin with these weights: a .safetensors file, or a run with a global model."),
    "newcomers": _option(Real, "newcomers", "Share of clients held back from training, personalized at the end."),
    "set_": Set,
    "rounds": _option(Whole, "rounds", "Rounds of training.", LOCALLY),
    "participation": _option(Real, "participation", "Share of the clients drawn in a round, in (0, 1].", LOCALLY),
    "batch_size": _option(Whole, "batch_size", "Examples per step.", LOCALLY),
    "local_epochs": _option(Whole, "local_epochs", "Passes over its data that a client makes in a round.", LOCALLY),
    "local_steps": _option(Whole, "local_steps", "Steps that a client makes in a round, instead of epochs.", LOCALLY),
    "seed": _option(Whole, "seed", "Decides every random draw: split, start, batches.", LOCALLY),
    "workers": Workers,
    "chunk": _option(Whole, "chunk", "Clients computed at once; chosen by a rule if not given.", COMPUTED),
    "device": _option(Text, "device", "cpu, cuda, cuda:1, …", COMPUTED),
    "precision": _option(Text, "precision", "float32 or float64.", COMPUTED),
    "engine": _option(Text, "engine", "simulation, or reference: the plain PyTorch loop.", COMPUTED),
    "faults": _option(
        Text, "faults", 'Simulated failures, by share of clients: "nan:0.05, huge:0.01, drop:0.1, slow:0.1".', LOCALLY
    ),
    "clip": _option(Real, "clip", "Cut every upload to this length, from where it began.", PRIVATE),
    "noise": _option(
        Real, "noise", "Gaussian noise on uploads, in units of --clip; what it is worth is told at the end.", PRIVATE
    ),
    "delta": _option(Real, "delta", "The δ for which ε is told. Default: 1e-05.", PRIVATE),
    "checkpoint_every": _option(
        Text, "checkpoint_every", "Rounds (10) or seconds (60s) between checkpoints; 0: only when stopped.", COMPUTED
    ),
    "state_dir": StateDir,
    "eval_every": _option(Whole, "eval_every", "Rounds between evaluations; 0: only at the end.", WRITTEN),
    "keep_rounds": _switch("keep_rounds", "Keep the common model of every round, for newcomers."),
    "out": Out,
    "overwrite": Overwrite,
}


def takes_run(
    *, without: Sequence[str] = (), only: Sequence[str] | None = None
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command the options of a run, read into its first argument, `settings`.

    The command's own options stand after the method in the help; `without` names those of a run that it has not,
    `only` those that it has.
    """
    taken = {key: kind for key, kind in RUN.items() if key not in without and (only is None or key in only)}

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        own = list(inspect.signature(command).parameters.values())[1:]
        of_run = [
            inspect.Parameter(
                key,
                inspect.Parameter.KEYWORD_ONLY,
                default=False if key in ("overwrite", "keep_rounds") else None,
                annotation=kind,
            )
            for key, kind in taken.items()
        ]
        mine = [one.replace(kind=inspect.Parameter.KEYWORD_ONLY) for one in own]

        def call(**values: Any) -> None:
            kept = {one.name: values.pop(one.name) for one in mine}
            if "method" not in taken:
                values["method"] = command.__name__  # it has several, of its own
            command(_config(values), **kept)

        first = int("method" in taken)
        parameters = [*of_run[:first], *mine, *of_run[first:]]
        call.__name__, call.__doc__ = command.__name__, command.__doc__
        call.__annotations__ = {one.name: one.annotation for one in parameters}
        call.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        return call

    return decorate


def _config(given: dict[str, Any]) -> Config:
    """What was asked for: the config file, the flags, the hyper-parameters."""
    path, pairs = given.pop("config", None), given.pop("set_", None)
    flags = {key: value for key, value in given.items() if value is not None and value is not False}
    file, hyper = read(path) if path is not None else {}, _hyper(pairs or [])
    before, table = file.get("method"), file.get("set", {})
    method = flags.get("method", before)
    if table and before is not None and method != before:
        print(f"warning: [set] in the config is for {before} and is not used for {method}.", file=sys.stderr)
        table = {}
    both = {**table, **hyper} if isinstance(table, dict) else table
    return Config.of({**file, **flags, "set": both})


def _hyper(pairs: list[str]) -> dict[str, Any]:
    """`lr=0.1` as a name and a value: a number, a list, true, false, or else text."""
    found: dict[str, Any] = {}
    for pair in pairs:
        key, equals, text = pair.partition("=")
        if not equals or not key.strip():
            raise InputError(f"--set must be followed by key=value, such as lr=0.1, got {pair!r}.")
        found[key.strip().replace("-", "_")] = literal(text.strip())
    return found


def literal(text: str) -> Any:
    """A number, a list, true, false, or else the text itself."""
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    for read_as in (ast.literal_eval, float):
        with suppress(ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
            return read_as(text)
    return text


def numbers(text: str | None) -> list[int] | None:
    """`0,1,2` as seeds."""
    if text is None:
        return None
    try:
        return [int(one) for one in text.split(",")]
    except ValueError:
        raise InputError(
            f"--seeds must be whole numbers with commas between them, such as 0,1,2, got {text!r}."
        ) from None
