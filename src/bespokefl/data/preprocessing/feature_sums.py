"""How many values a feature has, their sum and that of their squares: all that a client tells of its examples.

Sums of several clients add up to those of all of them, and give each feature's mean and spread.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from bespokefl.core.client_index import ClientIndex
from bespokefl.data.tables.features import Features

BLOCK = 1 << 22  # numbers that are held in float64 at a time
EQUAL = 1e-13  # variance over squared mean up to which values in float32 cannot be told from a constant


@dataclass(frozen=True, eq=False)
class Sums:
    """Of each feature over some examples: how many values, their sum, the sum of their squares. They add up."""

    count: np.ndarray
    total: np.ndarray
    squares: np.ndarray

    @classmethod
    def of(cls, x: np.ndarray, features: Features) -> "Sums":
        """A client's, from its own training examples; gaps (NaN) do not count."""
        zero = np.zeros(features.channels)
        sums = cls(zero, zero, zero)
        for block in blocks(len(x), x):
            values = by_feature(x[block], features).reshape(-1, features.channels)
            there = ~np.isnan(values)
            filled = np.where(there, values, 0.0)
            sums = sums + cls(there.sum(0).astype(float), filled.sum(0), np.square(filled).sum(0))
        return sums

    @classmethod
    def of_each(cls, x: np.ndarray, train: ClientIndex, features: Features) -> "Sums":
        """Every client's `of`, (clients, features), without a step for each of them."""
        indices, sizes = train.indices.numpy(), train.sizes.numpy()
        shape = (len(sizes), features.channels)
        sums = cls(np.zeros(shape), np.zeros(shape), np.zeros(shape))
        owner = np.repeat(np.arange(len(sizes)), sizes)
        for block in blocks(len(indices), x):
            values = by_feature(x[indices[block]], features)
            there = ~np.isnan(values)
            filled = np.where(there, values, 0.0)
            starts = np.flatnonzero(np.diff(owner[block], prepend=-1))  # of each client's examples, which are together
            whose = owner[block][starts]
            sums.count[whose] += np.add.reduceat(there.sum(1), starts)
            sums.total[whose] += np.add.reduceat(filled.sum(1), starts)
            sums.squares[whose] += np.add.reduceat(np.square(filled).sum(1), starts)
        return sums

    def __add__(self, other: "Sums") -> "Sums":
        return Sums(self.count + other.count, self.total + other.total, self.squares + other.squares)

    def widened(self, own: Features, wider: Features) -> "Sums":
        """Those of a table with features `own` as of one with more texts in its categories, which it has not seen."""
        which, beside = own.places_in(wider)
        known = which >= 0
        return Sums(
            self.count[beside], np.where(known, self.total[which], 0.0), np.where(known, self.squares[which], 0.0)
        )

    def __getitem__(self, at: slice) -> "Sums":
        return Sums(self.count[at], self.total[at], self.squares[at])

    @property
    def mean(self) -> np.ndarray:
        """NaN where there is no value."""
        found: np.ndarray = np.full(self.count.shape, np.nan)
        np.divide(self.total, self.count, out=found, where=self.count > 0)
        return found

    @property
    def spread(self) -> np.ndarray:
        """Standard deviation; 0 where all values are equal, NaN where there is none."""
        mean = self.mean
        # Values are float32: their squares are exact in float64, and the difference keeps enough digits.
        variance = np.divide(self.squares, self.count, out=np.full_like(mean, np.nan), where=self.count > 0) - mean**2
        return np.where(variance <= EQUAL * mean**2, 0.0, np.sqrt(np.maximum(variance, 0.0)))

    def rows(self, features: int) -> "Sums":
        """Of several clients; JSON does not tell of how many features those of nobody are."""
        return Sums(*(one.reshape(-1, features) for one in (self.count, self.total, self.squares)))

    def to_dict(self) -> dict[str, Any]:
        return {"count": self.count.tolist(), "total": self.total.tolist(), "squares": self.squares.tolist()}

    @classmethod
    def from_dict(cls, known: Mapping[str, Any]) -> "Sums":
        return cls(*(np.array(known[name], dtype=np.float64) for name in ("count", "total", "squares")))


def blocks(rows: int, x: np.ndarray) -> list[slice]:
    """Rows that are worked on at a time."""
    size = max(1, BLOCK // max(1, int(np.prod(x.shape[1:]))))
    return [slice(start, min(start + size, rows)) for start in range(0, rows, size)]


def by_feature(x: np.ndarray, features: Features) -> np.ndarray:
    """(examples, places, features) in float64: a picture's channels come first, a series' last."""
    values = x.astype(np.float64)
    if len(features.shape) == 3:
        return values.reshape(len(x), features.channels, -1).swapaxes(1, 2)
    return values.reshape(len(x), -1, features.channels)


def as_example(values: np.ndarray, features: Features) -> np.ndarray:
    """Back from `by_feature`."""
    ordered = values.swapaxes(1, 2) if len(features.shape) == 3 else values
    return ordered.reshape(len(values), *features.shape).astype(np.float32)
