"""What a run is made of: every option, its default, and what values make sense.

The same keys are flags of `bespoke run`, lines of a TOML file and arguments of `bespokefl.run`. Names (of methods,
data, splits, models, losses) are looked up where they are used; everything else is checked here.
"""

import math
import operator
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from os import PathLike
from pathlib import Path
from types import NoneType
from typing import Any, get_args

from bespokefl.core.errors import InputError, in_brief, unknown
from bespokefl.workflows.run import toml

LOADING = ("data", "label", "client", "drop", "task", "text", "split", "clients", "fractions")  # what makes clients
PATHS = ("data", "split", "start")  # keys that may name a file
SPLIT = "dirichlet(alpha=0.4)"
MOST = 10**9  # of whatever is counted
PLACES = ("out", "overwrite")  # where to write; not part of what makes the result


@dataclass(frozen=True, kw_only=True)
class Config:
    """One run. Everything but the method has a default."""

    method: str
    data: str = "digits"  # a name, or an .npz file with x, y and perhaps client
    label: str | None = None  # of a table: the column to be predicted; None: y, label or target
    client: str | None = None  # of a table: the column that names each row's client; None: client
    drop: str = ""  # of a table: columns to leave out, with commas between them
    task: str | None = None  # classification or regression; None: as the labels look
    text: str | None = None  # of a table: the column of texts that are the examples
    missing: str = "refuse"  # values that are missing: refuse, mean (of the training data), or drop their rows
    scale: str | None = None  # pooled, own or none; None: pooled for tables, none for arrays
    vocabulary: int | None = None  # of texts: how many words at most
    length: int | None = None  # of texts: words that each is cut or filled to
    split: str | None = None  # or a split.json; None: by_column where the data name their clients, else SPLIT
    clients: int | None = None  # None: as many as the paper of a split has, else 20
    fractions: str = "0.6,0.2,0.2"  # of train, validation and test
    model: str = "mlp"  # a name, "mlp(hidden=(50,))", or "module:function"
    head: str | None = None  # None: the layer "head", else the last linear layer
    loss: str | None = None  # None: cross_entropy for classes, mse for real-valued targets
    rounds: int = 20
    participation: float = 1.0  # share of clients drawn in a round
    batch_size: int = 10
    local_epochs: int = 1
    local_steps: int | None = None  # instead of local_epochs
    seed: int = 0
    newcomers: float = 0.0  # share of clients held back from training and personalized at the end
    keep_rounds: bool = False  # keep the common model of every round, for newcomers
    eval_every: int = 5  # rounds between evaluations, which take about half a round each; 0: only at the end
    workers: int = 0  # 0: all cores
    chunk: int | None = None  # None: chosen by a rule
    device: str = "cpu"
    precision: str = "float32"
    engine: str = "simulation"
    faults: str = ""  # simulated: "nan:0.05, huge:0.01, wrong-shape:0.01, slow:0.1, drop:0.1"
    clip: float | None = None  # how far an upload may be from where it began, as a vector's length
    noise: float | None = None  # Gaussian, on uploads, in units of clip
    delta: float | None = None  # δ of the (ε, δ) that is told where there is noise; None: 1e-5
    checkpoint_every: str = "60s"  # rounds, or seconds; 0: only when the run is stopped
    state_dir: str | None = None  # keep clients' states in files here; None: in memory, if they fit
    start: str | None = None  # weights to begin with: a .safetensors file, or a run with a global model
    out: str | None = None  # None: a new folder under runs/
    overwrite: bool = False
    set: Mapping[str, Any] = field(default_factory=dict)  # the method's hyper-parameters

    def __post_init__(self) -> None:
        for one in fields(self):
            value = _fitting(one.name, getattr(self, one.name), one.type)
            object.__setattr__(self, one.name, value)
            if one.name in RULES and value is not None:
                fits, expected = RULES[one.name]
                if not fits(value):
                    raise InputError(f"{one.name} must be {expected}, got {value!r}.")
                if isinstance(value, int) and value > MOST:
                    raise InputError(f"{one.name} must be at most {MOST:,}, got {in_brief(value)}.")
        if self.local_steps is not None and self.local_epochs != Config.local_epochs:
            raise InputError(
                f"give local_epochs or local_steps, not both, got {self.local_epochs} and {self.local_steps}."
            )
        if self.noise and self.clip is None:
            raise InputError(f"noise needs clip, as it is measured in units of it, got noise {self.noise:g} alone.")

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> "Config":
        """A config from keys that a person wrote."""
        known = [one.name for one in fields(cls)]
        for key in values:
            if key not in known:
                raise unknown("key", key, known, see="bespoke run --help")
        if values.get("method") is None:
            raise InputError(
                'a run needs a method, got none; name one, as in "bespoke run ditto" (see "bespoke methods").'
            )
        return cls(**values)

    def to_toml(self, comments: Mapping[str, str] | None = None) -> str:
        """The config as TOML, without where its results were written."""
        values = {one.name: getattr(self, one.name) for one in fields(self) if one.name not in PLACES}
        title = "To repeat this run: bespoke run --config config.toml --out ANOTHER_FOLDER"
        return toml.dumps(values, comments, title)


def read(path: str | PathLike[str]) -> dict[str, Any]:
    """The keys of a TOML file, batch_size or batch-size.

    Files that it names are looked for next to it, then in the current folder.
    """
    file = Path(path)
    try:
        written = tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"cannot read the config {str(path)!r}: {error.strerror or error}.") from None
    except (ValueError, RecursionError) as error:  # not UTF-8, not TOML, or too many digits or brackets
        raise InputError(f"{str(path)!r} must be a TOML file, which it is not: {in_brief(error)}.") from None
    values: dict[str, Any] = {}
    for key, value in written.items():
        name = key.replace("-", "_")
        if name in values:
            raise InputError(f"{str(path)!r} has {name} twice; leave one out.")
        values[name] = value
    for key in PATHS:
        value = values.get(key)
        if isinstance(value, str) and ("/" in value or Path(value).suffix) and (file.parent / value).exists():
            values[key] = str((file.parent / value).resolve())
    return values


def _whole(value: Any) -> Any:
    return None if isinstance(value, bool) else operator.index(value)


def _number(value: Any) -> Any:
    return None if isinstance(value, bool | str) else float(value)


def _text(value: Any) -> Any:
    if not isinstance(value, str):
        return None
    value.encode()
    return value


def _table(value: Any) -> Any:
    if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
        return None
    return {key: _frozen(one) for key, one in value.items()}


def _frozen(value: Any) -> Any:
    return tuple(_frozen(one) for one in value) if isinstance(value, list | tuple) else value


KINDS: dict[Any, tuple[Callable[[Any], Any], str]] = {
    int: (_whole, "a whole number"),
    float: (_number, "a number"),
    str: (_text, "text"),
    bool: (lambda value: value if isinstance(value, bool) else None, "true or false"),
    Mapping[str, Any]: (_table, "a table of hyper-parameters, such as {lr = 0.1}"),
}


def _fitting(key: str, value: Any, kind: Any) -> Any:
    """The value in the key's type; refuses one that does not fit it."""
    options = get_args(kind) if NoneType in get_args(kind) else (kind,)
    if value is None and NoneType in options:
        return None
    convert, expected = KINDS[options[0]]
    try:
        converted = convert(value)
    except (TypeError, ValueError, OverflowError):
        converted = None
    if converted is None:
        raise InputError(f"{key} must be {expected}, got {value!r}.")
    return converted


def _one_of(*names: str) -> tuple[Callable[[Any], bool], str]:
    return (lambda value: value in names), " or ".join(map(repr, names))


PLACE: tuple[Callable[[Any], bool], str] = (lambda value: "\0" not in value), "a folder, without NUL in its name"
AT_LEAST_ONE: tuple[Callable[[Any], bool], str] = (lambda value: value >= 1), "at least 1"

RULES: dict[str, tuple[Callable[[Any], bool], str]] = {
    "clients": AT_LEAST_ONE,
    "rounds": AT_LEAST_ONE,
    "participation": (lambda value: 0 < value <= 1, "in (0, 1], the share of clients drawn in a round"),
    "batch_size": AT_LEAST_ONE,
    "local_epochs": AT_LEAST_ONE,
    "local_steps": AT_LEAST_ONE,
    "missing": _one_of("refuse", "mean", "drop"),
    "scale": _one_of("pooled", "own", "none"),
    "task": _one_of("classification", "regression"),
    "vocabulary": AT_LEAST_ONE,
    "length": AT_LEAST_ONE,
    "newcomers": (lambda value: 0 <= value < 1, "in [0, 1), the share of clients held back from training"),
    "eval_every": (lambda value: value >= 0, "0 (only at the end) or the number of rounds between evaluations"),
    "workers": (lambda value: value >= 0, "0 (all cores) or a number of processes"),
    "chunk": AT_LEAST_ONE,
    "precision": _one_of("float32", "float64"),
    "engine": _one_of("simulation", "reference"),
    "clip": (lambda value: 0 < value < math.inf, "a number > 0, the length that an upload is cut to"),
    "noise": (lambda value: 0 <= value < math.inf, "a number >= 0, the noise on uploads in units of clip"),
    "state_dir": PLACE,
    "out": PLACE,
    "delta": (lambda value: 0 < value < 1, "in (0, 1), the δ of (ε, δ)"),
}
