"""Tables as data sets: one column is the label, and one may hold client ids.

Numbers are features without change, booleans become 0 and 1, and texts become one feature for each value. Nothing is
learned from the values here; scaling, imputation and vocabularies are fitted after the split by `prepare`, on training
data only.
"""

import logging
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path
from typing import Any, TypedDict, Unpack

import numpy as np

from bespokefl.core.errors import InputError, listing, spell, unknown
from bespokefl.data.dataset import Locate
from bespokefl.data.tables import dates as date_columns
from bespokefl.data.tables import table_files
from bespokefl.data.tables import text as texts
from bespokefl.data.tables.features import BOOLEANS, MAX_CATEGORIES, Column, Features, Table, is_missing, to_documents
from bespokefl.data.tables.reading import Reading, Remarks, mixture, warn_of_mixture

log = logging.getLogger("bespokefl")

MISSING = ("refuse", "mean", "drop")
TASKS = ("classification", "regression")
LABELS, CLIENT = ("y", "label"), "client"  # default names of the label and client columns
INTEGER = re.compile(r"0|-?[1-9]\d{0,17}")


@dataclass(frozen=True)
class Inputs:
    """New examples for a trained run: numbers that are not prepared yet, and labels and clients if known."""

    x: np.ndarray
    y: np.ndarray | None  # the original labels
    client: np.ndarray | None


class Options(TypedDict, total=False):
    """The options of all tables; see `from_columns`."""

    label: str | None
    missing: str
    task: str | None
    text: str | None
    dates: bool


def load(
    path: str | PathLike[str],
    *,
    client: str | None = None,
    drop: Collection[str] = (),
    missing_values: Collection[str] = (),
    as_number: Collection[str] = (),
    **options: Unpack[Options],
) -> Table:
    """Load a .csv, .tsv, .parquet or .npz file; the options are those of `from_columns`."""
    as_text, labels = text_columns(options.get("label"), client, options.get("text"))
    reading = Reading(as_names(missing_values), as_names(as_number))
    found = table_files.read(path, as_text=as_text, labels=labels, drop=as_names(drop), reading=reading)
    return build(found, client=client, name=Path(path).stem, reading=reading, **options)


def from_columns(
    columns: Mapping[str, Any],
    *,
    label: str | None = None,
    client: str | None = None,
    missing: str = "refuse",
    drop: Collection[str] = (),
    task: str | None = None,
    text: str | None = None,
    missing_values: Collection[str] = (),
    as_number: Collection[str] = (),
    dates: bool = False,
    name: str = "table",
) -> Table:
    """Create a data set from columns.

    Parameters
    ----------
    columns : mapping of str to array, or pandas.DataFrame
    label : str, the column to predict; by default "y" or "label". Integers, booleans and texts are classes, other
        numbers are regression targets, unless `task` is given.
    client : str, the column with the client ids; by default "client", if it exists
    missing : "refuse" missing values, keep them to be filled by the "mean" of the training data, or "drop" the rows
    drop : collection of str, columns to ignore
    task : "classification" or "regression", if the label does not determine it
    text : str, the column with documents; all other columns, except label and client, are ignored then
    missing_values : collection of str, texts (or numbers, as text) that count as missing, besides NA, nan and the like
    as_number : collection of str, columns in which every value that is not a number counts as missing
    dates : bool, make year, month, day, weekday and hour of columns of dates or times, which are rejected otherwise
    name : str, the name of the data
    """
    keys = getattr(columns, "keys", None)
    if keys is None:
        raise InputError(f"columns must be a dict or a pandas table, got {type(columns).__name__}")
    ignored = set(as_names(drop))
    reading, remarks = Reading(as_names(missing_values), as_names(as_number)), Remarks()
    as_text = set().union(*text_columns(label, client, text))
    chosen = {str(key): columns[key] for key in keys() if str(key) not in ignored}
    found = table_files.read_columns(chosen, reading, remarks, as_text)
    remarks.log()
    options: Options = {"label": label, "missing": missing, "task": task, "text": text, "dates": dates}
    return build(found, client=client, name=name, reading=reading, **options)


def build(
    found: Mapping[str, np.ndarray],
    *,
    client: str | None,
    name: str,
    reading: Reading | None = None,
    locate: Locate = lambda row: f"row {row + 1}",
    part: np.ndarray | None = None,
    **options: Unpack[Options],
) -> Table:
    """The same for columns of `table_files`; `part` holds the part (train, validation or test) of each row."""
    if unexpected := options.keys() - Options.__annotations__.keys():
        raise TypeError(f"unexpected keyword argument {min(unexpected)!r}")
    label, missing, task = options.get("label"), options.get("missing", "refuse"), options.get("task")
    text, dates = options.get("text"), options.get("dates", False)
    for option, value, known in (("missing", missing, MISSING), ("task", task, (None, *TASKS))):
        if value not in known:
            raise unknown(option, str(value), [one for one in known if one])
    label = next((name for name in LABELS if name in found), None) if label is None else label
    if label is None:
        raise InputError(
            f"the column to predict is not known; the data have {listing(list(found), 10)}; name one of them "
            f"with {spell('label')}"
        )
    client = client if client is not None else CLIENT if CLIENT in found else None
    for what, wanted in (("label", label), ("client", client), ("text", text)):
        if wanted is not None and wanted not in found:
            raise unknown(f"column for the {what}", wanted, found)
    reading = reading or Reading()
    for wanted in reading.as_number:
        if wanted not in found:
            raise unknown("column to read as numbers", wanted, found)
    if len({label, client, text} - {None}) < sum(one is not None for one in (label, client, text)):
        raise InputError(f"label, client and text must be different columns, got {label!r}, {client!r} and {text!r}")
    used = {key: found[key] for key in found if text is None or key in (label, client, text)}
    _check_lengths(used, label)
    gaps = {key: is_missing(values) for key, values in used.items() if key != text}  # a document may be empty
    more = {} if part is None else {"part": part}
    if missing == "drop":
        kept = _complete_rows(gaps, name)
        used, more = ({key: values[kept] for key, values in some.items()} for some in (used, more))
        original_row, locate_original = kept, locate

        def locate(row: int) -> str:
            return locate_original(int(original_row[row]))
    else:
        for key, holes in gaps.items():
            if holes.any() and (missing == "refuse" or key in (label, client)):
                raise InputError(
                    f"column {key!r} lacks {int(holes.sum())} of {len(holes)} values, the first in "
                    f"{locate(int(holes.argmax()))}; fill them, or use "
                    f"{spell('missing', 'drop' if key in (label, client) else 'mean')}"
                )
    y = _to_targets(used.pop(label), task, label)
    ids = None if client is None else _to_ids(used.pop(client), client)
    if not used:
        raise InputError(f"the data must have a column besides {label!r} to learn from, got none")
    if text is None and dates:
        used, orders = _expand_dates(used)
        reading = replace(reading, dates=orders)
    kinds = [_to_kind(key, values, is_only=len(used) == 1, is_text=key == text) for key, values in used.items()]
    flat, columns = _flatten_arrays(used, kinds)
    is_text = columns[0].kind == "text"
    length = texts.longest(to_documents(flat[columns[0].name], columns[0].name)) if is_text else 0
    features = Features(columns, (length,), label, client, reading)
    x = features.encode(flat, locate)
    return Table.build(replace(features, shape=x.shape[1:]), x, y, ids, name, locate, more)


def inputs(path: str | PathLike[str], features: Features) -> Inputs:
    """Read new examples from a file with the same columns, such as those of ``result.preparation.features``."""
    needed = {column.name for column in features.columns}
    as_text = {column.name for column in features.columns if column.kind in ("category", "text", "truth")}
    as_text |= {features.client or ""}
    found = table_files.read(path, as_text=as_text, labels={features.label or ""}, reading=features.reading)
    for name in date_columns.needed_dates(needed, found):
        parts, _ = date_columns.date_features(name, found[name], dict(features.reading.dates).get(name))
        found |= {
            part: np.full(len(found[name]), 0.0) for part in needed if part == f"{name}.{date_columns.HOUR}"
        } | parts
    element = re.compile(r"(.*)\[\d+\]")
    arrays = {match[1] for name in needed if (match := element.fullmatch(name)) and match[1] in found}
    for name in arrays:
        found |= _elements(name, found[name]) if found[name].ndim == 2 else {}
    x = features.encode(found, lambda row: f"row {row + 1} of {str(path)!r}")
    y = None if features.label not in found else _parse_texts(found[features.label])
    client = None if features.client not in found else _to_ids(found[features.client], str(features.client))
    return Inputs(x, y, client)


# -- label and client columns


def text_columns(label: str | None, client: str | None, text: str | None) -> tuple[set[str], set[str]]:
    """Columns to read as text, because 007 and 7 are two clients, and those that may be the label."""
    as_text = {CLIENT if client is None else client, *([] if text is None else [text])}
    return as_text, set(LABELS if label is None else [label]) - as_text


def _parse_texts(values: np.ndarray) -> np.ndarray:
    """Texts as integers or other numbers, if all of them are."""
    if values.dtype.kind != "O":
        return values
    distinct = set(values)
    if None in distinct:
        return values
    if all(INTEGER.fullmatch(one) for one in distinct):
        return values.astype(np.int64)
    numbers = table_files.parse_numbers(values)
    return values.astype(np.str_) if numbers is None else numbers


def _to_targets(values: np.ndarray, task: str | None, name: str) -> np.ndarray:
    y = _parse_texts(values)
    if y.ndim == 2 and y.shape[1] == 1:
        y = y[:, 0]
    if y.ndim != 1:
        raise InputError(f"the label {name!r} must be one value per row, got shape {y.shape}")
    distinct = len(np.unique(y))
    if distinct == 1:
        raise InputError(f"the label {name!r} must differ between rows, got only {y[0].item()!r}: nothing to learn")
    if task == "regression":
        if y.dtype.kind not in "fiub":
            raise InputError(f"the label {name!r} must hold numbers for a regression, got text such as {str(y[0])!r}")
        return y.astype(np.float64)
    if task is None and y.dtype.kind in "iu" and distinct > max(MAX_CATEGORIES, len(y) // 10):
        raise InputError(
            f"the label {name!r} has {distinct} different integers in {len(y)} rows; use "
            f"{spell('task', 'regression')} or {spell('task', 'classification')}"
        )
    if task == "classification" and y.dtype.kind == "f":
        return y.astype(np.int64) if (y == np.floor(y)).all() else np.array([f"{one:g}" for one in y.tolist()])
    return y


def _to_ids(values: np.ndarray, name: str) -> np.ndarray:
    ids = _parse_texts(values)
    if ids.dtype.kind == "f":
        if values.dtype.kind != "O":
            raise InputError(f"the client column {name!r} must hold integers or text, got {ids.dtype.name}")
        ids = values.astype(np.str_)
    return ids.astype(np.int64) if ids.dtype.kind == "b" else ids


# -- feature columns


def _to_kind(name: str, values: np.ndarray, *, is_only: bool, is_text: bool) -> Column:
    """The kind of a column."""
    if is_text:
        if values.ndim == 2 and values.dtype.kind in "iu":
            return Column(name, "tokens")
        return Column(name, "text", texts.all_words(to_documents(values, name)))
    if values.ndim > 1:
        if not is_only and values.ndim > 2:
            raise InputError(
                f"column {name!r} holds an array of shape {values.shape[1:]} for each row, which cannot be combined "
                "with other columns; drop it or them"
            )
        return Column(name, "array")
    if values.dtype.kind == "b":
        return Column(name, "truth")
    if values.dtype.kind != "O":
        return Column(name, "number")
    distinct = sorted({one for one in values if one is not None})
    if {one.lower() for one in distinct} <= BOOLEANS.keys():
        return Column(name, "truth" if distinct else "number")
    if date_columns.are_dates(distinct):
        raise date_columns.dates_error(name)
    if len(distinct) > MAX_CATEGORIES:
        mixed = mixture(name, values)
        if mixed is not None:
            raise InputError(
                f"column {name!r} has {mixed[0]}, and at most {MAX_CATEGORIES} different texts can be categories: "
                f"{mixed[1]}"
            )
        raise InputError(
            f"column {name!r} has {len(distinct)} different texts, such as {distinct[0][:40]!r}, and at most "
            f"{MAX_CATEGORIES} can be categories; ignore it with {spell('drop', [name])}, or use "
            f"{spell('text', name)} if these are documents"
        )
    warn_of_mixture(name, values)
    return Column(name, "category", tuple(distinct))


def _expand_dates(
    used: Mapping[str, np.ndarray],
) -> tuple[dict[str, np.ndarray], tuple[tuple[str, str], ...]]:
    """Replace columns of dates by columns of their parts; also their orders of day and month."""
    found: dict[str, np.ndarray] = {}
    orders: dict[str, str] = {}
    for name, values in used.items():
        if values.dtype.kind != "O" or not date_columns.are_dates({one for one in values if one is not None}):
            found[name] = values
            continue
        parts, orders[name] = date_columns.date_features(name, values)
        twice = next((part for part in parts if part in used), None)
        if twice is not None:
            raise InputError(f"the part {twice!r} of the dates in {name!r} is also a column; drop one of them")
        found |= parts
    return found, tuple(orders.items())


def _flatten_arrays(
    used: Mapping[str, np.ndarray], kinds: Sequence[Column]
) -> tuple[dict[str, np.ndarray], tuple[Column, ...]]:
    """Replace a two-dimensional array among other columns by one column for each of its elements."""
    flat: dict[str, np.ndarray] = {}
    columns: list[Column] = []
    for column in kinds:
        if column.kind == "array" and len(kinds) > 1:
            elements = _elements(column.name, used[column.name])
            flat |= elements
            columns += [Column(name, "number") for name in elements]
        else:
            flat[column.name] = used[column.name]
            columns.append(column)
    return flat, tuple(columns)


def _elements(name: str, values: np.ndarray) -> dict[str, np.ndarray]:
    """The columns of a two-dimensional array."""
    return {f"{name}[{index}]": values[:, index] for index in range(values.shape[1])}


def _complete_rows(gaps: Mapping[str, np.ndarray], name: str) -> np.ndarray:
    """The rows without missing values; dropped rows are logged."""
    incomplete = np.logical_or.reduce(list(gaps.values()))
    kept = np.flatnonzero(~incomplete)
    if len(kept) < len(incomplete):
        log.warning("%s: %d of %d rows lack a value and are dropped", name, incomplete.sum(), len(incomplete))
    if not len(kept):
        raise InputError(f"every row of {name} lacks a value, so none is left; drop the columns that are empty")
    return kept


def _check_lengths(used: Mapping[str, np.ndarray], label: str) -> None:
    rows = len(used[label])
    for key, values in used.items():
        if len(values) != rows:
            raise InputError(
                f"every column must have one value per row, but {key!r} has {len(values)} and the label {label!r} "
                f"{rows}; drop it if it is something else"
            )


def as_names(names: Collection[str]) -> tuple[str, ...]:
    """One or several names as a tuple."""
    return (names,) if isinstance(names, str) else tuple(names)
