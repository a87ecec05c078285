"""What a cohort works on: its training and validation data, cut into batches, and its own random draws.

There is no test data in here: nothing that a method decides can depend on it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from bespokefl.core import rng as chance
from bespokefl.core.client_index import ClientIndex
from bespokefl.core.errors import InputError
from bespokefl.core.rows import Rows

T = TypeVar("T", Rows, Tensor)

_SOURCE = chance.Reusable()  # set anew for every use, so nothing carries over
WIDE = 32  # examples of a row
SWEEP_SIZE = 256  # examples per row and pass where nothing is trained


@dataclass(frozen=True)
class Batch:
    """The examples that each row of a cohort sees at one step."""

    x: Tensor  # (K, B, …)
    y: Tensor  # (K, B, …)
    weight: Tensor | None = None  # (K, B): what each example counts in its row's mean; None: all the same
    step: int = 0
    keys: tuple[tuple[chance.Key, ...], ...] = ()  # per row, for modules that draw (dropout)

    def __len__(self) -> int:
        return len(self.x)

    def row(self, k: int) -> "Batch":
        own = slice(k, k + 1)
        weight = None if self.weight is None else self.weight[own]
        return replace(self, x=self.x[own], y=self.y[own], weight=weight, keys=self.keys[own] if self.keys else ())

    def count(self, k: int) -> int:
        """How many examples row k has; the rest of its width is filling."""
        return self.x.shape[1] if self.weight is None else int((self.weight[k] > 0).sum())

    def mean(self, values: Tensor) -> Tensor:
        """(K, B) values to (K,): the mean that the batch's weights say."""
        return values.mean(1) if self.weight is None else (values * self.weight.to(values.dtype)).sum(1)


class BatchSchedule:
    """Which examples each row sees at each step.

    Rows with the most steps come first (`order`), so that the rows still at work are a prefix: nobody waits, no step
    is padded. Only a last, smaller batch is filled up, with examples of weight zero.
    """

    def __init__(
        self,
        x: Tensor,
        y: Tensor,
        steps: np.ndarray,
        sizes: np.ndarray,
        examples: np.ndarray,
        *,
        whole: bool = False,
        constant: bool = False,
        tag: Sequence[tuple[chance.Key, ...]] = (),
    ) -> None:
        """Row k has `steps[k]` steps, with `sizes[k, s]` of the `examples` at step s, one row after the other.

        whole: the weights of all steps together sum to one; constant: a row sees the same examples at every step, and
        they are given once.
        """
        order = np.argsort(-steps, kind="stable")
        self.x, self.y = x, y
        self.order = None if (order == np.arange(len(order))).all() else torch.from_numpy(order)
        self.steps = steps[order]
        self._tag = [tag[k] for k in order] if tag else []
        self._constant = constant
        self._gathered: dict[int, tuple[Tensor, Tensor, Tensor | None]] = {}
        inside = np.arange(sizes.max(initial=0)) < sizes[:, :, None]
        index = np.zeros(inside.shape, dtype=np.int64)
        index[inside] = examples
        index = np.where(inside, index, index[:, :, :1])
        self._index, self._sizes = index[order], sizes[order]
        self._totals = self._sizes.sum(1) if whole else None
        self._active = [int((self.steps > step).sum()) for step in range(int(steps.max(initial=0)))]

    @classmethod
    def of_lists(
        cls,
        x: Tensor,
        y: Tensor,
        lists: Sequence[Sequence[np.ndarray]],
        *,
        constant: bool = False,
        tag: Sequence[tuple[chance.Key, ...]] = (),
    ) -> "BatchSchedule":
        """`lists[k][s]` are the examples of row k at step s."""
        steps = np.array([len(one) for one in lists], dtype=np.int64)
        seen = [one[:1] for one in lists] if constant else lists
        sizes = np.zeros((len(seen), max(map(len, seen), default=0)), dtype=np.int64)
        for row, batches in zip(sizes, seen, strict=True):
            row[: len(batches)] = [len(batch) for batch in batches]
        examples = np.concatenate([np.zeros(0, np.int64), *(batch for batches in seen for batch in batches)])
        return cls(x, y, steps, sizes, examples, constant=constant, tag=tag)

    @classmethod
    def sweep(
        cls, x: Tensor, y: Tensor, part: ClientIndex, size: int = SWEEP_SIZE, tag: Sequence[tuple[chance.Key, ...]] = ()
    ) -> "BatchSchedule":
        """Every example of a part once, in order."""
        left = part.sizes.numpy()
        steps = -(-left // size)
        sizes = (left[:, None] - size * np.arange(steps.max(initial=0))).clip(0, size)
        return cls(x, y, steps, sizes, part.indices.numpy(), whole=True, tag=tag)

    def __len__(self) -> int:
        return len(self._active)

    def active(self, step: int) -> int:
        """How many rows, in `order`, are still at work."""
        return self._active[step]

    def batch(self, step: int) -> Batch:
        """The step's examples for the active rows."""
        k = self.active(step)
        if not self._constant or k not in self._gathered:
            self._gathered = {k: self._gather(step, k)}
        x, y, weight = self._gathered[k]
        return Batch(x, y, weight, step, tuple((*tag, step) for tag in self._tag[:k]))

    def _gather(self, step: int, k: int) -> tuple[Tensor, Tensor, Tensor | None]:
        width = int(self._size(step).max())
        index = self._index[:k, 0 if self._constant else step, :width]
        flat = torch.from_numpy(np.ascontiguousarray(index)).to(self.x.device).flatten()
        x = self.x.index_select(0, flat).unflatten(0, (k, width))
        y = self.y.index_select(0, flat).unflatten(0, (k, width))
        return x, y, self._weight(step)

    def wide(self, step: int) -> bool:
        """Whether rows have so many examples that a pass for each is no slower than one for all, on a processor."""
        return self.x.device.type == "cpu" and float(self._size(step).mean()) >= WIDE

    def real(self, step: int) -> tuple[Tensor, np.ndarray]:
        """The step's examples without filling, row after row, (n,), and which of the places, (K, B), they have."""
        sizes = self._size(step)
        inside = np.arange(int(sizes.max())) < sizes[:, None]
        index = self._index[: len(sizes), 0 if self._constant else step, : inside.shape[1]]
        return torch.from_numpy(index[inside]).to(self.x.device), inside

    def _size(self, step: int) -> np.ndarray:
        return self._sizes[: self.active(step), 0 if self._constant else step]

    def shares(self, step: int) -> Tensor:
        """What each example of the step counts, (K, B): zero for filling, and each row sums to one over its batch
        (over all its batches, for a sweep)."""
        sizes = self._size(step)
        inside = np.arange(int(sizes.max()))[None, :] < sizes[:, None]
        divisor = sizes if self._totals is None else self._totals[: len(sizes)]
        return torch.from_numpy(inside / divisor[:, None])

    def _weight(self, step: int) -> Tensor | None:
        sizes = self._size(step)
        if self._totals is None and (sizes == sizes.max()).all():
            return None
        dtype = self.x.dtype if self.x.is_floating_point() else torch.float64  # tokens do not know the model's type
        return self.shares(step).to(device=self.x.device, dtype=dtype)

    def sort(self, rows: T) -> T:
        """Anything with a row per client, in the plan's order; one row for all stays as it is."""
        return rows if self.order is None or len(rows) == 1 else rows[self.order]

    def unsort(self, rows: T) -> T:
        return rows if self.order is None else rows[torch.argsort(self.order)]


Loop = Callable[..., Rows]


@dataclass(frozen=True)
class CohortData:
    """A cohort's data and budget for one round. Row k belongs to client `names[k]`."""

    x: Tensor
    y: Tensor
    train: ClientIndex
    validation: ClientIndex
    names: tuple[str, ...]
    seed: int
    round: int
    batch_size: int
    epochs: int = 1
    steps: int | None = None  # a fixed number of local steps instead of epochs
    expected_rounds: int = 1  # rounds in which an average client trains; what a newcomer may spend
    seeds: tuple[int, ...] = ()  # a seed per row, where they differ
    copies: tuple[int, ...] = ()  # which of its client's rows a row is; set by repeat()
    keyed: bool = True  # whether batches carry keys for modules that draw
    loop: Loop | None = None  # an engine's own descent (the reference engine brings one)
    notes: dict[str, Tensor] = field(default_factory=dict)  # see note()
    plans: dict[tuple[object, ...], BatchSchedule] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.names)

    @property
    def n(self) -> Tensor:
        """Training examples per row, (K,)."""
        return self.train.sizes

    def repeat(self, times: int) -> "CohortData":
        """Each client gets `times` rows, one after the other, on the same data and batches: a a a b b b."""
        clients = np.repeat(np.arange(len(self)), times)
        copies = self.copies or (0,) * len(self)
        return replace(
            self,
            train=self.train.take(clients),
            validation=self.validation.take(clients),
            names=tuple(self.names[k] for k in clients),
            seeds=tuple(self.seeds[k] for k in clients) if self.seeds else (),
            copies=tuple(copies[k] * times + i for k in range(len(self)) for i in range(times)),
            notes={},
            plans={},
        )

    def take(self, rows: Sequence[int]) -> "CohortData":
        """The same for some of the rows."""
        return replace(
            self,
            train=self.train.take(rows),
            validation=self.validation.take(rows),
            names=tuple(self.names[k] for k in rows),
            seeds=tuple(self.seeds[k] for k in rows) if self.seeds else (),
            copies=tuple(self.copies[k] for k in rows) if self.copies else (),
            notes={},
            plans={},
        )

    def note(self, **values: Tensor) -> None:
        """Keep figures per client, (K,), for the run directory. They stay on the client's side."""
        self.notes.update(values)

    # -- batches

    def num_steps(self, epochs: int | None = None) -> Tensor:
        """Local steps per row that the budget (or these epochs) comes to, (K,)."""
        if epochs is None and self.steps is not None:
            return torch.full((len(self),), self.steps)
        return -(-self.n // self.batch_size) * (self.epochs if epochs is None else epochs)

    def plan(
        self, *, epochs: int | None = None, steps: Tensor | int | None = None, purpose: str = "batches"
    ) -> BatchSchedule:
        """Shuffled batches, epoch after epoch, for the budget or for as many epochs or steps as asked.

        The same purpose gives the same batches, however often it is asked for.
        """
        counts = self._counts(epochs, steps)
        key = (purpose, tuple(counts))
        if key not in self.plans:
            lists = [self._batches(k, count, purpose) for k, count in enumerate(counts)]
            constant = int(self.n.max()) <= self.batch_size
            tag = [self.tag(k, purpose) for k in range(len(self))] if self.keyed else ()
            self.plans[key] = BatchSchedule.of_lists(self.x, self.y, lists, constant=constant, tag=tag)
        return self.plans[key]

    def batches(
        self, row: int, *, epochs: int | None = None, steps: Tensor | int | None = None, purpose: str = "batches"
    ) -> list[np.ndarray]:
        """The plan of one row, as lists of example numbers."""
        return self._batches(row, self._counts(epochs, steps)[row], purpose)

    def tag(self, row: int, purpose: str) -> tuple[chance.Key, ...]:
        """What names a row's draws inside a module (dropout), together with the step."""
        return (self._seed(row), "module", purpose, self.round, self.names[row], self.copies[row] if self.copies else 0)

    def _counts(self, epochs: int | None, steps: Tensor | int | None) -> list[int]:
        counts = self.num_steps(epochs) if steps is None else torch.as_tensor(steps).expand(len(self))
        listed: list[int] = counts.tolist()
        return listed

    def _batches(self, row: int, count: int, purpose: str) -> list[np.ndarray]:
        own = self.train.of(row).numpy()
        if not len(own):
            raise InputError(f"client {self.names[row]!r} has no training examples.")
        if len(own) <= self.batch_size:
            return [own] * count  # a full batch needs no shuffling
        rng = _SOURCE.at(self._seed(row), purpose, self.round, self.names[row])
        batches: list[np.ndarray] = []
        while len(batches) < count:
            shuffled = own[rng.permutation(len(own))]
            batches += [shuffled[at : at + self.batch_size] for at in range(0, len(own), self.batch_size)]
        return batches[:count]

    def sweep(self, part: str = "train", size: int = SWEEP_SIZE) -> BatchSchedule:
        """All of "train" or "validation", each example once, in order."""
        key = ("sweep", part, size)
        if key not in self.plans:
            own = {"train": self.train, "validation": self.validation}[part]
            tag = [self.tag(k, f"sweep/{part}") for k in range(len(self))]
            self.plans[key] = BatchSchedule.sweep(self.x, self.y, own, size, tag)
        return self.plans[key]

    # -- draws

    def _seed(self, row: int) -> int:
        return self.seeds[row] if self.seeds else self.seed

    def generator(self, purpose: str, row: int) -> np.random.Generator:
        """A row's own generator. Copies of one client draw differently."""
        copy = self.copies[row] if self.copies else 0
        return chance.generator(self._seed(row), purpose, self.round, self.names[row], copy)

    def normal(self, like: Rows, purpose: str, draw: int = 0) -> Rows:
        """Standard normal noise of the rows' shape; `draw` tells several of one purpose apart."""
        width = like.layout.width
        rows = [self.generator(f"{purpose}/{draw}", k).standard_normal(width) for k in range(len(self))]
        noise = torch.from_numpy(np.stack(rows)).to(device=like.device, dtype=like.dtype)
        return Rows.from_matrix(like.layout, noise)
