"""What a split can do to a client's examples: rotate images and permute labels."""

from collections.abc import Sequence
from dataclasses import dataclass

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
    used, new_parts = renumber(parts, keys)
    origin = torch.from_numpy(used % len(x))
    ends = np.searchsorted(used, np.arange(len(distinct) + 1) * len(x)).tolist()
    new_x = torch.empty((len(used), *x.shape[1:]), dtype=x.dtype)
    new_y = torch.empty(len(used), dtype=y.dtype)
    for one, start, end in zip(distinct, ends[:-1], ends[1:], strict=True):
        examples, labels = x[origin[start:end]], y[origin[start:end]]
        new_x[start:end] = examples if one.turns == 0 else torch.rot90(examples, one.turns, (-2, -1))
        new_y[start:end] = labels if one.labels is None else torch.tensor(one.labels, dtype=y.dtype)[labels]
    return new_x, new_y, new_parts, origin


def renumber(parts: Parts, keys: Sequence[np.ndarray]) -> tuple[np.ndarray, Parts]:
    """The distinct keys, sorted, and the parts as indices into these; each entry of the parts has a key."""
    distinct = np.unique(np.concatenate(keys))
    train, validation, test = (
        ClientIndex(torch.from_numpy(np.searchsorted(distinct, some)), part.offsets)
        for some, part in zip(keys, parts, strict=True)
    )
    return distinct, (train, validation, test)
