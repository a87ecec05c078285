"""What an exported model takes, and how examples are preprocessed: the content of preprocessing.json."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from bespokefl.core.errors import InputError
from bespokefl.data.preprocessing.transform import Preparation
from bespokefl.data.tables import text
from bespokefl.data.tables.features import WORD_KINDS, Features

NAME = "x"  # of the input of an exported model
UNSEEN = -1  # the code of a category value that did not occur in training


@dataclass(frozen=True, eq=False)
class Inputs:
    """The inputs of an exported model.

    A table has one number per column: a number, 0 or 1, or the position of a category among its values; arrays have
    their own shape; text has word ids.
    """

    features: Features
    tokens: int | None  # for text, the number of word ids
    scale: str
    missing: str
    constants: tuple[np.ndarray, np.ndarray, np.ndarray] | None  # fill, offset, factor; None: numbers are unchanged

    @classmethod
    def of(
        cls, preparation: Preparation | None, client: str | None, shape: tuple[int, ...], tokens: int | None
    ) -> "Inputs":
        """The inputs of a client's model, or of the global model (client None)."""
        if preparation is None:
            return cls(Features.of_arrays(shape, tokens is not None), tokens, "none", "refuse", None)
        if preparation.scale == "own" and client is None:
            raise InputError(
                "the global model cannot be exported, as each client scales examples by its own statistics; export the "
                "clients' models."
            )
        constants = preparation.constants(client)
        return cls(preparation.features, tokens, preparation.scale, preparation.missing, constants)

    @property
    def is_text(self) -> bool:
        """Whether an input is a sequence of word ids."""
        return self.features.kind in WORD_KINDS

    @property
    def fills(self) -> bool:
        """Whether values may be missing (NaN)."""
        return self.constants is not None and self.missing == "mean"

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one input."""
        return (len(self.features.columns),) if self.features.kind == "table" else self.features.shape

    @property
    def dtype(self) -> str:
        """The name of the type of an input."""
        return "int64" if self.is_text else "float32"

    @property
    def column(self) -> list[int]:
        """For each feature of a table, its column."""
        return [at for at, column in enumerate(self.features.columns) for _ in column.feature_names]

    @property
    def code(self) -> list[int | None]:
        """For each feature of a table, the position of its value in the column's values; None if it is a number."""
        columns = self.features.columns
        return [at for one in columns for at in (range(len(one.values)) if one.kind == "category" else (None,))]

    def from_examples(self, x: np.ndarray) -> np.ndarray:
        """Return inputs for numeric examples as `Clients` has them before preprocessing: one-hot categories."""
        if self.features.kind != "table":
            return x
        columns = self.features.columns
        parts = np.split(x, np.cumsum([len(one.feature_names) for one in columns])[:-1], axis=1)
        pairs = zip(columns, parts, strict=True)
        return np.concatenate([_codes(part) if one.kind == "category" else part for one, part in pairs], axis=1)

    def random(self, number: int, rng: np.random.Generator) -> np.ndarray:
        """Return random inputs; in the first one everything is missing, if values may be missing."""
        if self.is_text:
            assert self.tokens is not None
            return rng.integers(0, self.tokens, (number, *self.shape))
        x = rng.normal(size=(number, *self.shape))
        if self.features.kind == "table":
            for at, column in enumerate(self.features.columns):
                if column.kind != "number":
                    x[:, at] = rng.integers(UNSEEN, len(column.values), number) if column.values else x[:, at] > 0
        if self.fills:
            x[0] = np.nan
        return x.astype(np.float32)

    def to_examples(self, x: np.ndarray) -> np.ndarray:
        """The inverse of `from_examples`."""
        if self.features.kind != "table":
            return x
        wide, code = x[:, self.column], np.array([np.nan if one is None else one for one in self.code])
        one_hot = np.where(np.isnan(wide), wide, wide == code)
        return np.where(np.isnan(code), wide, one_hot).astype(np.float32)

    def to_dict(self) -> dict[str, Any]:
        """The content of preprocessing.json."""
        kind = self.features.kind
        about: dict[str, Any] = {"kind": kind, "input": self.describe()}
        if self.is_text:
            words = {"vocabulary": list(self.features.columns[0].values)} if kind == "text" else {}
            about["words"] = {
                "padding": text.PADDING,
                "unknown": text.UNKNOWN,
                "first": text.FIRST,
                "length": self.shape[0],
                "ids": self.tokens,
                **words,
            }
            return about
        if kind == "table":
            columns = self.features.columns
            about["columns"] = [{"name": one.name, "kind": one.kind, "values": list(one.values)} for one in columns]
        about |= {"scale": self.scale, "missing": "fill" if self.fills else "refuse", "features": self._features()}
        return about

    def describe(self) -> dict[str, Any]:
        """Name, type and shape of the input."""
        return {"name": NAME, "dtype": self.dtype, "shape": ["batch", *self.shape]}

    def _features(self) -> list[dict[str, Any]] | None:
        if self.constants is None:
            return None
        names, is_table = self.features.names, self.features.kind == "table"
        sources = zip(self.column, self.code, strict=True) if is_table else ((None, None) for _ in names)
        rows = zip(names, sources, *self.constants, strict=True)
        return [
            {"name": name}
            | ({"column": column, "code": code} if is_table else {})
            | {"fill": float(fill) if self.fills else None, "offset": float(offset), "factor": float(factor)}
            for name, (column, code), fill, offset, factor in rows
        ]


def _codes(one_hot: np.ndarray) -> np.ndarray:
    """The position of the 1 in each row, (rows, 1); UNSEEN if there is none, NaN if the value is missing."""
    found = np.where(one_hot.max(1) > 0, one_hot.argmax(1), UNSEEN)
    return np.where(np.isnan(one_hot).any(1), np.nan, found).astype(np.float32)[:, None]
