"""The settings of one run: every option with its type, default, help text and check.

`RunSettings` is the only list of options. The flags and help texts of `bespoke run`, the keys of a TOML file, the
arguments of `bespokefl.run`, the validation and `config.toml` all follow from its fields. A new option is a new field
here and a line where it is used. Names (of methods, data sets, splits, models, losses) are looked up where they are
used; every other value is checked here.
"""

import math
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import Field, dataclass, field, fields
from enum import Flag, auto
from functools import partial
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple

from bespokefl.core.errors import InputError, in_brief, spell, unknown
from bespokefl.core.user_input.spec import convert
from bespokefl.workflows.run import toml

DEFAULT_SPLIT = "dirichlet(alpha=0.4)"
MAX_COUNT = 10**9  # the upper limit of every checked integer

# Titles of the groups in `bespoke run --help`.
TRAINING, LOCAL_TRAINING, PRIVACY = "Training", "Local training", "Privacy"
OWN_DATA, COMPUTATION, OUTPUT = "Your own data", "Computation", "Output"


class Mark(Flag):
    """Properties of a setting that decide where it is used."""

    LOADING = auto()  # decides which clients are loaded; not an argument of `bespokefl.run`, which takes clients
    TABLE = auto()  # an option of tables, which a node of a deployment has in its node.toml, too
    PREPARATION = auto()  # decides how examples are preprocessed
    FILE = auto()  # may name a file, which is searched next to the TOML file first
    WRITING = auto()  # decides where results are written; not part of config.toml
    TUNABLE = auto()  # may be part of the grid of `bespoke tune`
    RESUMABLE = auto()  # may change when a run is resumed, or is compared by its content instead of its name


NO_MARK = Mark(0)


class Check(NamedTuple):
    """A condition on a value, and its description for the sentence "rounds must be …"."""

    holds: Callable[[Any], bool]
    expected: str


def one_of(*values: str) -> Check:
    """Return the check that a value is one of these."""
    return Check(lambda value: value in values, " or ".join(map(repr, values)))


AT_LEAST_ONE = Check(lambda value: value >= 1, "at least 1")
DIRECTORY = Check(lambda value: "\0" not in value, "a directory, without NUL in its name")


def _is_cluster(value: str) -> bool:
    host, _, port = value.rpartition(":")
    return value in ("none", "auto") or (bool(host) and port.isdecimal() and 0 < int(port) < 65536)


def setting(
    default: Any, help: str, marks: Mark = NO_MARK, *, panel: str = TRAINING, check: Check | None = None
) -> Any:
    """Declare a field of `RunSettings`.

    `help` is for `--help` and for the docstring of `bespokefl.run`, `panel` the title of the option's group in
    `--help`, and `check` a condition on values other than None.
    """
    metadata = {"help": help, "marks": marks, "panel": panel, "check": check}
    if isinstance(default, Mapping):
        return field(default_factory=lambda: dict(default), metadata=metadata)
    return field(default=default, metadata=metadata)


_own_data = partial(setting, panel=OWN_DATA, marks=Mark.LOADING | Mark.TABLE)
_preparation = partial(setting, panel=OWN_DATA, marks=Mark.PREPARATION)
_local_training = partial(setting, panel=LOCAL_TRAINING, marks=Mark.TUNABLE, check=AT_LEAST_ONE)
_computation, _privacy = partial(setting, panel=COMPUTATION), partial(setting, panel=PRIVACY)
_output = partial(setting, panel=OUTPUT)


def checked(one: Field[Any], value: Any) -> Any:
    """The value of a setting in its type; an InputError if it is not valid."""
    value, check = convert(spell(one.name), value, one.type), one.metadata["check"]
    if check is None or value is None:
        return value
    if not check.holds(value):
        raise InputError(f"{spell(one.name)} must be {check.expected}, got {value!r}.")
    if isinstance(value, int) and value > MAX_COUNT:
        raise InputError(f"{spell(one.name)} must be at most {MAX_COUNT:,}, got {in_brief(value)}.")
    return value


@dataclass(frozen=True, kw_only=True)
class RunSettings:
    """The settings of one run. Everything but the method has a default."""

    method: str = field(
        metadata={
            "help": 'A method (see "bespoke methods"), or your own as module:Class.',
            "marks": NO_MARK,
            "check": None,
        }
    )
    data: str = setting(
        "digits",
        'A data set (see "bespoke data list"), or a file or directory of your own.',
        Mark.LOADING | Mark.FILE | Mark.RESUMABLE,
    )
    label: str | None = _own_data(None, "Column of a table to predict; y or label if not given.")
    client: str | None = _own_data(None, "Column of a table that names each row's client; client if not given.")
    drop: str = _own_data("", "Columns of a table to ignore, such as id,date.")
    task: str | None = _own_data(
        None,
        "classification or regression; inferred from the labels if not given.",
        check=one_of("classification", "regression"),
    )
    text: str | None = _own_data(None, "Column of a table with texts, if these are the examples.")
    missing_values: str = _own_data(
        "", "Texts and numbers in a table that count as missing, such as unknown,-999; NA, nan and the like always do."
    )
    as_number: str = _own_data(
        "", "Columns of a table in which every value that is not a number, such as <0.1, counts as missing."
    )
    dates: bool = _own_data(
        False, "Make year, month, day, weekday and hour of columns of dates or times, which are rejected otherwise."
    )
    missing: str = _preparation(
        "refuse",
        "Treatment of missing values: refuse (an error), mean (of the training data) or drop (the rows).",
        marks=Mark.PREPARATION | Mark.TABLE,
        check=one_of("refuse", "mean", "drop"),
    )
    scale: str | None = _preparation(
        None,
        "Standardization of features by training data: pooled (over all clients), own (per client) or none; pooled for "
        "tables and none for arrays if not given.",
        check=one_of("pooled", "own", "none"),
    )
    vocabulary: int | None = _preparation(None, "Maximum number of distinct words in texts.", check=AT_LEAST_ONE)
    length: int | None = _preparation(
        None, "Number of words to which each text is truncated or padded.", check=AT_LEAST_ONE
    )
    split: str | None = setting(
        None,
        f'A split (see "bespoke split list") or a saved split.json; if not given, by_column if the data name their '
        f'clients, else "{DEFAULT_SPLIT}".',
        Mark.LOADING | Mark.FILE | Mark.RESUMABLE,
    )
    clients: int | None = setting(
        None,
        "Number of clients; if not given, the number in the paper that introduced the split, else 20.",
        Mark.LOADING,
        check=AT_LEAST_ONE,
    )
    fractions: str = setting(
        "0.6,0.2,0.2", "Fractions of train, validation and test data.", Mark.LOADING, panel=OWN_DATA
    )
    model: str = setting(
        "mlp", 'A model (see "bespoke models"), such as "mlp(hidden=(50,))", or your own as module:function.'
    )
    head: str | None = setting(
        None, 'Name of the module that is the head; "head", else the last linear layer, if not given.'
    )
    local_blocks: str = setting(
        "",
        "Columns that stay with each client instead of being shared: head, norm, biases, adapters, a layer, or a "
        'pattern such as "layer1.*"; several separated by commas.',
    )
    loss: str | None = setting(None, "cross_entropy or mse; chosen by the labels if not given.")
    rounds: int = setting(20, "Number of communication rounds.", Mark.TUNABLE, check=AT_LEAST_ONE)
    participation: float = setting(
        1.0,
        "Fraction of the clients sampled in each round, in (0, 1].",
        Mark.TUNABLE,
        check=Check(lambda value: 0 < value <= 1, "in (0, 1], the share of clients drawn in a round"),
    )
    stragglers: bool = setting(
        False,
        "All clients train in every round; participation is the probability that one reports, as in pFedVEM.",
    )
    batch_size: int = _local_training(10, "Number of examples per step.")
    local_epochs: int = _local_training(1, "Passes of a client over its data per round.")
    local_steps: int | None = _local_training(None, "Steps of a client per round, instead of local epochs.")
    seed: int = setting(0, "Seed of all random numbers: split, initial weights, sampling, batches.")
    newcomers: float = setting(
        0.0,
        "Fraction of the clients held out of training; they are personalized at the end and reported separately.",
        check=Check(lambda value: 0 <= value < 1, "in [0, 1), the share of clients held back from training"),
    )
    keep_rounds: bool = _output(
        False, "Keep the global model of every round, from which newcomers may choose (PersFL)."
    )
    eval_every: int = _output(
        5,
        "Rounds between evaluations of all clients; 0: only after the last round, which is always evaluated.",
        check=Check(lambda value: value >= 0, "0 (only at the end) or the number of rounds between evaluations"),
    )
    skip_train_scores: bool = _output(
        False,
        "Between rounds, simulations score validation and test data only, which is faster; at the end all data.",
    )
    follow: str | None = _output(
        None,
        "A score to record over the rounds, too, such as auc or balanced_accuracy; loss and accuracy always are.",
    )
    workers: int = _computation(
        0,
        "Number of processes, on this machine or on a cluster; 0: one per core. Does not change the result.",
        Mark.RESUMABLE,
        check=Check(lambda value: value >= 0, "0 (all cores) or a number of processes"),
    )
    cluster: str = _computation(
        "none",
        "A Ray cluster whose nodes train: auto (the one that this machine belongs to), HOST:PORT, or none.",
        Mark.RESUMABLE,
        check=Check(_is_cluster, 'none, auto or the HOST:PORT of a Ray cluster, such as "10.0.0.1:6379"'),
    )
    chunk: int | None = _computation(
        None, "Number of clients computed at once; chosen automatically if not given.", check=AT_LEAST_ONE
    )
    device: str = _computation("cpu", "Torch device: cpu, cuda, cuda:1, …", Mark.RESUMABLE)
    precision: str = _computation(
        "float32",
        "float32, float64, or bfloat16: layers compute in bfloat16, and weights stay in float32 (mixed precision).",
        check=one_of("float32", "float64", "bfloat16"),
    )
    engine: str = _computation(
        "simulation", "simulation, or reference: a plain PyTorch loop.", check=one_of("simulation", "reference")
    )
    faults: str = setting(
        "",
        "Simulated failures by fraction of clients, such as "
        '"nan:0.05, huge:0.01, wrong-shape:0.01, slow:0.1, drop:0.1".',
    )
    max_share: float | None = setting(
        None,
        "The largest share that one client has in a mean by numbers of examples, such as 0.2; if not given, no limit.",
        check=Check(lambda value: 0 < value <= 1, "in (0, 1], the largest share of one client"),
    )
    clip: float | None = _privacy(
        None,
        "Maximum norm of an upload, relative to the client's starting point; longer uploads are scaled down.",
        check=Check(lambda value: 0 < value < math.inf, "a number > 0, the maximum norm of an upload"),
    )
    noise: float | None = _privacy(
        None,
        "Standard deviation of Gaussian noise on uploads, in units of clip; result.json then reports each client's ε.",
        check=Check(lambda value: 0 <= value < math.inf, "a number >= 0, the noise on uploads in units of clip"),
    )
    delta: float | None = _privacy(
        None,
        "The δ for which ε is reported; 1e-5 if not given.",
        Mark.RESUMABLE,
        check=Check(lambda value: 0 < value < 1, "in (0, 1), the δ of (ε, δ)"),
    )
    checkpoint_every: str = _computation(
        "60s", "Rounds (10) or seconds (60s) between checkpoints; 0: only when the run is interrupted.", Mark.RESUMABLE
    )
    state_dir: str | None = _computation(
        None,
        "Directory for files with the clients' states; if not given, they stay in memory if they fit.",
        Mark.RESUMABLE,
        check=DIRECTORY,
    )
    start: str | None = setting(
        None,
        "Initial weights: a .safetensors file, or the directory of a run with a global model.",
        Mark.FILE | Mark.RESUMABLE,
    )
    log: str = _output(
        "",
        'Trackers to log to: tensorboard, mlflow or wandb, several separated by commas; "tensorboard(clients=true)" '
        "logs the scores of every client, too.",
        Mark.RESUMABLE,
    )
    out: str | None = _output(
        None, "Directory to write; a new one under runs/ if not given.", Mark.WRITING | Mark.RESUMABLE, check=DIRECTORY
    )
    overwrite: bool = _output(False, "Replace existing results.", Mark.WRITING | Mark.RESUMABLE)
    set: Mapping[str, Any] = setting(
        {}, 'A hyper-parameter of the method, such as lr=0.1; see "bespoke methods METHOD". Can be repeated.'
    )

    def __post_init__(self) -> None:
        for one in fields(self):
            object.__setattr__(self, one.name, checked(one, getattr(self, one.name)))
        if self.local_steps is not None and self.local_epochs != RunSettings.local_epochs:
            raise InputError(
                f"give {spell('local_epochs')} or {spell('local_steps')}, not both, got {self.local_epochs} and "
                f"{self.local_steps}."
            )
        if self.noise and self.clip is None:
            raise InputError(
                f"{spell('noise')} needs {spell('clip')}, as it is measured in units of it, got {self.noise:g} alone."
            )

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> "RunSettings":
        """Settings from keys that a user wrote; unknown keys raise `InputError`."""
        known = [one.name for one in fields(cls)]
        for key in values:
            if key not in known:
                raise unknown("key", key, known, see="bespoke run --help")
        if values.get("method") is None:
            raise InputError(
                'a run needs a method, got none; name one, as in "bespoke run ditto" (see "bespoke methods").'
            )
        return cls(**values)

    @classmethod
    def marked(cls, mark: Mark) -> tuple[str, ...]:
        """The names of the settings that have a mark."""
        return tuple(one.name for one in fields(cls) if mark in one.metadata["marks"])

    @classmethod
    def arguments(cls) -> tuple[str, ...]:
        """The names of the settings that are keyword arguments of `bespokefl.run`."""
        elsewhere = {"method", "set", *cls.marked(Mark.LOADING), *cls.marked(Mark.WRITING)}
        return tuple(one.name for one in fields(cls) if one.name not in elsewhere)

    def select(self, mark: Mark) -> dict[str, Any]:
        """The settings that have a mark, with their values."""
        return {name: getattr(self, name) for name in self.marked(mark)}

    def to_toml(self, comments: Mapping[str, str] | None = None) -> str:
        """The settings as TOML, without those that say where results are written."""
        elsewhere = self.marked(Mark.WRITING)
        written = {one.name: getattr(self, one.name) for one in fields(self) if one.name not in elsewhere}
        title = "To repeat this run: bespoke run --config config.toml --out ANOTHER_FOLDER"
        return toml.dumps(written, comments, title)


LOADING = RunSettings.marked(Mark.LOADING)


def read(path: str | PathLike[str]) -> dict[str, Any]:
    """Read the keys of a TOML file; `batch-size` is the same key as `batch_size`.

    A file that the TOML file names is searched next to it first, then in the current directory.
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
    for key in RunSettings.marked(Mark.FILE):
        value = values.get(key)
        if isinstance(value, str) and ("/" in value or Path(value).suffix) and (file.parent / value).exists():
            values[key] = str((file.parent / value).resolve())
    return values
