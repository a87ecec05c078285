"""What a split can do to a client's examples: rotate images and permute labels."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bespokefl.core.client_index import ClientIndex

Parts = tuple[ClientIndex, ClientIndex, ClientIndex]  # train, validation, test


@dataclass(frozen=True)
class Transform:
    """Applied to every example of a client in all its parts; the default changes nothing."""

    turns: int = 0  # quarter turns of the last two axes, counter-clockwise like numpy.rot90: 0 to 3
    labels: tuple[int, ...] | None = None  # the label c becomes labels[c]

    def then(self, other: "Transform") -> "Transform":
        """This transform followed by another one."""
        labels = self.labels if other.labels is None else other.labels
        if self.labels is not None and other.labels is not None:
            labels = tuple(other.labels[one] for one in self.labels)
        return Transform((self.turns + other.turns) % 4, labels)

    def rotate(self, x: Tensor) -> Tensor:
        return x if self.turns == 0 else torch.rot90(x, self.turns, (-2, -1))

    def relabel(self, y: Tensor) -> Tensor:
        return y if self.labels is None else torch.tensor(self.labels, dtype=y.dtype)[y]

    def to_dict(self) -> dict[str, Any]:
        """The form used in split files."""
        return {"turns": self.turns, "labels": None if self.labels is None else list(self.labels)}


UNCHANGED = Transform()


def transform_examples(
    x: Tensor, y: Tensor, parts: Parts, transforms: Sequence[Transform]
) -> tuple[Tensor, Tensor, Parts, Tensor]:
    """Apply each client's transform.

    Returns x and y with one entry for each (example, transform) pair in use, the parts as indices into these, and the
    original example of each entry.
    """
    distinct = sorted(set(transforms), key=lambda one: (one.turns, one.labels or ()))
    number = {one: index for index, one in enumerate(distinct)}
    of_client = np.array([number[one] for one in transforms])
    keys = [np.repeat(of_client, part.sizes.numpy()) * len(x) + part.indices.numpy() for part in parts]
    used, positions = np.unique(np.concatenate(keys), return_inverse=True)
    origin = torch.from_numpy(used % len(x))
    ends = np.searchsorted(used, np.arange(len(distinct) + 1) * len(x)).tolist()
    new_x = torch.empty((len(used), *x.shape[1:]), dtype=x.dtype)
    new_y = torch.empty(len(used), dtype=y.dtype)
    for one, start, end in zip(distinct, ends[:-1], ends[1:], strict=True):
        new_x[start:end] = one.rotate(x[origin[start:end]])
        new_y[start:end] = one.relabel(y[origin[start:end]])
    borders = np.cumsum([len(one) for one in keys])[:-1]
    train, validation, test = (
        ClientIndex(torch.from_numpy(indices.astype(np.int64)), part.offsets)
        for indices, part in zip(np.split(positions.ravel(), borders), parts, strict=True)
    )
    return new_x, new_y, (train, validation, test), origin
