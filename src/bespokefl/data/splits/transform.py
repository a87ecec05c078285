"""What a split may do to a client's examples: turn the pictures, exchange the labels."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bespokefl.core.client_index import ClientIndex

Parts = tuple[ClientIndex, ClientIndex, ClientIndex]


@dataclass(frozen=True)
class Transform:
    """Applied to every example of a client, in all its parts; the default changes nothing."""

    turns: int = 0  # quarter turns of the last two axes, counter-clockwise as numpy.rot90 has it: 0 to 3
    labels: tuple[int, ...] | None = None  # the label c becomes labels[c]

    def then(self, other: "Transform") -> "Transform":
        """This one first, the other after it."""
        labels = self.labels if other.labels is None else other.labels
        if self.labels is not None and other.labels is not None:
            labels = tuple(other.labels[one] for one in self.labels)
        return Transform((self.turns + other.turns) % 4, labels)

    def pictures(self, x: Tensor) -> Tensor:
        return x if self.turns == 0 else torch.rot90(x, self.turns, (-2, -1))

    def targets(self, y: Tensor) -> Tensor:
        return y if self.labels is None else torch.tensor(self.labels, dtype=y.dtype)[y]

    def written(self) -> dict[str, Any]:
        """As it stands in a split file."""
        return {"turns": self.turns, "labels": None if self.labels is None else list(self.labels)}


UNCHANGED = Transform()


def transformed(
    x: Tensor, y: Tensor, parts: Parts, transforms: Sequence[Transform]
) -> tuple[Tensor, Tensor, Parts, Tensor]:
    """The examples that clients see, each once for every transform it is seen under; the parts, as indices into these;
    and which example each of them was."""
    distinct = sorted(set(transforms), key=lambda one: (one.turns, one.labels or ()))
    number = {one: at for at, one in enumerate(distinct)}
    of_client = np.array([number[one] for one in transforms])
    keys = [np.repeat(of_client, part.sizes.numpy()) * len(x) + part.indices.numpy() for part in parts]
    seen, places = np.unique(np.concatenate(keys), return_inverse=True)
    origin = torch.from_numpy(seen % len(x))
    ends = np.searchsorted(seen, np.arange(len(distinct) + 1) * len(x)).tolist()
    new_x = torch.empty((len(seen), *x.shape[1:]), dtype=x.dtype)
    new_y = torch.empty(len(seen), dtype=y.dtype)
    for one, start, end in zip(distinct, ends[:-1], ends[1:], strict=True):
        new_x[start:end] = one.pictures(x[origin[start:end]])
        new_y[start:end] = one.targets(y[origin[start:end]])
    borders = np.cumsum([len(one) for one in keys])[:-1]
    first, second, third = (
        ClientIndex(torch.from_numpy(place.astype(np.int64)), part.offsets)
        for place, part in zip(np.split(places.ravel(), borders), parts, strict=True)
    )
    return new_x, new_y, (first, second, third), origin
