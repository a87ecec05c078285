"""A Hugging Face `Dataset` as data: any object with column_names, features and columns by name will do."""

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from bespokefl.core.errors import InputError, unknown
from bespokefl.data.tables import table as tables
from bespokefl.data.tables.features import Table


def from_dataset(
    dataset: Any,
    *,
    label: str | None = None,
    features: str | Collection[str] | None = None,
    client: str | None = None,
    text: str | None = None,
    missing: str = "refuse",
    task: str | None = None,
    name: str = "hugging face",
) -> Table:
    """One split of a Hugging Face data set, such as load_dataset("imdb")["train"].

    label     the column to predict; None: y or label
    features  the columns to learn from; None: all others. Pictures become (channel, height, width)
    client    the column that says whose a row is
    text      the column with documents, or with numbers of words
    """
    known = getattr(dataset, "column_names", None)
    if isinstance(known, dict) or (known is None and hasattr(dataset, "keys")):
        raise InputError(
            f"expected one split of a data set, got {', '.join(dataset)}; choose one, as in dataset['train']"
        )
    if not isinstance(known, Sequence) or not hasattr(dataset, "__getitem__"):
        raise InputError(f"expected a Hugging Face data set, with column_names, got {type(dataset).__name__}")
    label = label or next((one for one in tables.LABELS if one in known), None)
    wanted = [features] if isinstance(features, str) else None if features is None else list(features)
    if text is not None:
        wanted = [text]
    for one in (*(wanted or ()), *filter(None, (label, client))):
        if one not in known:
            raise unknown("column of the data set", one, known)
    client = client or (tables.CLIENT if tables.CLIENT in known else None)
    chosen = [one for one in known if wanted is None or one in wanted or one in (label, client)]
    columns = {one: _values(dataset[one], one) for one in chosen}
    names = _class_names(dataset, label)
    if names and label is not None:
        codes = np.asarray(columns[label])
        if codes.min() < 0:
            raise InputError(f"the label {label!r} must be known for every row, got {codes.min()}, which means none")
    table = tables.from_columns(columns, label=label, client=client, text=text, missing=missing, task=task, name=name)
    if not names or table.classes is None:
        return table
    return replace(table, label_names=tuple(names[int(one)] for one in table.label_names))


def _class_names(dataset: Any, label: str | None) -> Sequence[str]:
    """The names of a ClassLabel, else nothing."""
    described = getattr(dataset, "features", None) or {}
    return getattr(described.get(label), "names", None) or ()


def _values(column: Any, name: str) -> Any:
    """A column as an array where its entries are pictures, arrays or lists; else as it is."""
    values = list(column)
    if not values or isinstance(values[0], str | bytes | int | float | bool | None):
        return values
    if isinstance(values[0], np.number | np.bool_):
        return np.array(values)
    if hasattr(values[0], "isoformat"):
        return np.array(values, dtype=object)
    try:
        arrays = [np.asarray(one) for one in values]
    except (ValueError, TypeError):
        arrays = []
    shapes = {one.shape for one in arrays}
    if not arrays or any(one.dtype.kind not in "fiub" for one in arrays):
        raise InputError(
            f"column {name!r} must hold numbers, texts, pictures or arrays, got {type(values[0]).__name__}"
        )
    if len(shapes) > 1:
        if all(len(shape) == 1 for shape in shapes) and all(one.dtype.kind in "iu" for one in arrays):
            return _padded(arrays)
        raise InputError(
            f"column {name!r} must hold arrays of one shape, got {min(shapes)} and {max(shapes)}; resize or cut them"
        )
    together = np.stack(arrays)
    picture = hasattr(values[0], "mode")  # PIL
    return np.moveaxis(together, -1, 1) if picture and together.ndim == 4 else together


def _padded(lists: Sequence[np.ndarray]) -> np.ndarray:
    """Lists of different lengths, such as numbers of words, filled with 0."""
    wide = np.zeros((len(lists), max(map(len, lists))), dtype=np.int64)
    for row, own in zip(wide, lists, strict=True):
        row[: len(own)] = own
    return wide
