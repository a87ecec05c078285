"""Count, sum and sum of squares of each feature: the only statistics of its examples that a client shares.

The sums of several clients add up to those of all of them and give the mean and standard deviation of each feature.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from bespokefl.core.client_index import ClientIndex
from bespokefl.data.tables.features import Features

BLOCK = 1 << 22  # numbers that are in memory as float64 at a time
CONSTANT = 1e-13  # ratio of variance to squared mean up to which float32 values are treated as constant


@dataclass(frozen=True, eq=False)
class FeatureSums:
    """For each feature: the number of values, their sum and the sum of their squares."""

    count: np.ndarray
    total: np.ndarray
    squares: np.ndarray

    @classmethod
    def zeros(cls, *shape: int) -> "FeatureSums":
        """The sums over no examples."""
        return cls(np.zeros(shape), np.zeros(shape), np.zeros(shape))

    @classmethod
    def of(cls, x: np.ndarray, features: Features) -> "FeatureSums":
        """The sums over one client's examples; missing values (NaN) do not count."""
        sums = cls.zeros(features.channels)
        for block in blocks(len(x), x):
            values = channels_last(x[block], features).reshape(-1, features.channels)
            present = ~np.isnan(values)
            filled = np.where(present, values, 0.0)
            sums = sums + cls(present.sum(0).astype(float), filled.sum(0), np.square(filled).sum(0))
        return sums

    @classmethod
    def of_each(cls, x: np.ndarray, train: ClientIndex, features: Features) -> "FeatureSums":
        """The sums of every client, (clients, features), vectorized over clients."""
        indices, sizes = train.indices.numpy(), train.sizes.numpy()
        sums = cls.zeros(len(sizes), features.channels)
        owner = np.repeat(np.arange(len(sizes)), sizes)
        for block in blocks(len(indices), x):
            values = channels_last(x[indices[block]], features)
            present = ~np.isnan(values)
            filled = np.where(present, values, 0.0)
            starts = np.flatnonzero(np.diff(owner[block], prepend=-1))  # a client's examples are contiguous
            clients = owner[block][starts]
            sums.count[clients] += np.add.reduceat(present.sum(1), starts)
            sums.total[clients] += np.add.reduceat(filled.sum(1), starts)
            sums.squares[clients] += np.add.reduceat(np.square(filled).sum(1), starts)
        return sums

    def __add__(self, other: "FeatureSums") -> "FeatureSums":
        return FeatureSums(self.count + other.count, self.total + other.total, self.squares + other.squares)

    def widen(self, own: Features, wider: Features) -> "FeatureSums":
        """The sums for `wider`, which has more category values than `own`; these do not occur in the data."""
        index, first = own.index_in(wider)
        known = index >= 0
        total, squares = (np.where(known, one[index], 0.0) for one in (self.total, self.squares))
        return FeatureSums(self.count[first], total, squares)

    def __getitem__(self, rows: slice) -> "FeatureSums":
        return FeatureSums(self.count[rows], self.total[rows], self.squares[rows])

    @property
    def mean(self) -> np.ndarray:
        """The mean; NaN if there is no value."""
        found: np.ndarray = np.full(self.count.shape, np.nan)
        np.divide(self.total, self.count, out=found, where=self.count > 0)
        return found

    @property
    def std(self) -> np.ndarray:
        """The standard deviation; 0 if all values are equal, NaN if there is none."""
        mean = self.mean
        # Values are float32: their squares are exact in float64, and the difference keeps enough digits.
        variance = np.divide(self.squares, self.count, out=np.full_like(mean, np.nan), where=self.count > 0) - mean**2
        return np.where(variance <= CONSTANT * mean**2, 0.0, np.sqrt(np.maximum(variance, 0.0)))

    def to_dict(self) -> dict[str, Any]:
        """The sums as JSON values."""
        return {"count": self.count.tolist(), "total": self.total.tolist(), "squares": self.squares.tolist()}

    @classmethod
    def from_dict(cls, content: Mapping[str, Any], *shape: int) -> "FeatureSums":
        """Read what `to_dict` returned; JSON loses the second dimension of the shape if there are no clients."""
        names = ("count", "total", "squares")
        return cls(*(np.array(content[name], dtype=np.float64).reshape(shape or -1) for name in names))


def blocks(rows: int, x: np.ndarray) -> list[slice]:
    """Slices of rows that are processed at a time."""
    size = max(1, BLOCK // max(1, int(np.prod(x.shape[1:]))))
    return [slice(start, min(start + size, rows)) for start in range(0, rows, size)]


def channels_last(x: np.ndarray, features: Features) -> np.ndarray:
    """Examples as (examples, positions, channels) in float64; an image has its channels first, a series last."""
    values = x.astype(np.float64)
    if len(features.shape) == 3:
        return values.reshape(len(x), features.channels, -1).swapaxes(1, 2)
    return values.reshape(len(x), -1, features.channels)


def from_channels_last(values: np.ndarray, features: Features) -> np.ndarray:
    """The inverse of `channels_last`, in float32."""
    ordered = values.swapaxes(1, 2) if len(features.shape) == 3 else values
    return ordered.reshape(len(values), *features.shape).astype(np.float32)
