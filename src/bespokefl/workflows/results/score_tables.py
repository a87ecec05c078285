"""Tables of clients' scores: figures over clients, and reading and writing of JSON and CSV."""

import csv
import io
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import repeat
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from bespokefl.metrics import summarize
from bespokefl.metrics.metric import metric_of, split_name

Scores = dict[str, np.ndarray]  # one value per client: "accuracy", "loss", … on test data, "validation_accuracy", …
Sizes = dict[str, np.ndarray]  # the number of examples per client: "train", "validation", "test"

AT_ONCE = 10_000  # clients of a table that are written together
SIZES = ("train", "validation", "test")
CONSTANT = "constant"  # the kind of the constant predictors: majority class, or mean value


def figures(scores: Scores, sizes: Sizes) -> dict[str, Any]:
    """Return mean, standard deviation and further figures of every score over clients."""
    found = {
        name: summarize(values, sizes["train"], higher_is_better=metric_of(name).higher_is_better)
        for name, values in scores.items()
    }
    return {"accuracy": None} | found  # None for regression


def in_words(kinds: Mapping[str, Mapping[str, Any] | None]) -> list[str]:
    """Return a line of text for the `figures` of each kind of model; a kind that a method does not have is None."""
    lines = []
    width = max(map(len, kinds))
    for kind, scores in kinds.items():
        text = f"none: the method has no {kind} model"
        if scores is not None:
            name = "loss" if scores["accuracy"] is None else "accuracy"
            values = {what: scores[name][what] for what in ("mean", "std", "worst_decile")}
            shown = {what: "undefined" if value is None else f"{value:.4f}" for what, value in values.items()}
            text = f"test {name}: " + ", ".join(f"{what.replace('_', ' ')} {value}" for what, value in shown.items())
        lines.append(f"  {kind:<{width}}  {text}")
    return lines


def constant_title(scores: Mapping[str, Any]) -> str:
    """Return what the constant predictor with these scores or figures predicts."""
    return "mean value" if scores.get("accuracy") is None else "majority class"


def unit(score: str) -> str:
    """Return the unit in which a score is printed: accuracies in per cent; files and Python have fractions."""
    return " %" if metric_of(score).percent else ""


def format_score(value: float | None, score: str) -> str:
    """Return a score as it is printed, without its unit."""
    if value is None:
        return "-"
    return f"{100 * value:.2f}" if unit(score) else f"{value:.4f}" if abs(value) < 1000 else f"{value:.4g}"


def column_title(score: str) -> str:
    """Return the title of a score's column, such as "validation accuracy, %"."""
    part, title = split_name(score)[0], metric_of(score).title
    return f"{part} {title}".strip() + (unit(score) and f",{unit(score)}")


def lines(names: Sequence[str], sizes: Sizes, scores: Mapping[str, Scores | None]) -> list[dict[str, Any]]:
    """Return one dict per client with its sizes and scores; scores of a model that does not exist are None.

    Constant predictors of runs before Bespoke computed them have no columns.
    """
    columns = _columns(names, sizes, scores)
    return [dict(zip(columns, values, strict=True)) for values in _rows(columns, 0, len(names))]


def write_clients(path: Path, names: Sequence[str], sizes: Sizes, scores: Mapping[str, Scores | None]) -> None:
    """Write `lines` as a CSV file, some clients at a time."""
    columns = _columns(names, sizes, scores)
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(columns)
        for start in range(0, len(names), AT_ONCE):
            writer.writerows(_rows(columns, start, start + AT_ONCE))


def _columns(
    names: Sequence[str], sizes: Sizes, scores: Mapping[str, Scores | None]
) -> dict[str, Sequence[str] | np.ndarray | None]:
    """The columns of `lines`; None for scores that do not exist."""
    columns: dict[str, Sequence[str] | np.ndarray | None] = {"client": names, **{part: sizes[part] for part in SIZES}}
    measures = next(found for found in scores.values() if found is not None)
    for kind, found in scores.items():
        own = measures if found is None and kind != CONSTANT else found or {}
        columns |= {f"{kind}_{name}": None if found is None else found[name] for name in own}
    return columns


def _rows(columns: Mapping[str, Sequence[str] | np.ndarray | None], start: int, stop: int) -> Iterator[tuple[Any, ...]]:
    """The lines of some clients, without the names of the columns."""
    cells = [repeat(None) if column is None else _cells(column[start:stop]) for column in columns.values()]
    return zip(*cells, strict=False)


def _cells(values: Sequence[str] | np.ndarray) -> list[Any]:
    """As `plain`, which looks at the values one by one."""
    usual = isinstance(values, np.ndarray) and bool(np.isfinite(values).all())
    found: list[Any] = values.tolist() if usual else plain(values)  # type: ignore[union-attr]
    return found


def read_clients(path: Path, kinds: Sequence[str]) -> tuple[tuple[str, ...], Sizes, dict[str, Scores]]:
    """Read names, sizes and scores from a file that was written from `lines`."""
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    columns = {name: [row[name] for row in rows] for name in rows[0]}
    scores = {
        kind: {
            name.removeprefix(f"{kind}_"): np.array([float(value or "nan") for value in values])
            for name, values in columns.items()
            if name.startswith(f"{kind}_")
        }
        for kind in kinds
    }
    sizes = {part: np.array([int(value) for value in columns[part]]) for part in SIZES}
    return tuple(columns["client"]), sizes, scores


def plain(value: Any) -> Any:
    """Return a value that JSON can hold: tensors and arrays as lists, NaN as None, infinities and objects as text."""
    if value is None or type(value) in (str, int, bool):  # the most frequent types first: tables are long
        return value
    if isinstance(value, Tensor | np.ndarray | np.generic):
        return plain(value.tolist())
    if isinstance(value, Mapping):
        return {str(key): plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [plain(one) for one in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None if math.isnan(value) else str(value)
    return value if isinstance(value, str | int | float) else repr(value)


def dumps(value: Any, indent: int | None = None) -> str:
    """Return a value as JSON."""
    return json.dumps(plain(value), indent=indent, allow_nan=False, ensure_ascii=False)


def write_lines(path: Path, rows: list[dict[str, Any]]) -> None:
    """Write one line of JSON per row."""
    path.write_text("".join(dumps(row) + "\n" for row in rows), encoding="utf-8")


def read_lines(path: Path) -> list[dict[str, Any]]:
    """Read a file with a JSON object per line."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def csv_text(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return rows as CSV; the columns are the keys of all rows."""
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, dict.fromkeys(name for row in rows for name in row))
    writer.writeheader()
    writer.writerows(plain(row) for row in rows)
    return text.getvalue()


def write_csv(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Write rows as a CSV file."""
    path.write_text(csv_text(rows), encoding="utf-8", newline="")
