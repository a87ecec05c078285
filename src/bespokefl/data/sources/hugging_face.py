"""Converts a Hugging Face `Dataset`, or any object with column_names, features and columns by name."""

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
    """Convert one split of a Hugging Face data set, such as ``load_dataset("imdb")["train"]``.

    `features` are the columns to learn from, by default all others; images become (channel, height, width). The names
    of a ClassLabel are kept, and lists of word ids in the column `text` are padded with 0. The other options are those
    of `bespokefl.data.tables.from_columns`.
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
    columns = {one: _to_column(dataset[one], one) for one in chosen}
    names = getattr((getattr(dataset, "features", None) or {}).get(label), "names", None)  # of a ClassLabel
    if names and label is not None:
        codes = np.asarray(columns[label])
        if codes.min() < 0:
            raise InputError(f"the label {label!r} must be known for every row, got {codes.min()}, which means none")
    table = tables.from_columns(columns, label=label, client=client, text=text, missing=missing, task=task, name=name)
    if not names or table.classes is None:
        return table
    return replace(table, label_names=tuple(names[int(one)] for one in table.label_names))


def _to_column(column: Any, name: str) -> Any:
    """An array if the entries are images, arrays or lists; other columns are returned unchanged, as a list."""
    values = list(column)
    if not values or isinstance(values[0], str | bytes | int | float | None | np.number | np.bool_):
        return values
    if hasattr(values[0], "isoformat"):
        return np.array(values, dtype=object)
    try:
        arrays = [np.asarray(one) for one in values]
    except (ValueError, TypeError):
        arrays = []
    shapes = {one.shape for one in arrays}
    if not arrays or any(one.dtype.kind not in "fiub" for one in arrays):
        raise InputError(f"column {name!r} must hold numbers, texts, images or arrays, got {type(values[0]).__name__}")
    if len(shapes) > 1:
        if all(len(shape) == 1 for shape in shapes) and all(one.dtype.kind in "iu" for one in arrays):
            padded = np.zeros((len(arrays), max(map(len, arrays))), dtype=np.int64)
            for row, ids in zip(padded, arrays, strict=True):
                row[: len(ids)] = ids
            return padded
        raise InputError(
            f"column {name!r} must hold arrays of one shape, got {min(shapes)} and {max(shapes)}; resize or cut them"
        )
    stacked = np.stack(arrays)
    is_image = hasattr(values[0], "mode")  # Pillow
    return np.moveaxis(stacked, -1, 1) if is_image and stacked.ndim == 4 else stacked
