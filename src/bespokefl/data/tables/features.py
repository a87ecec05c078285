"""How the columns of a table become the features of an example: numbers, booleans, categories or words.

Columns become features in their order: a number or a boolean is one feature, a category one feature for each of its
values (1 if the row has that value). A missing value is NaN until `prepare` fills it.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np
import torch

from bespokefl.core.errors import InputError, listing
from bespokefl.data.dataset import Dataset, Locate
from bespokefl.data.tables import text
from bespokefl.data.tables.reading import Reading

TABLE_KINDS = ("number", "truth", "category")  # kinds of columns that can be combined; "truth" is a boolean
WORD_KINDS = ("text", "tokens")
BOOLEANS = {"true": 1.0, "false": 0.0}
MAX_CATEGORIES = 100  # values of a category
MISSING_TEXTS = frozenset({"", "na", "n/a", "nan", "null", "none", "?"})  # in lower case


@dataclass(frozen=True)
class Column:
    """A column: number, truth, category; array, which is a whole example; text; or tokens."""

    name: str
    kind: str
    values: tuple[str, ...] = ()  # the values of a category, or the words of a text from id 2 on

    @property
    def feature_names(self) -> tuple[str, ...]:
        """The names of its features."""
        return tuple(f"{self.name}={value}" for value in self.values) if self.kind == "category" else (self.name,)


@dataclass(frozen=True)
class Features:
    """How examples are made of columns, and the names of the label and client columns."""

    columns: tuple[Column, ...]
    shape: tuple[int, ...]  # of an example
    label: str | None = None
    client: str | None = None
    reading: Reading = field(default_factory=Reading)  # how the cells of files become values

    @classmethod
    def of_arrays(cls, shape: tuple[int, ...], tokens: bool = False) -> "Features":
        """The features of examples that are arrays."""
        return cls((Column("x", "tokens" if tokens else "array"),), shape)

    @property
    def kind(self) -> str:
        """table, array, text or tokens."""
        return self.columns[0].kind if self.columns and self.columns[0].kind not in TABLE_KINDS else "table"

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the features with their own mean: features of a table, channels of an array."""
        if self.kind == "table":
            return tuple(name for column in self.columns for name in column.feature_names)
        return tuple(f"{self.columns[0].name}[{index}]" for index in range(self.channels))

    @property
    def channels(self) -> int:
        """The number of these: features of a row, channels of a series (time, channel) or image (channel, h, w)."""
        return self.shape[0] if len(self.shape) == 3 else self.shape[-1]

    def are(self, kind: str) -> np.ndarray:
        """Which of them belong to columns of this kind: "number", which can be scaled, "truth" or "category"."""
        if self.kind != "table":
            return np.full(self.channels, kind == "number")
        return np.array([column.kind == kind for column in self.columns for _ in column.feature_names], dtype=bool)

    def encode(self, columns: Mapping[str, np.ndarray], locate: Locate) -> np.ndarray:
        """Examples as numbers, float32 (NaN: missing) or int64, from columns as `table_files.read` returns them."""
        absent = [column.name for column in self.columns if column.name not in columns]
        if absent:
            raise InputError(
                f"the data must have a column {absent[0]!r}, like the training data; they have "
                f"{listing(sorted(columns), 10)}"
            )
        if self.kind == "text":
            only = self.columns[0]
            return text.encode(to_documents(columns[only.name], only.name), only.values, self.shape[0])
        if self.kind in ("array", "tokens"):
            return columns[self.columns[0].name]
        return np.concatenate([_encode(column, columns[column.name], locate) for column in self.columns], axis=1)

    def index_in(self, wider: "Features") -> tuple[np.ndarray, np.ndarray]:
        """For each feature of `wider`, which has the same columns and perhaps more category values: its index here
        (-1: none), and the index of the first feature of the same column."""
        own = {column.name: column for column in self.columns}
        sizes = [len(column.feature_names) for column in self.columns]
        starts = dict(zip(own, np.cumsum([0, *sizes]).tolist(), strict=False))
        index, first = [], []
        for column in wider.columns:
            start = starts[column.name]
            known = {name: start + offset for offset, name in enumerate(own[column.name].feature_names)}
            index += [known.get(name, -1) for name in column.feature_names]
            first += [start] * len(column.feature_names)
        return np.array(index, dtype=np.int64), np.array(first, dtype=np.int64)

    def widen(self, x: np.ndarray, wider: "Features") -> np.ndarray:
        """Convert examples with these features to those of `wider`; missing values stay missing."""
        if wider.columns == self.columns:
            return x
        index, first = self.index_in(wider)
        absent = np.where(np.isnan(x[:, first]), np.float32(math.nan), np.float32(0))
        return np.where(index >= 0, x[:, index], absent)

    def to_dict(self) -> dict[str, Any]:
        """The features as JSON values."""
        return asdict(self)

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> "Features":
        """Restore the features from what `to_dict` returned."""
        columns = tuple(Column(**{**column, "values": tuple(column["values"])}) for column in content["columns"])
        reading = Reading.from_dict(content["reading"]) if "reading" in content else Reading()  # earlier versions: none
        return cls(columns, tuple(content["shape"]), content["label"], content["client"], reading)


def merge_features(parts: Mapping[str, Features]) -> Features:
    """The features of the data of several owners, given by the owners' names.

    All must have the same columns of the same kinds, or arrays of the same shape. A category has the values of all of
    them; label and client columns are not compared.
    """
    first, *others = parts
    merged = parts[first]
    for other in others:
        _check_compatible(first, merged, other, parts[other])
        merged = replace(merged, reading=merged.reading.merge(parts[other].reading, other))
    merged = replace(merged, client=next((one.client for one in parts.values() if one.client is not None), None))
    if merged.kind != "table":
        return merged
    values: dict[str, set[str]] = {column.name: set() for column in merged.columns}
    for one in parts.values():
        for column in one.columns:
            values[column.name].update(column.values)
    for name, found in values.items():
        if len(found) > MAX_CATEGORIES:
            raise InputError(
                f"column {name!r} has {len(found)} different texts at {listing(list(parts))} together, and at most "
                f"{MAX_CATEGORIES} can be categories; drop it, or write the same texts everywhere"
            )
    columns = tuple(replace(column, values=tuple(sorted(values[column.name]))) for column in merged.columns)
    return replace(merged, columns=columns, shape=(sum(len(column.feature_names) for column in columns),))


def _check_compatible(first: str, merged: Features, other: str, features: Features) -> None:
    if features.kind != merged.kind or (merged.kind != "table" and features.shape != merged.shape):
        raise InputError(
            f"the data must be of the same kind everywhere, but {other} has {_describe(features)} and {first} "
            f"{_describe(merged)}"
        )
    if merged.kind != "table":
        return
    here, there = ({column.name: column for column in one.columns} for one in (merged, features))
    for name in (*here, *there):
        if name not in there or name not in here:
            has, lacks = (first, other) if name in here else (other, first)
            raise InputError(f"the columns must be the same everywhere, but {name!r} is at {has} and not at {lacks}")
        if here[name].kind != there[name].kind:
            raise InputError(
                f"the columns must be the same everywhere, but {name!r} has {_describe_column(there[name])} at {other} "
                f"and {_describe_column(here[name])} at {first}; use one kind, or drop it"
            )


def _describe(features: Features) -> str:
    kinds = {"table": "a table", "array": f"examples of shape {features.shape}"}
    return kinds.get(features.kind, f"{features.kind} of shape {features.shape}")


def _describe_column(column: Column) -> str:
    kinds = {"number": "numbers", "truth": "true and false"}
    return kinds.get(column.kind) or f"texts ({listing(column.values, 3)})"


@dataclass(frozen=True, eq=False, repr=False)
class Table(Dataset):
    """A data set with named features; x may hold NaN, which `prepare` fills."""

    features: Features = field(default_factory=lambda: Features((), ()))

    @classmethod
    def build(
        cls,
        features: Features,
        x: np.ndarray,
        y: np.ndarray,
        client: np.ndarray | None,
        name: str,
        locate: Locate,
        columns: Mapping[str, np.ndarray] | None = None,
    ) -> "Table":
        """Check the values like `Dataset.from_arrays`, but allow missing ones."""
        missing = np.isnan(x) if x.dtype.kind == "f" else np.zeros(0, dtype=bool)
        filled = np.where(missing, np.float32(0), x) if missing.any() else x
        tokens = features.kind in WORD_KINDS
        made = Dataset.from_arrays(filled, y, client, name, tokens=tokens, columns=columns, locate=locate)
        if missing.any():
            object.__setattr__(made, "x", torch.from_numpy(np.where(missing, np.float32(math.nan), made.x.numpy())))
        return cls(**{one: getattr(made, one) for one in Dataset.__dataclass_fields__}, features=features)


def is_missing(values: np.ndarray) -> np.ndarray:
    """Which rows of a column have no value."""
    if values.dtype.kind == "O":
        return np.fromiter((one is None for one in values), dtype=bool, count=len(values))
    if values.dtype.kind == "f":
        missing: np.ndarray = np.isnan(values).reshape(len(values), -1).any(1)
        return missing
    return np.zeros(len(values), dtype=bool)


def _encode(column: Column, values: np.ndarray, locate: Locate) -> np.ndarray:
    """The features of a column, (rows, features), float32."""
    if column.kind == "category":
        position = {one: index for index, one in enumerate(column.values)}
        codes = np.array([-2 if one is None else position.get(one, -1) for one in _to_texts(values)], dtype=np.int64)
        one_hot = np.zeros((len(values), len(column.values)), dtype=np.float32)
        known = np.flatnonzero(codes >= 0)
        one_hot[known, codes[known]] = 1
        one_hot[codes == -2] = math.nan
        return one_hot
    if values.dtype.kind == "O":
        accepted = BOOLEANS if column.kind == "truth" else {}
        numbers = np.empty(len(values))
        for row, one in enumerate(values):
            number = math.nan if one is None else accepted.get(str(one).lower())
            if number is None:
                expected = "true or false" if column.kind == "truth" else "a number"
                raise InputError(f"column {column.name!r} must hold {expected}, got {one!r} in {locate(row)}")
            numbers[row] = number
        values = numbers
    with np.errstate(over="ignore"):
        converted = values.astype(np.float32)
    infinite = np.flatnonzero(np.isinf(converted))
    if len(infinite):
        raise InputError(
            f"column {column.name!r} must hold finite numbers (in float32), got {values[infinite[0]]} in "
            f"{locate(int(infinite[0]))}; remove or fill it"
        )
    return converted[:, None]


def _to_texts(values: np.ndarray) -> Sequence[str | None]:
    """A column as texts; integers without a decimal point, booleans as true and false."""
    if values.dtype.kind == "O":
        return list(values)
    if values.dtype.kind == "f":
        return [None if math.isnan(one) else f"{one:g}" for one in values.tolist()]
    return [str(one).lower() if isinstance(one, bool) else str(one) for one in values.tolist()]


def to_documents(values: np.ndarray, name: str) -> list[str]:
    """A column as documents; a missing one is empty."""
    if values.ndim != 1:
        raise InputError(f"the text column {name!r} must hold one text per row, got shape {values.shape}")
    return [one or "" for one in _to_texts(values)]
