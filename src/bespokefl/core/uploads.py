"""Declarations of what a client uploads, from which screening, clipping and noise follow.

`Method.upload` returns one declaration per uploaded name:

    {"weights": Weights(), "variance": Scalar(minimum=0, may_be_undefined=True)}
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from math import inf

import torch
from torch import Tensor

from bespokefl.core.rows import Block, Rows


class Reference(Enum):
    """Values, other than those of the message, from which clipping measures an upload."""

    SAME_NAME = "the message's value of the same name, or zero if the message has none"
    INITIAL_WEIGHTS = "the weights with which the run started"
    ZERO = "zero, for changes and gradients"


@dataclass(frozen=True)
class Weights:
    """Rows of model parameters: weights, a change of weights or a gradient.

    Clipping measures an upload from a `reference` that both sides know: by default the message's value of that name;
    a string names another value of the message.
    """

    block: Block | None = None  # the uploaded columns, as for `Rows.block`; None for all of them
    reference: Reference | str | Rows = Reference.SAME_NAME
    phase: str | None = None  # in which it is uploaded; None for all phases
    change_of: str | None = None  # the message's value whose change is uploaded, if it is a change of the model

    def signature(self, start: Rows) -> tuple[object, ...]:
        """Columns and dtypes of an upload to a model with these initial weights."""
        rows = self.columns(start)
        return rows.layout, tuple(block.dtype for block in rows.blocks)

    def columns(self, start: Rows) -> Rows:
        """The uploaded columns of rows with all of them."""
        return start if self.block is None else start.block(self.block)


@dataclass(frozen=True)
class Scalar:
    """A real number per client, or a tensor of them.

    The server rejects an upload outside of the range from `minimum` to `maximum`. A number that cannot be negative
    (`minimum` >= 0) is clipped, and gets its noise, on a logarithmic scale.
    """

    minimum: float = -inf
    maximum: float = inf
    may_be_undefined: bool = False  # whether NaN is valid and means that the client has no value
    shape: tuple[int, ...] = ()  # of one client's value
    dtype: torch.dtype | None = torch.float64  # None for the dtype of the model
    typical: float = 1.0  # the value at which the logarithmic scale is zero
    phase: str | None = None

    @property
    def is_logarithmic(self) -> bool:
        """Whether it is clipped and noised on a logarithmic scale: it cannot be negative."""
        return self.minimum >= 0

    def signature(self, start: Rows) -> tuple[object, ...]:
        """Shape and dtype of an upload to a model with these initial weights."""
        return self.shape, self.dtype or start.dtype

    def is_valid(self, values: Tensor) -> Tensor:
        """Which values are in the valid range."""
        return (values >= self.minimum) & (values <= self.maximum)


@dataclass(frozen=True)
class Choice:
    """Which of `num` alternatives a client chose, as an integer from 0, in a phase or in all. Noise cannot hide it."""

    num: int
    phase: str | None = None

    def signature(self, start: Rows) -> tuple[object, ...]:
        """Shape and dtype of an upload."""
        return (), torch.int64

    def is_valid(self, values: Tensor) -> Tensor:
        """Which values number an alternative."""
        return (values >= 0) & (values < self.num)


Declaration = Weights | Scalar | Choice
Declarations = Mapping[str, Declaration]
