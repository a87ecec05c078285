"""A federation is a matrix: one row per client, one column per trainable parameter.

`Rows` is that matrix. It behaves like (clients, columns) and is stored as one contiguous (clients, …) tensor per
parameter, because a model reads its parameters one by one. One row broadcasts against many, as in torch.

    mean = weights @ rows            # (1, K) @ (K, D)
    mixed = W @ rows                 # (K, K) @ (K, D)
    rows - lr * gradient             # a number, or one number per row

Rows are on the device that computes. Numbers per row, such as lengths, are on the CPU, whatever the device of the rows.

A layer with running statistics (batch norm) has columns for them, too. They are averaged and mixed like weights, but
lengths and distances of rows leave them out, and training sets them to what the batches show: a gradient carries their
new values in `observed`, arithmetic keeps these, and the end of a training step (`settle`) puts them in place.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from bespokefl.core.errors import InputError

Number = float | int | Tensor
Select = slice | Tensor | Sequence[int]


@dataclass(frozen=True)
class Layout:
    """The parameters to which the columns of rows belong."""

    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    head: tuple[str, ...] = ()  # names of the head's parameters; all others are the base
    statistics: tuple[str, ...] = ()  # names of running statistics, which are not trained by gradients
    norm: tuple[str, ...] = ()  # names of what belongs to normalization layers, with their statistics
    local: tuple[str, ...] = ()  # names of what stays with its client, see `core.blocks`

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        """The number of columns of each parameter."""
        return tuple(int(torch.Size(shape).numel()) for shape in self.shapes)

    @cached_property
    def width(self) -> int:
        """The number of columns."""
        return sum(self.sizes)

    @property
    def base(self) -> tuple[str, ...]:
        """The parameters that do not belong to the head."""
        return tuple(name for name in self.names if name not in self.head)

    def columns(self, name: str) -> slice:
        """The columns of a parameter in `Rows.matrix()`."""
        at = self.names.index(name)
        start = sum(self.sizes[:at])
        return slice(start, start + self.sizes[at])

    def block(self, block: "Block") -> tuple[str, ...]:
        """The parameters of a block: "base", "head", a parameter, a module, a tuple of names, or a function."""
        if callable(block):
            return block(self)
        if not isinstance(block, str):
            return self.only(block).names
        if block == "head":
            if not self.head:
                raise InputError(
                    f"the model has no head: name one of its layers as the head ({', '.join(self.names)})."
                )
            return self.head
        if block == "base":
            return self.base
        found = tuple(name for name in self.names if name == block or name.startswith(block + "."))
        if not found:
            raise InputError(f"the model has no parameters named {block!r}; it has {', '.join(self.names)}.")
        return found

    def only(self, names: Iterable[str]) -> "Layout":
        """The layout of some parameters."""
        kept = frozenset(names).intersection(self.names)
        if kept not in self._parts:
            self._parts[kept] = self._only(kept)
        return self._parts[kept]

    @cached_property
    def _parts(self) -> dict[frozenset[str], "Layout"]:
        return {}  # the results of `only`, which methods call in every step

    def _only(self, kept: frozenset[str]) -> "Layout":
        shapes = {name: shape for name, shape in zip(self.names, self.shapes, strict=True) if name in kept}
        marked = (self.head, self.statistics, self.norm, self.local)
        own = [tuple(name for name in names if name in kept) for names in marked]
        return Layout(tuple(shapes), tuple(shapes.values()), *own)

    @cached_property
    def trained(self) -> tuple[int, ...]:
        """The positions of the blocks that are no running statistics."""
        return tuple(at for at, name in enumerate(self.names) if name not in self.statistics)

    @cached_property
    def measured(self) -> tuple[int, ...]:
        """The positions of the blocks that lengths count: no running statistics, and nothing that stays local."""
        return tuple(at for at in self.trained if self.names[at] not in self.local)


Block = str | tuple[str, ...] | Callable[[Layout], tuple[str, ...]]


class Rows:
    """The weights of clients as a matrix. Operations return new rows and never change existing ones.

    Rows support `+`, `-`, `*`, `/` with other rows, numbers and tensors of one number per row, and `W @ rows`.

    Parameters
    ----------
    layout : Layout
    blocks : sequence of Tensor
        A tensor (K, …) per parameter of the layout.
    frozen : frozenset of str
        Parameters that are constants, without a gradient.
    size : int
        The number of rows, if there are no blocks, as in the base of a model that consists of its head.
    observed : mapping of str to Tensor
        In a gradient: the new values of running statistics, after its batch.
    """

    __slots__ = ("blocks", "frozen", "layout", "observed", "size")
    __array_ufunc__ = None  # so that numpy leaves arithmetic with rows to Rows

    def __init__(
        self,
        layout: Layout,
        blocks: Sequence[Tensor],
        frozen: frozenset[str] = frozenset(),
        *,
        size: int = 0,
        observed: Mapping[str, Tensor] | None = None,
    ) -> None:
        self.layout = layout
        self.blocks = tuple(blocks)
        self.frozen = frozen
        self.observed = observed
        self.size = len(self.blocks[0]) if self.blocks else size

    # -- construction

    @classmethod
    def from_state(cls, layout: Layout, state: Mapping[str, Tensor]) -> "Rows":
        """Make one row from a state dict."""
        return cls(layout, [state[name].detach().clone().unsqueeze(0) for name in layout.names])

    @classmethod
    def from_matrix(cls, layout: Layout, matrix: Tensor) -> "Rows":
        """Make rows from a (K, D) tensor."""
        parts = matrix.split(list(layout.sizes), dim=1)
        shapes = zip(parts, layout.shapes, strict=True)
        return cls(layout, [part.reshape(len(matrix), *shape) for part, shape in shapes], size=len(matrix))

    @staticmethod
    def cat(parts: Sequence["Rows"]) -> "Rows":
        """Concatenate rows."""
        if len(parts) == 1:
            return parts[0]
        blocks = [torch.cat(own) for own in zip(*(p.blocks for p in parts), strict=True)]
        return Rows(parts[0].layout, blocks, size=sum(map(len, parts)))

    # -- access

    def __len__(self) -> int:
        return self.size

    def __repr__(self) -> str:
        return f"Rows({len(self)} x {self.layout.width}: {', '.join(self.layout.names)})"

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the blocks."""
        return self.blocks[0].dtype if self.blocks else torch.get_default_dtype()

    @property
    def device(self) -> torch.device:
        """The device of the blocks."""
        return self.blocks[0].device if self.blocks else torch.device("cpu")

    def __getitem__(self, which: Select) -> "Rows":
        """Select rows by a slice (without a copy), by positions or by a mask."""
        if isinstance(which, slice):
            return self._like([block[which] for block in self.blocks], len(range(self.size)[which]))
        index = self._positions(which)
        return self._like([block.index_select(0, index) for block in self.blocks], len(index))

    def matrix(self) -> Tensor:
        """Return a (K, D) tensor; a copy, unless there is only one block."""
        flat = [_flat(block) for block in self.blocks] or [torch.zeros(self.size, 0)]
        return flat[0] if len(flat) == 1 else torch.cat(flat, dim=1)

    def state(self, row: int = 0) -> dict[str, Tensor]:
        """Return one row as a state dict."""
        return {name: block[row].clone() for name, block in zip(self.layout.names, self.blocks, strict=True)}

    # -- blocks of columns

    def block(self, block: Block) -> "Rows":
        """Select the columns of "base", "head", a parameter, a module, a tuple of names, or a function."""
        return self.only(self.layout.block(block))

    def only(self, names: Iterable[str]) -> "Rows":
        """Select the columns of some parameters."""
        wanted = set(names)
        kept = [b for name, b in zip(self.layout.names, self.blocks, strict=True) if name in wanted]
        return Rows(self.layout.only(wanted), kept, size=self.size)

    def with_block(self, other: "Rows") -> "Rows":
        """Replace the columns that the other rows have."""
        given = dict(zip(other.layout.names, other.blocks, strict=True))
        size = max(len(self), len(other))
        pairs = zip(self.layout.names, self.blocks, strict=True)
        blocks = [given.get(name, own).expand(size, *own.shape[1:]) for name, own in pairs]
        return Rows(self.layout, blocks, observed=_first(self.observed, other.observed))

    def measured(self) -> "Rows":
        """Return the columns that lengths and distances count."""
        names = tuple(self.layout.names[at] for at in self.layout.measured)
        return self if len(names) == len(self.layout.names) else self.block(names)

    def with_statistics(self, other: "Rows") -> "Rows":
        """Replace the columns of running statistics by those of other rows; the same rows if there are none.

        For arithmetic that makes sense for weights only, such as an extrapolation, after which a variance could be
        negative.
        """
        return self.with_block(other.block(self.layout.statistics)) if self.layout.statistics else self

    def settle(self, before: "Rows") -> "Rows":
        """Return the rows after a training step from `before`: running statistics are what the step's batch left."""
        if not self.layout.statistics:
            return self
        old = dict(zip(before.layout.names, before.blocks, strict=True)) | dict(self.observed or {})
        pairs = zip(self.layout.names, self.blocks, strict=True)
        blocks = [old[name].expand_as(own) if name in self.layout.statistics else own for name, own in pairs]
        return Rows(self.layout, blocks, self.frozen, size=self.size)

    def freeze(self, names: Iterable[str]) -> "Rows":
        """Mark the columns of some parameters as constants, without a gradient."""
        return Rows(self.layout, self.blocks, frozenset(names), size=self.size)

    # -- shape

    def expand(self, size: int) -> "Rows":
        """Broadcast one row to many, without a copy."""
        if len(self) == size:
            return self
        return self._like([block.expand(size, *block.shape[1:]) for block in self.blocks], size)

    def repeat(self, times: int) -> "Rows":
        """Repeat each row, adjacent: a a a b b b."""
        return self._like([block.repeat_interleave(times, dim=0) for block in self.blocks], times * self.size)

    def clone(self) -> "Rows":
        """Copy the blocks."""
        return self._like([block.clone(memory_format=torch.contiguous_format) for block in self.blocks])

    def to(self, *, device: torch.device | str | None = None, dtype: torch.dtype | None = None) -> "Rows":
        """Move or convert the blocks, as `Tensor.to` does."""
        return self._like([block.to(device=device, dtype=dtype) for block in self.blocks])

    def replace(self, which: Select, rows: "Rows") -> "Rows":
        """Replace some rows."""
        index = self._positions(which)
        return self._like([a.index_copy(0, index, b) for a, b in zip(self.blocks, rows.blocks, strict=True)])

    # -- arithmetic

    def __add__(self, other: "Rows | Number") -> "Rows":
        return self._binary(torch._foreach_add, other)

    def __sub__(self, other: "Rows | Number") -> "Rows":
        return self._binary(torch._foreach_sub, other)

    def __mul__(self, other: "Rows | Number") -> "Rows":
        return self._binary(torch._foreach_mul, other)

    def __truediv__(self, other: "Rows | Number") -> "Rows":
        return self._binary(torch._foreach_div, other)

    __radd__ = __add__
    __rmul__ = __mul__

    def __rsub__(self, other: Number) -> "Rows":
        return (-self) + other

    def __neg__(self) -> "Rows":
        return self._like(torch._foreach_neg(self.blocks) if self.blocks else (), observed=self.observed)

    def plus(self, other: "Rows", factor: float | Tensor) -> "Rows":
        """Return self + factor · other in one pass; the factor is a number or one number per row."""
        if not isinstance(factor, Tensor):
            blocks = torch._foreach_add(self.blocks, other.blocks, alpha=factor) if self.blocks else ()
        else:
            factors = [_per_row(factor, block) for block in self.blocks]
            blocks = torch._foreach_addcmul(self.blocks, other.blocks, factors) if self.blocks else ()
        return self._like(blocks, max(len(self), len(other)), observed=_first(self.observed, other.observed))

    def toward(self, other: "Rows", share: float | Tensor) -> "Rows":
        """Return (1 − share) · self + share · other in one pass; the share is a number or one number per row."""
        shares = [_per_row(share, block) for block in self.blocks] if isinstance(share, Tensor) else share
        blocks = torch._foreach_lerp(self.blocks, other.blocks, shares) if self.blocks else ()
        return self._like(blocks, max(len(self), len(other)), observed=_first(self.observed, other.observed))

    def __rmatmul__(self, weights: Tensor) -> "Rows":
        """W @ rows: each new row is a weighted sum of rows."""
        weights = torch.as_tensor(weights).to(device=self.device, dtype=self.dtype)
        mixed = [weights @ _flat(block) for block in self.blocks]
        shapes = [block.shape[1:] for block in self.blocks]
        new = [m.reshape(len(weights), *shape) for m, shape in zip(mixed, shapes, strict=True)]
        return self._like(new, len(weights))

    def map(self, function: Callable[[Tensor], Tensor]) -> "Rows":
        """Apply a function to all entries: `rows.map(torch.exp)`."""
        return self._like([function(block) for block in self.blocks])

    # -- sums

    def mean(self, weights: Tensor | None = None) -> "Rows":
        """Return the mean as one row, optionally with weights, which need not sum to one."""
        given = torch.ones(len(self), dtype=torch.float64) if weights is None else weights.double()
        return (given / given.sum()).unsqueeze(0) @ self

    def dot(self, other: "Rows") -> Tensor:
        """Return the inner product of each pair of rows, (K,), of the columns that `Layout.measured` counts."""
        pairs = [(self.blocks[at], other.blocks[at]) for at in self.layout.measured]
        parts = [_flat(a * b).sum(1) for a, b in pairs]
        return torch.stack(parts).sum(0).cpu() if parts else torch.zeros(self.size)

    def square_norm(self) -> Tensor:
        """Return ‖row‖², (K,), of the columns that `Layout.measured` counts."""
        return self.dot(self)

    def square_distances(self) -> Tensor:
        """Return ‖row_i − row_j‖² for all pairs, (K, K), from differences, as a Gram matrix would cancel."""
        return torch.stack([(self - self[i : i + 1]).square_norm() for i in range(len(self))])

    def largest(self) -> Tensor:
        """Return the largest absolute entry of each row, (K,); NaN if a row contains NaN."""
        found = [_flat(block).abs().amax(1) for block in self.blocks if block[:1].numel()]
        return torch.stack(found).amax(0).cpu() if found else torch.zeros(self.size)

    def finite(self) -> Tensor:
        """Return which rows have no NaN or infinity, (K,)."""
        return torch.isfinite(self.largest())  # several times faster than a test of every entry

    # -- internal

    def _like(
        self, blocks: Sequence[Tensor], size: int | None = None, observed: Mapping[str, Tensor] | None = None
    ) -> "Rows":
        return Rows(self.layout, blocks, self.frozen, size=self.size if size is None else size, observed=observed)

    def _positions(self, which: Select) -> Tensor:
        if isinstance(which, slice):
            return torch.arange(len(self), device=self.device)[which]
        index = torch.as_tensor(which)
        return (index.nonzero().flatten() if index.dtype == torch.bool else index.long()).to(self.device)

    def _binary(self, operation: Callable[..., Sequence[Tensor]], other: "Rows | Number") -> "Rows":
        if isinstance(other, Rows):
            if len(other) == len(self) or len(other) == 1 or len(self) == 1:
                size = max(len(self), len(other))
                observed = _first(self.observed, other.observed)
                return self._like(operation(self.blocks, other.blocks) if self.blocks else (), size, observed)
            raise ValueError(f"rows of {len(self)} and {len(other)} clients cannot be combined")
        if not self.blocks:
            return self
        if isinstance(other, Tensor) and other.dim() > 0:
            per_row = [_per_row(other, block) for block in self.blocks]
            return self._like(operation(self.blocks, per_row), observed=self.observed)
        number = other.item() if isinstance(other, Tensor) else other
        return self._like(operation(self.blocks, number), observed=self.observed)


def concatenate(parts: Sequence[Any]) -> Any:
    """Rows, or tensors, of several groups of clients as one."""
    if len(parts) == 1:
        return parts[0]
    return Rows.cat(parts) if isinstance(parts[0], Rows) else torch.cat(list(parts))


def _per_row(values: Tensor, block: Tensor) -> Tensor:
    """One number per row in the shape that broadcasts against a block."""
    return values.to(device=block.device, dtype=block.dtype).reshape(-1, *[1] * (block.dim() - 1))


def _first(one: Mapping[str, Tensor] | None, other: Mapping[str, Tensor] | None) -> Mapping[str, Tensor] | None:
    return other if one is None else one


def _flat(block: Tensor) -> Tensor:
    """(K, …) as (K, columns); a parameter that is a single number has one column."""
    return block.flatten(1) if block.dim() > 1 else block.unsqueeze(1)


@dataclass(frozen=True)
class RunningVariance:
    """Mean and variance of the weights of each client over its rounds, updated online (Welford).

    The variance of a vector is the sum of its entries' variances, with divisor `count`.
    """

    count: Tensor  # of values, (K,)
    mean: Rows
    squares: Tensor  # Σ ‖x − mean‖², (K,)

    @classmethod
    def empty(cls, like: Rows) -> "RunningVariance":
        """Start without values, for rows of this shape."""
        count = torch.zeros(len(like), dtype=torch.int64)
        return cls(count, like * 0.0, count.double())

    def add(self, rows: Rows) -> "RunningVariance":
        """Add a value per client."""
        count = self.count + 1
        before = rows - self.mean
        mean = self.mean + before / count
        return RunningVariance(count, mean, self.squares + before.dot(rows - mean).double())

    @property
    def variance(self) -> Tensor:
        """The variance of each client, (K,); NaN (undefined) for fewer than two values."""
        known = self.count >= 2
        return torch.where(known, self.squares / self.count.clamp(min=1), torch.nan)
