"""Your own tables as data: a file of columns, of which one is the label and one may name the client.

Numbers are features as they stand, truth values 0 and 1, texts one feature for each of their values. Nothing is learnt
from the values here (scaling, filling, a vocabulary): that is for `prepare`, after the split, from training data.
"""

import logging
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from bespokefl.core.errors import InputError, listing, unknown
from bespokefl.data.tables import columns as files
from bespokefl.data.tables import text as texts
from bespokefl.data.tables.features import MOST, TRUTH, Column, Features, Place, Table, documents, is_missing

log = logging.getLogger("bespokefl")

MISSING = ("refuse", "mean", "drop")
TASKS = ("classification", "regression")
LABELS, CLIENT = ("y", "label"), "client"  # columns that are what they are called, unless others are named
DATE = re.compile(r"(\d{4}-\d{1,2}-\d{1,2}|\d{1,2}[./-]\d{1,2}[./-]\d{2,4})([ T].*)?|\d{1,2}:\d{2}(:\d{2})?")
WHOLE = re.compile(r"0|-?[1-9]\d{0,17}")


@dataclass(frozen=True)
class Inputs:
    """New examples for a run that has been trained: as numbers, not yet prepared."""

    x: np.ndarray
    y: np.ndarray | None  # as in the file
    client: np.ndarray | None


def load(
    path: str | PathLike[str],
    *,
    label: str | None = None,
    client: str | None = None,
    missing: str = "refuse",
    drop: Collection[str] = (),
    task: str | None = None,
    text: str | None = None,
) -> Table:
    """Data from a .csv, .tsv, .parquet or .npz file; the options are those of `from_columns`."""
    as_text, labels = as_written(label, client, text)
    found = files.read(path, as_text=as_text, labels=labels, drop=_names(drop))
    return build(found, label=label, client=client, missing=missing, task=task, text=text, name=Path(path).stem)


def from_columns(
    columns: Mapping[str, Any],
    *,
    label: str | None = None,
    client: str | None = None,
    missing: str = "refuse",
    drop: Collection[str] = (),
    task: str | None = None,
    text: str | None = None,
    name: str = "table",
    place: Place = lambda row: f"row {row + 1}",
) -> Table:
    """Data from columns: a dict of lists or arrays, or a pandas table.

    label    the column to predict; None: y or label. Whole numbers, truth values and texts are classes, other numbers
             are targets of a regression, unless `task` says otherwise
    client   the column that says whose a row is; None: client, if there is one
    missing  refuse; mean: keep the gaps, for `prepare` to fill; drop: leave out rows that have one
    drop     columns to leave out
    text     the column with documents: it alone is the example then
    """
    drop = set(_names(drop))
    found = {str(key): files.column(columns[key], str(key)) for key in _keys(columns) if str(key) not in drop}
    return build(found, label=label, client=client, missing=missing, task=task, text=text, name=name, place=place)


def build(
    found: Mapping[str, np.ndarray],
    *,
    label: str | None,
    client: str | None,
    missing: str,
    task: str | None,
    text: str | None,
    name: str,
    place: Place = lambda row: f"row {row + 1}",
    part: np.ndarray | None = None,
) -> Table:
    """The same from columns that have been read; `part` says which part of its client's data a row is."""
    _one_of("missing", missing, MISSING)
    if task is not None:
        _one_of("task", task, TASKS)
    label = _label(label, found)
    client = client if client is not None else CLIENT if CLIENT in found else None
    for what, wanted in (("label", label), ("client", client), ("text", text)):
        if wanted is not None and wanted not in found:
            raise unknown(f"column for the {what}", wanted, found)
    if len({label, client, text} - {None}) < sum(one is not None for one in (label, client, text)):
        raise InputError(f"label, client and text must be different columns, got {label!r}, {client!r} and {text!r}")
    used = {key: found[key] for key in found if text is None or key in (label, client, text)}
    rows = len(found[label])
    _check_lengths(used, label, rows)
    gaps = {key: is_missing(values) for key, values in used.items()}
    if text is not None:
        gaps[text] = np.zeros(rows, dtype=bool)  # a document may be empty
    more = {} if part is None else {"part": part}
    if missing == "drop":
        kept = np.flatnonzero(~np.logical_or.reduce(list(gaps.values())))
        if len(kept) < rows:
            log.warning("%s: %d of %d rows lack a value and are left out", name, rows - len(kept), rows)
            if not len(kept):
                raise InputError(f"every row of {name} lacks a value, so none is left; drop the columns that are empty")
            used = {key: values[kept] for key, values in used.items()}
            more = {key: values[kept] for key, values in more.items()}
            whole = place

            def place(row: int) -> str:
                return whole(int(kept[row]))
    else:
        for key, holes in gaps.items():
            if holes.any() and (missing == "refuse" or key in (label, client)):
                raise _gap(key, holes, place, "drop" if key in (label, client) else "mean")
    y = _targets(used.pop(label), task, label)
    ids = None if client is None else _ids(used.pop(client), client)
    if not used:
        raise InputError(f"the data must have a column beside {label!r} to learn from, got none")
    kinds = tuple(_column(key, values, alone=len(used) == 1, text=key == text) for key, values in used.items())
    flat, kinds = _flattened(used, kinds)
    features = Features(kinds, _shape(kinds, flat), label, client)
    x = features.encode(flat, place)
    return Table.build(features, x, y, ids, name, place, more)


def inputs(path: str | PathLike[str], features: Features) -> Inputs:
    """The examples of another file with the same columns, and their labels and clients where it has these."""
    needed = {column.name for column in features.columns}
    as_text = {column.name for column in features.columns if column.kind in ("category", "text", "truth")}
    found = files.read(path, as_text=as_text | {features.client or ""}, labels={features.label or ""})
    array = re.compile(r"(.*)\[\d+\]")
    sources = {match[1] for name in needed if (match := array.fullmatch(name)) and match[1] in found}
    parts = {name: values for name in sources if (values := found[name]).ndim == 2}
    for name, values in parts.items():
        found |= {f"{name}[{at}]": values[:, at] for at in range(values.shape[1])}
    x = features.encode(found, lambda row: f"row {row + 1} of {str(path)!r}")
    y = None if features.label not in found else _plain(found[features.label])
    client = None if features.client not in found else _ids(found[features.client], str(features.client))
    return Inputs(x, y, client)


# -- the columns that are no features


def as_written(label: str | None, client: str | None, text: str | None) -> tuple[set[str], set[str]]:
    """Columns to read as text, 007 and 7 are two clients; and those of them that may be the label."""
    as_text = {CLIENT if client is None else client, *([] if text is None else [text])}
    return as_text, set(LABELS if label is None else [label]) - as_text


def _label(label: str | None, found: Mapping[str, np.ndarray]) -> str:
    if label is not None:
        return label
    for name in LABELS:
        if name in found:
            return name
    raise InputError(
        f"which column is to be predicted? The data have {listing(list(found), 10)}; name one of them as the label"
    )


def _plain(values: np.ndarray) -> np.ndarray:
    """Texts as the whole numbers or numbers that they may be."""
    if values.dtype.kind != "O":
        return values
    different = set(values)
    if None in different:
        return values
    if all(WHOLE.fullmatch(one) for one in different):
        return values.astype(np.int64)
    return values.astype(np.float64 if all(map(_is_number, different)) else np.str_)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return "_" not in text  # Python reads 1_2 as 12


def _targets(values: np.ndarray, task: str | None, name: str) -> np.ndarray:
    y = _plain(values)
    if y.ndim == 2 and y.shape[1] == 1:
        y = y[:, 0]
    if y.ndim != 1:
        raise InputError(f"the label {name!r} must be one value per row, got shape {y.shape}")
    different = len(np.unique(y))
    if different == 1:
        raise InputError(f"the label {name!r} must differ between rows, got only {y[0].item()!r}: nothing to learn")
    if task == "regression":
        if y.dtype.kind not in "fiub":
            raise InputError(f"the label {name!r} must hold numbers for a regression, got text such as {str(y[0])!r}")
        return y.astype(np.float64)
    if task is None and y.dtype.kind in "iu" and different > max(MOST, len(y) // 10):
        raise InputError(
            f"the label {name!r} has {different} different whole numbers in {len(y)} rows; say with task whether this "
            "is a regression or a classification"
        )
    if task == "classification" and y.dtype.kind == "f":
        return y.astype(np.int64) if (y == np.floor(y)).all() else np.array([f"{one:g}" for one in y.tolist()])
    return y


def _ids(values: np.ndarray, name: str) -> np.ndarray:
    ids = _plain(values)
    if ids.dtype.kind == "f":
        if values.dtype.kind != "O":
            raise InputError(f"the client column {name!r} must hold whole numbers or text, got {ids.dtype.name}")
        ids = values.astype(np.str_)
    if ids.dtype.kind == "b":
        return ids.astype(np.int64)
    return ids


# -- the columns that are


def _column(name: str, values: np.ndarray, *, alone: bool, text: bool) -> Column:
    if text:
        if values.ndim == 2 and values.dtype.kind in "iu":
            return Column(name, "tokens")
        return Column(name, "text", texts.all_words(documents(values, name)))
    if values.ndim > 1:
        if not alone and values.ndim > 2:
            raise InputError(
                f"column {name!r} holds an array of shape {values.shape[1:]} for each row, which cannot stand beside "
                "other columns; drop it or them"
            )
        return Column(name, "array")
    if values.dtype.kind == "b":
        return Column(name, "truth")
    if values.dtype.kind != "O":
        return Column(name, "number")
    found = sorted({one for one in values if one is not None})
    if {one.lower() for one in found} <= TRUTH.keys():
        return Column(name, "truth" if found else "number")
    if all(DATE.fullmatch(one) for one in found):
        raise files.dates(name)
    if len(found) > MOST:
        raise InputError(
            f"column {name!r} has {len(found)} different texts, such as {found[0][:40]!r}, and at most {MOST} can be "
            "categories; drop it, or name it as the text if these are documents"
        )
    return Column(name, "category", tuple(found))


def _flattened(
    used: Mapping[str, np.ndarray], kinds: Sequence[Column]
) -> tuple[dict[str, np.ndarray], tuple[Column, ...]]:
    """A two-dimensional array beside other columns as a column for each of its own."""
    if len(kinds) == 1:
        return dict(used), tuple(kinds)
    flat: dict[str, np.ndarray] = {}
    columns: list[Column] = []
    for column, values in zip(kinds, used.values(), strict=True):
        if column.kind != "array":
            flat[column.name] = values
            columns.append(column)
            continue
        for at in range(values.shape[1]):
            flat[f"{column.name}[{at}]"] = values[:, at]
            columns.append(Column(f"{column.name}[{at}]", "number"))
    return flat, tuple(columns)


def _shape(kinds: Sequence[Column], flat: Mapping[str, np.ndarray]) -> tuple[int, ...]:
    """Of an example."""
    only = flat[kinds[0].name]
    if kinds[0].kind == "text":
        return (texts.longest(documents(only, kinds[0].name)),)
    if kinds[0].kind in ("array", "tokens"):
        return tuple(only.shape[1:])
    return (sum(len(column.places) for column in kinds),)


def _check_lengths(used: Mapping[str, np.ndarray], label: str, rows: int) -> None:
    for key, values in used.items():
        if len(values) != rows:
            raise InputError(
                f"every column must have one value per row, but {key!r} has {len(values)} and the label {label!r} "
                f"{rows}; drop it if it is something else"
            )


def _gap(name: str, holes: np.ndarray, place: Place, remedy: str) -> InputError:
    return InputError(
        f"column {name!r} lacks {int(holes.sum())} of {len(holes)} values, the first in {place(int(holes.argmax()))}; "
        f"fill them, or say with missing what to do, such as {remedy}"
    )


def _one_of(what: str, value: str, known: Sequence[str]) -> None:
    if value not in known:
        raise unknown(what, str(value), known)


def _names(names: Collection[str]) -> tuple[str, ...]:
    return (names,) if isinstance(names, str) else tuple(names)


def _keys(columns: Mapping[str, Any]) -> list[Any]:
    keys = getattr(columns, "keys", None)
    if keys is None:
        raise InputError(f"columns must be a dict or a pandas table, got {type(columns).__name__}")
    return list(keys())
