"""What the numbers of an example mean: a quantity, a truth value, one of several categories, or words.

A table's columns become the features of an example in their order: a number or a truth value takes one place, a
category one place for each of its texts (1 where it is that text). A missing value is NaN until `prepare` fills it.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np
import torch

from bespokefl.core.errors import InputError, listing
from bespokefl.data.dataset import Dataset
from bespokefl.data.tables import text

TABLE = ("number", "truth", "category")  # kinds that stand beside each other
WORDS = ("text", "tokens")
TRUTH = {"true": 1.0, "false": 0.0}
MOST = 100  # texts of a category
MISSING = frozenset({"", "na", "n/a", "nan", "null", "none", "?"})  # in lower case: no value

Place = Callable[[int], str]


@dataclass(frozen=True)
class Column:
    """One column of the source. Kinds: those of a table; array, a whole example of its own; text; tokens."""

    name: str
    kind: str
    values: tuple[str, ...] = ()  # a category's texts, or a text's words from number 2 on

    def __post_init__(self) -> None:
        object.__setattr__(self, "values", tuple(self.values))  # JSON has lists only

    @property
    def places(self) -> tuple[str, ...]:
        """What its features are called."""
        return tuple(f"{self.name}={value}" for value in self.values) if self.kind == "category" else (self.name,)


@dataclass(frozen=True)
class Features:
    """How examples are made of columns, and which of these are no features but the label and the client."""

    columns: tuple[Column, ...]
    shape: tuple[int, ...]  # of an example
    label: str | None = None
    client: str | None = None

    @classmethod
    def of(cls, shape: tuple[int, ...], tokens: bool = False) -> "Features":
        """For examples that came as arrays."""
        return cls((Column("x", "tokens" if tokens else "array"),), shape)

    @property
    def kind(self) -> str:
        """table, array, text or tokens."""
        return self.columns[0].kind if self.columns and self.columns[0].kind not in TABLE else "table"

    @property
    def names(self) -> tuple[str, ...]:
        """What each feature is called that has a mean of its own: the columns of a table, the channels of an array."""
        if self.kind == "table":
            return tuple(place for column in self.columns for place in column.places)
        return tuple(f"{self.columns[0].name}[{at}]" for at in range(self.channels))

    @property
    def channels(self) -> int:
        """How many of them: features of a row, channels of a series (time, channel) or picture (channel, h, w)."""
        return self.shape[0] if len(self.shape) == 3 else self.shape[-1]

    @property
    def quantities(self) -> np.ndarray:
        """Which of them are numbers that can be scaled; truth values and categories are not."""
        if self.kind != "table":
            return np.ones(self.channels, dtype=bool)
        return np.array([column.kind == "number" for column in self.columns for _ in column.places], dtype=bool)

    @property
    def categories(self) -> np.ndarray:
        """Which of them say whether a category has a certain text."""
        if self.kind != "table":
            return np.zeros(self.channels, dtype=bool)
        return np.array([column.kind == "category" for column in self.columns for _ in column.places], dtype=bool)

    def encode(self, columns: Mapping[str, np.ndarray], place: Place) -> np.ndarray:
        """Examples as numbers, float32 (NaN: missing) or int64, from columns as `tables` reads them."""
        absent = [column.name for column in self.columns if column.name not in columns]
        if absent:
            raise InputError(
                f"the data must have a column {absent[0]!r}, as the first had; they have {listing(sorted(columns), 10)}"
            )
        if self.kind == "text":
            only = self.columns[0]
            return text.encode(documents(columns[only.name], only.name), only.values, self.shape[0])
        if self.kind in ("array", "tokens"):
            return columns[self.columns[0].name]
        rows = len(columns[self.columns[0].name])
        x = np.empty((rows, len(self.names)), dtype=np.float32)
        at = 0
        for column in self.columns:
            width = len(column.places)
            x[:, at : at + width] = _encoded(column, columns[column.name], place)
            at += width
        return x

    def places_in(self, wider: "Features") -> tuple[np.ndarray, np.ndarray]:
        """For each feature of a table that has these columns, and perhaps more texts: which of these here it is (-1:
        none of them), and any one here of the same column."""
        mine = {column.name: column for column in self.columns}
        starts = dict(
            zip(mine, np.cumsum([0, *(len(column.places) for column in self.columns)]).tolist(), strict=False)
        )
        which, beside = [], []
        for column in wider.columns:
            own, start = mine[column.name], starts[column.name]
            found = {place: start + at for at, place in enumerate(own.places)}
            which += [found.get(place, -1) for place in column.places]
            beside += [start] * len(column.places)
        return np.array(which, dtype=np.int64), np.array(beside, dtype=np.int64)

    def widened(self, x: np.ndarray, wider: "Features") -> np.ndarray:
        """Examples of a table with these features as examples with those of `wider`; a gap stays one."""
        if wider.columns == self.columns:
            return x
        which, beside = self.places_in(wider)
        absent = np.where(np.isnan(x[:, beside]), np.float32(math.nan), np.float32(0))
        return np.where(which >= 0, x[:, which], absent)

    def to_dict(self) -> dict[str, Any]:
        """As JSON holds it."""
        return asdict(self)

    @classmethod
    def from_dict(cls, known: Mapping[str, Any]) -> "Features":
        columns = tuple(Column(**column) for column in known["columns"])
        return cls(columns, tuple(known["shape"]), known["label"], known["client"])


def together(parts: Mapping[str, Features]) -> Features:
    """What the examples of several owners consist of, by the owners' names: the same columns of the same kinds, or an
    array of the same shape. The texts of a category are those of all of them; label and client are not compared."""
    first, *others = parts
    whole = parts[first]
    for other in others:
        _check_alike(first, whole, other, parts[other])
    clients = [one.client for one in parts.values() if one.client is not None]
    whole = replace(whole, client=clients[0] if clients else None)
    if whole.kind != "table":
        return whole
    texts: dict[str, set[str]] = {column.name: set() for column in whole.columns}
    for one in parts.values():
        for column in one.columns:
            texts[column.name].update(column.values)
    for name, found in texts.items():
        if len(found) > MOST:
            raise InputError(
                f"column {name!r} has {len(found)} different texts at {listing(list(parts))} together, and at most "
                f"{MOST} can be categories; drop it, or write the same texts everywhere"
            )
    columns = tuple(replace(column, values=tuple(sorted(texts[column.name]))) for column in whole.columns)
    return replace(whole, columns=columns, shape=(sum(len(column.places) for column in columns),))


def _check_alike(first: str, whole: Features, other: str, features: Features) -> None:
    if features.kind != whole.kind or (whole.kind != "table" and features.shape != whole.shape):
        raise InputError(
            f"the data must be of the same kind everywhere, but {other} has {_described(features)} and {first} "
            f"{_described(whole)}"
        )
    if whole.kind != "table":
        return
    here, there = ({column.name: column for column in one.columns} for one in (whole, features))
    for name in (*here, *there):
        if name not in there or name not in here:
            has, lacks = (first, other) if name in here else (other, first)
            raise InputError(f"the columns must be the same everywhere, but {name!r} is at {has} and not at {lacks}")
        if here[name].kind != there[name].kind:
            raise InputError(
                f"the columns must be the same everywhere, but {name!r} has {_shown(there[name])} at {other} and "
                f"{_shown(here[name])} at {first}; write it alike, or drop it"
            )


def _described(features: Features) -> str:
    kinds = {"table": "a table", "array": f"examples of shape {features.shape}"}
    return kinds.get(features.kind, f"{features.kind} of shape {features.shape}")


def _shown(column: Column) -> str:
    kinds = {"number": "numbers", "truth": "true and false"}
    return kinds.get(column.kind) or f"texts ({listing(column.values, 3)})"


@dataclass(frozen=True, eq=False, repr=False)
class Table(Dataset):
    """A data set whose features are known by name. Its x may hold NaN, for `prepare` to fill."""

    features: Features = field(default_factory=lambda: Features((), ()))

    @classmethod
    def build(
        cls,
        features: Features,
        x: np.ndarray,
        y: np.ndarray,
        client: np.ndarray | None,
        name: str,
        place: Place,
        columns: Mapping[str, np.ndarray] | None = None,
    ) -> "Table":
        """Checked as other data are, but for values that are missing."""
        holes = np.isnan(x) if x.dtype.kind == "f" else np.zeros(0, dtype=bool)
        filled = np.where(holes, np.float32(0), x) if holes.any() else x
        tokens = features.kind in WORDS
        made = Dataset.from_arrays(filled, y, client, name, tokens=tokens, columns=columns, place=place)
        if holes.any():
            object.__setattr__(made, "x", torch.from_numpy(np.where(holes, np.float32(math.nan), made.x.numpy())))
        known = {one: getattr(made, one) for one in Dataset.__dataclass_fields__}
        return cls(**known, features=features)


def is_missing(values: np.ndarray) -> np.ndarray:
    """Which entries of a column hold no value."""
    if values.dtype.kind == "O":
        return np.fromiter((one is None for one in values), dtype=bool, count=len(values))
    if values.dtype.kind == "f":
        holes: np.ndarray = np.isnan(values).reshape(len(values), -1).any(1)
        return holes
    return np.zeros(len(values), dtype=bool)


def _encoded(column: Column, values: np.ndarray, place: Place) -> np.ndarray:
    """A column's places, (rows, places)."""
    if column.kind == "category":
        position = {one: at for at, one in enumerate(column.values)}
        codes = [-2 if one is None else position.get(one, -1) for one in _texts(values)]
        found = np.array(codes, dtype=np.int64)
        hot = np.zeros((len(values), len(column.values)), dtype=np.float32)
        known = np.flatnonzero(found >= 0)
        hot[known, found[known]] = 1
        hot[found == -2] = math.nan
        return hot
    if values.dtype.kind == "O":
        words = TRUTH if column.kind == "truth" else {}
        numbers = np.empty(len(values))
        for at, one in enumerate(values):
            known_value = math.nan if one is None else words.get(str(one).lower())
            if known_value is None:
                expected = "true or false" if column.kind == "truth" else "a number"
                raise InputError(f"column {column.name!r} must hold {expected}, got {one!r} in {place(at)}")
            numbers[at] = known_value
        values = numbers
    with np.errstate(over="ignore"):
        small = values.astype(np.float32)
    endless = np.flatnonzero(np.isinf(small))
    if len(endless):
        raise InputError(
            f"column {column.name!r} must hold finite numbers (in float32), got {values[endless[0]]} in "
            f"{place(int(endless[0]))}; remove or fill it"
        )
    return small[:, None]


def _texts(values: np.ndarray) -> Sequence[str | None]:
    """A column as texts; whole numbers as they are written, truth values as true and false."""
    if values.dtype.kind == "O":
        return list(values)
    if values.dtype.kind == "f":
        return [None if math.isnan(one) else f"{one:g}" for one in values.tolist()]
    return [str(one).lower() if isinstance(one, bool) else str(one) for one in values.tolist()]


def documents(values: np.ndarray, name: str) -> list[str]:
    """A column's texts, empty where there is none."""
    if values.ndim != 1:
        raise InputError(f"the text column {name!r} must hold one text per row, got shape {values.shape}")
    return [one or "" for one in _texts(values)]
