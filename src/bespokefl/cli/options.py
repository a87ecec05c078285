"""Command-line options: those of a run, derived from `RunSettings`, and a few that several commands share."""

import ast
import difflib
import inspect
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import MISSING, Field, fields
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from bespokefl.cli.completion import BY_SETTING
from bespokefl.core.errors import PYTHON, DiskError, InputError, settings_written_in
from bespokefl.core.system.files import FULL
from bespokefl.workflows.run.settings import OUTPUT, TRAINING, RunSettings, checked, read

training_option = partial(typer.Option, rich_help_panel=TRAINING)
MAX_SEEDS = 1000
MIN_SIMILARITY = 0.75  # of an unknown option to a hyper-parameter that is suggested
TAKE_SET = ("run", "tune", "compare", "deploy")  # commands with --set
INTERRUPTED = 130  # the exit code of shells: 128 + SIGINT


def option(one: Field[Any], help: str = "") -> Any:
    """The annotation of the flag for a field of `RunSettings`; `help` replaces the field's own help text."""
    text = help or one.metadata["help"]
    if one.type is not bool and not help and one.default not in (None, "", MISSING):
        text += f" Default: {one.default}."
    kind: Any = one.type
    kind = bool if kind is bool else kind | None
    flag = f"--{one.name.replace('_', '-')}"
    values, panel = BY_SETTING.get(one.name), one.metadata["panel"]
    made = typer.Option(flag, help=text, show_default=False, rich_help_panel=panel, autocompletion=values)
    return Annotated[kind, made]


def _run_options() -> dict[str, Any]:
    """The parameters of a command that takes the settings of a run, by name."""
    options = {one.name: option(one) for one in fields(RunSettings) if one.name not in ("method", "set")}
    method, hyper = _FIELDS["method"].metadata, _FIELDS["set"].metadata
    pairs = typer.Option("--set", metavar="KEY=VALUE", help=hyper["help"], rich_help_panel=hyper["panel"])
    return {
        "method": Annotated[
            str | None,
            typer.Argument(help=f"{method['help']} Can be set in --config.", autocompletion=BY_SETTING["method"]),
        ],
        "config": Annotated[Path | None, typer.Option(help="A TOML file with settings; flags take precedence.")],
        **options,
        "set_": Annotated[list[str] | None, pairs],
    }


_FIELDS = {one.name: one for one in fields(RunSettings)}
RUN_OPTIONS = _run_options()
Workers, Out, Overwrite = (RUN_OPTIONS[name] for name in ("workers", "out", "overwrite"))
_BEFORE = "Default: as before the interruption."
WorkersAsBefore = option(_FIELDS["workers"], f"{_FIELDS['workers'].metadata['help']} {_BEFORE}")
StateDirAsBefore = option(_FIELDS["state_dir"], f"Directory for files with the clients' states. {_BEFORE}")
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print only the essential line.", rich_help_panel=OUTPUT)]
Verbose = Annotated[
    bool, typer.Option("--verbose", "-v", help="Print which choices are made, and why.", rich_help_panel=OUTPUT)
]
Metric = Annotated[
    str | None,
    training_option(
        metavar="NAME",
        help="The metric that decides: tuned on validation data, compared on test data. Default: accuracy, or loss for "
        "regression. Others: balanced_accuracy, auc, average_precision, f1, log_loss, brier, ece; rmse, mae, r2.",
    ),
]
RunFolder = Annotated[Path, typer.Argument(metavar="RUN", help="The directory of a run.")]


def takes_run(
    *, without: Sequence[str] = (), only: Sequence[str] | None = None
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command the options of a run, or some of them; their values become its first argument, `settings`."""
    taken = {key: kind for key, kind in RUN_OPTIONS.items() if key not in without and (only is None or key in only)}

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        keyword = inspect.Parameter.KEYWORD_ONLY
        own = [one.replace(kind=keyword) for one in list(inspect.signature(command).parameters.values())[1:]]
        flags = [one.name for one in fields(RunSettings) if one.type is bool]
        shared = [
            inspect.Parameter(key, keyword, default=False if key in flags else None, annotation=kind)
            for key, kind in taken.items()
        ]

        def call(**values: Any) -> None:
            mine = {one.name: values.pop(one.name) for one in own}
            values.setdefault("method", command.__name__)  # a command without this argument trains several methods
            command(_settings(values), **mine)

        parameters = [*shared, *own]
        call.__name__, call.__doc__ = command.__name__, command.__doc__
        call.__annotations__ = {one.name: one.annotation for one in parameters}
        call.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        return call

    return decorate


def _settings(given: dict[str, Any]) -> RunSettings:
    """The settings in a config file, in flags and in --set; flags take precedence over the file."""
    path, pairs = given.pop("config", None), given.pop("set_", None)
    flags = {key: value for key, value in given.items() if value is not None and value is not False}
    file, hyper = read(path) if path is not None else {}, _hyper(pairs or [])
    before, table = file.get("method"), file.get("set", {})
    method = flags.get("method", before)
    if table and before is not None and method != before:
        print(f"warning: [set] in the config is for {before} and is not used for {method}.", file=sys.stderr)
        table = {}
    both = {**table, **hyper} if isinstance(table, dict) else table
    with settings_written_in(PYTHON):  # mistakes in the file are about its keys, not about flags
        for key in file.keys() & _FIELDS.keys() - flags.keys():
            checked(_FIELDS[key], file[key])
    return RunSettings.of({**file, **flags, "set": both})


def _hyper(pairs: list[str]) -> dict[str, Any]:
    """Hyper-parameters from pairs such as `lr=0.1`."""
    found: dict[str, Any] = {}
    for pair in pairs:
        key, equals, text = pair.partition("=")
        if not equals or not key.strip():
            raise InputError(f"--set must be followed by key=value, such as lr=0.1, got {pair!r}.")
        found[key.strip().replace("-", "_")] = literal(text.strip())
    return found


def as_hyper_parameter(arguments: Sequence[str], option: str) -> list[str] | None:
    """The arguments with --set for an option that is a hyper-parameter of one of the methods that they name.

    In `tune`, several values become a grid. None if it is no hyper-parameter, or no command that takes --set.
    """
    at = next((at for at, one in enumerate(arguments) if one == option or one.startswith(f"{option}=")), None)
    if at is None or arguments[0] not in TAKE_SET or not option.startswith("--"):
        return None
    name = option.removeprefix("--").replace("-", "_")
    if name not in _hyper_parameters(arguments):
        return None
    _, equals, value = arguments[at].partition("=")
    rest = list(arguments[at + 1 :])
    if not equals and not rest:
        raise InputError(f"{option} must be followed by a value, as in {option} 0.1.")
    value = value if equals else rest.pop(0)
    several = "," in value and not value.startswith(("(", "["))
    if several and arguments[0] == "compare":
        raise InputError(
            f"{option} must be one value, got {value!r}; values to try when tuning: --grid METHOD.{name}={value}."
        )
    flag = "--grid" if several and arguments[0] == "tune" else "--set"
    return [*arguments[:at], flag, f"{name}={value}", *rest]


def usage_message(arguments: Sequence[str], error: Any) -> str:
    """The sentences of a mistake in the command line; those of an unknown option say how hyper-parameters are set."""
    said = re.sub(r"( ?Did you mean [^?]*\?)\1+", r"\1", " ".join(str(error.format_message()).split()))
    option = getattr(error, "option_name", None)
    if option is None or not arguments or arguments[0] not in TAKE_SET:
        return said
    flags = [f"--{name.replace('_', '-')}" for name in _hyper_parameters(arguments)]
    near = difflib.get_close_matches(str(option), flags, n=1, cutoff=MIN_SIMILARITY)
    if near:
        said = f"No such option {option!r}. Did you mean {near[0]!r}, a hyper-parameter of the method?"
    return f'{said} A hyper-parameter is set with --set NAME=VALUE, see "bespoke methods METHOD".'


def _hyper_parameters(arguments: Sequence[str]) -> list[str]:
    """The names of the hyper-parameters of all methods that the arguments name."""
    from bespokefl import methods  # imports torch, which the command needs anyway

    known: dict[str, None] = {}
    for one in _named_methods(arguments):
        with suppress(InputError):
            known |= dict.fromkeys(methods.find(one)().hyper())
    return [*known]


def _named_methods(arguments: Sequence[str]) -> list[str]:
    """What may be a method: arguments, the value of --method, the method of a config file."""
    found = [one for one in arguments[1:] if not one.startswith("-")]
    for at, one in enumerate(arguments[:-1]):
        if one == "--config":
            with suppress(InputError):
                found.append(str(read(arguments[at + 1]).get("method")))
    return [one for one in found if ":" in one or one.isidentifier() or "-" in one]


def literal(text: str) -> Any:
    """The number, list, true or false that a text denotes, or else the text itself."""
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    for parse in (ast.literal_eval, float):
        with suppress(ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
            return parse(text)
    return text


def numbers(text: str | None) -> list[int] | None:
    """Return the seeds of a text: `5` are the five seeds 0 to 4, `0-9` is a range, `0,1,2` a list, `0` is seed 0."""
    if text is None:
        return None
    seeds: list[int] = []
    for part in text.split(","):
        ends = re.fullmatch(r"\s*(?:(\d+)\s*-)?\s*(-?\d+)\s*", part)
        if ends is None or (ends[1] is not None and int(ends[1]) > int(ends[2])):
            expected = "a number of seeds, such as 5, or seeds, such as 0-9 or 0,1,2"
            raise InputError(f"--seeds must be {expected}, got {text!r}.")
        first, last = int(ends[1] or ends[2]), int(ends[2])
        if "," not in text and ends[1] is None and last > 0:
            first, last = 0, last - 1
        if last - first >= MAX_SEEDS:
            raise InputError(
                f"--seeds {text} are {last - first + 1:,} seeds, more than {MAX_SEEDS:,}; to run one seed, such as 7, "
                "give --seeds 7-7."
            )
        seeds += range(first, last + 1)
    if len(set(seeds)) < len(seeds):
        twice = next(seed for seed in seeds if seeds.count(seed) > 1)
        raise InputError(f"--seeds {text} has seed {twice} twice; give different seeds.")
    return seeds


@contextmanager
def printing_results(path: Path | None) -> Iterator[None]:
    """Print results. If the output goes to a full disk, the error says where the results are."""
    try:
        yield
        sys.stdout.flush()
    except OSError as error:
        if error.errno not in FULL:
            raise
        raise DiskError(
            f"cannot write the output: {error.strerror}", kept=f"the results are in {str(path)!r}"
        ) from None
