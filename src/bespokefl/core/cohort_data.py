"""The data of a cohort: training and validation examples in batches, and the clients' random draws.

It contains no test data, so that no decision of a method can depend on them.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from bespokefl.core import rng
from bespokefl.core.client_index import ClientIndex
from bespokefl.core.errors import InputError
from bespokefl.core.rows import Rows

T = TypeVar("T", Rows, Tensor)
Tags = Sequence[tuple[rng.Key, ...]]  # per row, the key of random draws inside a module, up to the step

_REUSED_GENERATOR = rng.Reusable()  # is given a new key before each use
WIDE_BATCH = 32  # mean examples per row from which one pass per row is as fast as a stacked one
SWEEP_SIZE = 256  # examples per row and pass without training


@dataclass(frozen=True)
class Batch:
    """The examples of each row of a cohort at one step."""

    x: Tensor  # inputs, (K, B, …)
    y: Tensor  # labels, (K, B, …)
    weight: Tensor | None = None  # of each example in its row's mean, (K, B); None for equal weights
    step: int = 0  # the number of the step, from 0
    keys: tuple[tuple[rng.Key, ...], ...] = ()  # per row, for modules that draw random numbers (dropout)
    examples: int | None = None  # of all rows together, without padding; None: to be counted

    def __len__(self) -> int:
        return len(self.x)

    def row(self, k: int) -> "Batch":
        """The batch of row k alone."""
        own = slice(k, k + 1)
        weight = None if self.weight is None else self.weight[own]
        keys = self.keys[own] if self.keys else ()
        return replace(self, x=self.x[own], y=self.y[own], weight=weight, keys=keys, examples=None)

    def count(self, k: int) -> int:
        """The number of examples of row k, without padding."""
        return self.x.shape[1] if self.weight is None else int((self.weight[k] > 0).sum())

    def num_examples(self) -> int:
        """The number of examples of all rows, without padding."""
        if self.examples is not None:
            return self.examples
        return self.x.shape[0] * self.x.shape[1] if self.weight is None else int((self.weight > 0).sum())

    def mean(self, values: Tensor) -> Tensor:
        """The weighted mean of each row's values, (K, B, …) to (K, …)."""
        if self.weight is None:
            return values.mean(1)
        weight = self.weight.to(values.dtype)
        return (values * weight.reshape(*weight.shape, *[1] * (values.dim() - 2))).sum(1)


class BatchSchedule:
    """The examples of each row at each step.

    Rows are sorted by their number of steps, longest first (`order`), so that the active rows of a step are a prefix
    and no step is padded. Only smaller batches are padded, with examples of weight zero.
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
        tag: Tags = (),
    ) -> None:
        """Row k has `steps[k]` steps, with `sizes[k, s]` examples at step s; `examples` lists them row by row.

        whole: weights sum to one over all steps; constant: a row has the same examples at every step, listed once.
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
        cls, x: Tensor, y: Tensor, lists: Sequence[Sequence[np.ndarray]], *, constant: bool = False, tag: Tags = ()
    ) -> "BatchSchedule":
        """Build a schedule from lists: `lists[k][s]` are the examples of row k at step s."""
        steps = np.array([len(one) for one in lists], dtype=np.int64)
        seen = [one[:1] for one in lists] if constant else lists
        sizes = np.zeros((len(seen), max(map(len, seen), default=0)), dtype=np.int64)
        for row, batches in zip(sizes, seen, strict=True):
            row[: len(batches)] = [len(batch) for batch in batches]
        examples = np.concatenate([np.zeros(0, np.int64), *(batch for batches in seen for batch in batches)])
        return cls(x, y, steps, sizes, examples, constant=constant, tag=tag)

    @classmethod
    def sweep(cls, x: Tensor, y: Tensor, part: ClientIndex, size: int = SWEEP_SIZE, tag: Tags = ()) -> "BatchSchedule":
        """Build a schedule with every example of a part once, in order."""
        left = part.sizes.numpy()
        steps = -(-left // size)
        sizes = (left[:, None] - size * np.arange(steps.max(initial=0))).clip(0, size)
        return cls(x, y, steps, sizes, part.indices.numpy(), whole=True, tag=tag)

    def __len__(self) -> int:
        return len(self._active)

    def active(self, step: int) -> int:
        """The number of active rows, which are the first in `order`."""
        return self._active[step]

    def batch(self, step: int) -> Batch:
        """The batch of the active rows."""
        k = self.active(step)
        if not self._constant or k not in self._gathered:
            self._gathered = {k: self._gather(step, k)}
        x, y, weight = self._gathered[k]
        keys = tuple((*tag, step) for tag in self._tag[:k])
        return Batch(x, y, weight, step, keys, int(self._size(step).sum()))

    def _gather(self, step: int, k: int) -> tuple[Tensor, Tensor, Tensor | None]:
        width = int(self._size(step).max())
        index = self._index[:k, 0 if self._constant else step, :width]
        flat = torch.from_numpy(np.ascontiguousarray(index)).to(self.x.device).flatten()
        x = self.x.index_select(0, flat).reshape(k, width, *self.x.shape[1:])  # unflatten takes 20 µs
        y = self.y.index_select(0, flat).reshape(k, width, *self.y.shape[1:])
        return x, y, self._weight(step)

    def wide(self, step: int) -> bool:
        """Whether batches are so large that, on a CPU, one pass per row is as fast as a stacked one."""
        return self.x.device.type == "cpu" and float(self._size(step).mean()) >= WIDE_BATCH

    def real(self, step: int) -> tuple[Tensor, np.ndarray]:
        """The step's examples without padding, row after row, (n,), and a mask of their positions, (K, B)."""
        sizes = self._size(step)
        inside = np.arange(int(sizes.max())) < sizes[:, None]
        index = self._index[: len(sizes), 0 if self._constant else step, : inside.shape[1]]
        return torch.from_numpy(index[inside]).to(self.x.device), inside

    def _size(self, step: int) -> np.ndarray:
        return self._sizes[: self.active(step), 0 if self._constant else step]

    def _weight(self, step: int) -> Tensor | None:
        """Each example's weight, (K, B): zero for padding; rows sum to one per batch, or over a whole sweep."""
        sizes = self._size(step)
        if self._totals is None and (sizes == sizes.max()).all():
            return None  # equal weights
        inside = np.arange(int(sizes.max())) < sizes[:, None]
        divisor = sizes if self._totals is None else self._totals[: len(sizes)]
        dtype = self.x.dtype if self.x.is_floating_point() else torch.float64  # tokens have no dtype of the model
        return torch.from_numpy(inside / divisor[:, None]).to(device=self.x.device, dtype=dtype)

    def sort(self, rows: T) -> T:
        """Sort rows into the order of the schedule; a single row for all stays unchanged."""
        return rows if self.order is None or len(rows) == 1 else rows[self.order]

    def unsort(self, rows: T) -> T:
        """Undo `sort`."""
        return rows if self.order is None else rows[torch.argsort(self.order)]


Loop = Callable[..., Rows]


@dataclass(frozen=True)
class CohortData:
    """The data of a cohort and its amount of local training in one round. Row k belongs to client `names[k]`."""

    x: Tensor  # inputs of all examples
    y: Tensor  # their labels
    train: ClientIndex  # which of the examples each row has
    validation: ClientIndex
    names: tuple[str, ...]
    seed: int  # of the run; random draws follow from it and the number of the round
    round: int
    batch_size: int
    epochs: int = 1  # local epochs of a round
    steps: int | None = None  # a fixed number of local steps, instead of epochs
    expected_rounds: int = 1  # in which an average client trains; the training budget of a newcomer
    seeds: tuple[int, ...] = ()  # per row, if they differ
    copies: tuple[int, ...] = ()  # which of its client's rows a row is, set by `repeat`
    keyed: bool = True  # whether batches have keys for modules that draw random numbers
    loop: Loop | None = None  # a replacement of `local_sgd`, for the reference engine
    notes: dict[str, Tensor] = field(default_factory=dict)
    plans: dict[tuple[object, ...], BatchSchedule] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.names)

    @property
    def n(self) -> Tensor:
        """The number of training examples of each row, (K,)."""
        return self.train.sizes

    def repeat(self, times: int) -> "CohortData":
        """Give each client `times` adjacent rows on the same data and batches: a a a b b b."""
        copies = self.copies or (0,) * len(self)
        numbers = tuple(copies[k] * times + i for k in range(len(self)) for i in range(times))
        return replace(self.take(np.repeat(np.arange(len(self)), times)), copies=numbers)

    def take(self, rows: Sequence[int] | np.ndarray) -> "CohortData":
        """The data of some rows; a row may be repeated."""
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

    def sampled(self, share: float, purpose: str) -> "CohortData":
        """A random share of each row's training examples (rounded down, at least one), another one in every round."""
        lists = []
        for row, n in enumerate(self.n.tolist()):
            size = max(1, int(share * n + 1e-9))  # 0.29 * 100 is below 29
            chosen = _REUSED_GENERATOR.at(*self._key(purpose, row)).permutation(n)[:size]
            lists.append(self.train.of(row).numpy()[np.sort(chosen)])
        return replace(self, train=ClientIndex.of_lists(lists), plans={})

    def with_inputs(self, x: Tensor) -> "CohortData":
        """The same training examples in the same batches, with other inputs, one per example in the order of `train`.

        Without validation examples.
        """
        positions = ClientIndex(torch.arange(len(x)), self.train.offsets)
        nothing = ClientIndex(torch.zeros(0, dtype=torch.int64), torch.zeros_like(self.train.offsets))
        y = self.y.index_select(0, self.train.indices.to(self.y.device))
        return replace(self, x=x, y=y, train=positions, validation=nothing, plans={})

    def note(self, **values: Tensor) -> None:
        """Record numbers per client, (K,), in the run directory. They are not sent to the server."""
        self.notes.update(values)

    # -- batches

    def num_steps(self, epochs: int | None = None) -> Tensor:
        """The number of local steps of each row in a round, or in these epochs, (K,)."""
        if epochs is None and self.steps is not None:
            return torch.full((len(self),), self.steps)
        return -(-self.n // self.batch_size) * (self.epochs if epochs is None else epochs)

    def plan(
        self, *, epochs: int | None = None, steps: Tensor | int | None = None, purpose: str = "batches"
    ) -> BatchSchedule:
        """Shuffled batches, epoch by epoch, for a round or for a given number of epochs or steps.

        The same purpose always gives the same batches.
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
        """The batches of one row, as arrays of example indices."""
        return self._batches(row, self._counts(epochs, steps)[row], purpose)

    def tag(self, row: int, purpose: str) -> tuple[rng.Key, ...]:
        """The key, up to the step, of a row's random draws inside a module (dropout)."""
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
        generator = _REUSED_GENERATOR.at(self._seed(row), purpose, self.round, self.names[row])
        batches: list[np.ndarray] = []
        while len(batches) < count:
            shuffled = own[generator.permutation(len(own))]
            batches += [shuffled[at : at + self.batch_size] for at in range(0, len(own), self.batch_size)]
        return batches[:count]

    def sweep(self, part: str = "train", size: int = SWEEP_SIZE) -> BatchSchedule:
        """All examples of "train" or "validation", each once, in order."""
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
        """The random generator of a row for a purpose. Copies of a client have different ones."""
        return rng.generator(*self._key(purpose, row))

    def _key(self, purpose: str, row: int) -> tuple[rng.Key, ...]:
        return (self._seed(row), purpose, self.round, self.names[row], self.copies[row] if self.copies else 0)

    def normals(self, purpose: str, rows: Sequence[int], shape: tuple[int, ...]) -> np.ndarray:
        """The first standard normal numbers of these rows' generators for a purpose, an array of ``(rows, *shape)``."""
        drawn = np.empty((len(rows), *shape))
        for own, row in zip(drawn, rows, strict=True):
            _REUSED_GENERATOR.at(*self._key(purpose, row)).standard_normal(out=own)
        return drawn

    def normal(self, like: Rows, purpose: str, draw: int = 0) -> Rows:
        """Standard normal noise in the shape of the rows; `draw` distinguishes several draws for one purpose.

        Columns of running statistics get none.
        """
        drawn = self.normals(f"{purpose}/{draw}", range(len(self)), (like.layout.width,))
        noise = torch.from_numpy(drawn).to(device=like.device, dtype=like.dtype)
        rows = Rows.from_matrix(like.layout, noise)
        return rows.with_statistics(rows * 0.0)

    def quantile_noise(self, like: Rows, purpose: str, rows: Sequence[int]) -> Rows:
        """Noise for these rows that is normal up to 1e-5, see `rng.normal_quantiles`, in the shape of `like`.

        For noise of every weight at every step, where `normal` would take longer than the gradient. Columns of running
        statistics get none.
        """
        layout, dtype = like.layout, torch.empty(0, dtype=like.dtype).numpy().dtype
        quantiles, starts = rng.normal_quantiles(dtype), np.cumsum((0, *layout.sizes))
        blocks = [np.zeros((len(rows), size), dtype) for size in layout.sizes]
        for at, row in enumerate(rows):
            bits = _REUSED_GENERATOR.at(*self._key(purpose, row)).bit_generator
            drawn = np.asarray(bits.random_raw(-(-layout.width // 4))).view(np.uint16)
            for i in layout.trained:
                np.take(quantiles, drawn[starts[i] : starts[i + 1]], out=blocks[i][at], mode="clip")
        shaped = zip(blocks, layout.shapes, strict=True)
        return Rows(layout, [torch.from_numpy(b).to(like.device).reshape(-1, *shape) for b, shape in shaped])
