"""What a run found, for each client, in memory and on disk.

config.toml             what was run; enough to repeat it
result.json             the figures over all clients
clients.csv             one line per client: sizes, personal and global accuracy and loss
rounds.jsonl            one line per round
client_rounds.jsonl     one line per round and client, where a method keeps such figures
split.json              whose examples are whose
personal.safetensors    everybody's model
global.safetensors      the common model, where a method has one
start.safetensors       the weights it began with, where they were given
"""

import csv
import json
import math
import shutil
from collections.abc import Callable, Mapping
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor, nn

from bespokefl.core.errors import InputError, listing
from bespokefl.experiments import config as configs
from bespokefl.experiments import folder
from bespokefl.experiments.config import Config
from bespokefl.experiments.weights import Kept, Model, Stored
from bespokefl.metrics import summarize

Scores = dict[str, np.ndarray]  # "accuracy", "loss" (of test data), "validation_accuracy", … -> one value per client

SIZES = ("train", "validation", "test")
KINDS = ("personal", "global")


class Result:
    """One finished run. Arrays and lists are in the order of `names`."""

    def __init__(
        self,
        *,
        config: Config,
        about: Mapping[str, Any],
        names: tuple[str, ...],
        sizes: Mapping[str, np.ndarray],
        personal: Scores,
        global_: Scores | None,
        rounds: list[dict[str, Any]],
        client_rounds: list[dict[str, Any]],
        weights: Kept | Stored,
        write_rest: Callable[[Path], None] | None = None,
        comments: Mapping[str, str] | None = None,
    ) -> None:
        self.config = config
        self.about = dict(about)  # what result.json holds, but for the scores
        self.names = names
        self.sizes = dict(sizes)  # "train", "validation", "test": examples per client
        self.personal = personal
        self.global_ = global_
        self.rounds = rounds
        self.client_rounds = client_rounds
        self.weights = weights
        self.path: Path | None = None  # where it was saved
        self._write_rest = write_rest
        self._comments = dict(comments or {})

    # -- looking at it

    @property
    def method(self) -> str:
        return str(self.about["method"])

    @property
    def hyper(self) -> dict[str, Any]:
        return dict(self.about["hyper"])

    @property
    def communication(self) -> dict[str, int]:
        return dict(self.about["communication"])

    @property
    def timing(self) -> dict[str, Any]:
        return dict(self.about["timing"])

    @property
    def interrupted(self) -> bool:
        return bool(self.about["interrupted"])

    @property
    def notes(self) -> list[str]:
        """What a reader of the figures has to know, one sentence each."""
        return list(self.about["notes"])

    @property
    def clients(self) -> list[dict[str, Any]]:
        """One dict per client, as in clients.csv; `pandas.DataFrame(result.clients)` makes a table of it."""
        columns: dict[str, list[Any]] = {"client": list(self.names)}
        columns |= {part: self.sizes[part].tolist() for part in SIZES}
        nobody = np.full(len(self.names), math.nan)
        for kind, scores in zip(KINDS, (self.personal, self.global_), strict=True):
            for name in self.personal:
                columns[f"{kind}_{name}"] = plain(nobody if scores is None else scores[name])
        return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]

    def summary(self) -> dict[str, Any]:
        """What result.json holds."""
        return {**self.about, "personal": self._figures(self.personal), "global": self._figures(self.global_)}

    def _figures(self, scores: Scores | None) -> dict[str, Any] | None:
        if scores is None:
            return None
        found = {
            name: summarize(values, self.sizes["train"], higher_is_better=name.endswith("accuracy"))
            for name, values in scores.items()
        }
        return {"accuracy": None} | found  # regression has no accuracy, and says so

    def __repr__(self) -> str:
        about = self.about
        lines = [
            f"{self.method} on {about['data']}, {about['split']}, {len(self.names)} clients, model {about['model']}, "
            f"{about['rounds_done']} rounds{' (interrupted)' if self.interrupted else ''}, seed {about['seed']}"
        ]
        figures = self.summary()
        for kind in KINDS:
            scores = figures[kind]
            if scores is None:
                lines.append(f"  {kind:<8}  none: the method has no {kind} model")
                continue
            name = "loss" if scores["accuracy"] is None else "accuracy"
            worded = [
                f"{what.replace('_', ' ')} {_short(scores[name][what])}" for what in ("mean", "std", "worst_decile")
            ]
            lines.append(f"  {kind:<8}  test {name}: {', '.join(worded)}")
        return "\n".join(lines)

    # -- its models

    def model(self, client: str) -> nn.Module:
        """A client's own model, ready to predict."""
        if str(client) not in self.names:
            raise InputError(f"there is no client {str(client)!r}; there are {listing(self.names)}.")
        return self.weights.module(self.names.index(str(client)))

    def global_model(self) -> nn.Module | None:
        """The common model, ready to predict; None where the method has none."""
        return self.weights.common_module()

    # -- on disk

    def save(self, path: str | PathLike[str], overwrite: bool = False) -> Path:
        """Write the folder of this run; it appears complete or not at all."""
        folder.write(Path(path), self._fill, overwrite)
        self.path = Path(path)
        return self.path

    def _fill(self, into: Path) -> None:
        if isinstance(self.weights, Stored):
            for file in self.weights.folder.iterdir():
                if file.is_file():
                    shutil.copyfile(file, into / file.name)
            return
        (into / "config.toml").write_text(self.config.text(self._comments), encoding="utf-8")
        (into / "result.json").write_text(dumps(self.summary(), indent=2) + "\n", encoding="utf-8")
        _write_csv(into / "clients.csv", self.clients)
        _write_lines(into / "rounds.jsonl", self.rounds)
        if self.client_rounds:
            _write_lines(into / "client_rounds.jsonl", self.client_rounds)
        self.weights.write(into, self.names)
        if self._write_rest is not None:
            self._write_rest(into)


def load_run(path: str | PathLike[str], model: Model | None = None) -> Result:
    """The result in the folder of a run. `model` is needed for its models where they were made by a Python object."""
    source = Path(path)
    if not folder.is_run(source):
        raise InputError(f"{str(path)!r} is not the folder of a run: it has no {' and '.join(folder.SIGNS)}.")
    try:
        about = json.loads((source / "result.json").read_text(encoding="utf-8"))
        rows = _read_csv(source / "clients.csv")
        rounds = _read_lines(source / "rounds.jsonl")
        notes = source / "client_rounds.jsonl"
        client_rounds = _read_lines(notes) if notes.exists() else []
        columns = {name: [row[name] for row in rows] for name in rows[0]}
        scores = {
            kind: {
                name.removeprefix(f"{kind}_"): np.array([float(value or "nan") for value in values])
                for name, values in columns.items()
                if name.startswith(f"{kind}_")
            }
            for kind in KINDS
        }
        sizes = {part: np.array([int(value) for value in columns[part]]) for part in SIZES}
        result = Result(
            config=Config.of(configs.read(source / "config.toml")),
            about=about,
            names=tuple(columns["client"]),
            sizes=sizes,
            personal=scores["personal"],
            global_=None if about["global"] is None else scores["global"],
            rounds=rounds,
            client_rounds=client_rounds,
            weights=Stored(source.resolve(), model),
        )
    except (OSError, ValueError, KeyError, IndexError, TypeError, AttributeError) as error:
        raise InputError(f"the run in {str(path)!r} is damaged: {error!r}.") from error
    result.path = source
    return result


def plain(value: Any) -> Any:
    """The value as JSON has it: tensors and arrays as lists, NaN as null; an infinity, or an object, as text."""
    if isinstance(value, Tensor | np.ndarray | np.generic):
        return plain(value.tolist())
    if isinstance(value, Mapping):
        return {str(key): plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [plain(one) for one in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None if math.isnan(value) else str(value)
    return value if value is None or isinstance(value, str | int | float) else repr(value)


def dumps(value: Any, indent: int | None = None) -> str:
    return json.dumps(plain(value), indent=indent, allow_nan=False, ensure_ascii=False)


def _short(value: float | None) -> str:
    return "undefined" if value is None else f"{value:.4f}"


def _write_lines(path: Path, rows: list[dict[str, Any]]) -> None:
    path.write_text("".join(dumps(row) + "\n" for row in rows), encoding="utf-8")


def _read_lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def _write_csv(path: Path, rows: list[dict[str, Any]]) -> None:
    columns = dict.fromkeys(name for row in rows for name in row)
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, columns)
        writer.writeheader()
        writer.writerows(plain(row) for row in rows)


def _read_csv(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))
