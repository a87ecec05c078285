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

from bespokefl.core.rows import Rows


class Reference(Enum):
    """Values, other than those of the message, from which clipping measures an upload."""

    SAME_NAME = "the message's value of the same name, or zero if the message has none"
    INITIAL_WEIGHTS = "the weights with which the run started"
    ZERO = "zero, for changes and gradients"


@dataclass(frozen=True)
class Weights:
    """Rows of model parameters: weights, a change of weights or a gradient.

    Parameters
    ----------
    block : str or None
        The uploaded columns: "base", "head", a layer or a parameter. None for all of them.
    reference : Reference, str or Rows
        The value from which clipping measures the upload. Both sides must know it. By default the message's value of
        the same name; a string names another value of the message.
    phase : str or None
        The phase in which it is uploaded. None for all phases.
    """

    block: str | None = None
    reference: Reference | str | Rows = Reference.SAME_NAME
    phase: str | None = None

    def signature(self, start: Rows) -> tuple[object, ...]:
        """Columns and dtypes of an upload to a model with these initial weights."""
        rows = start if self.block is None else start.block(self.block)
        return rows.layout, tuple(block.dtype for block in rows.blocks)


@dataclass(frozen=True)
class Scalar:
    """A real number per client, or a tensor of them.

    A number that cannot be negative (`minimum` >= 0) is clipped, and gets its noise, on a logarithmic scale.

    Parameters
    ----------
    minimum, maximum : float
        The valid range. The server rejects an upload outside of it.
    may_be_undefined : bool
        Whether NaN is valid and means that the client has no value.
    shape : tuple of int
        The shape of one client's value.
    dtype : torch.dtype or None
        None for the dtype of the model.
    typical : float
        The value at which the logarithmic scale is zero.
    phase : str or None
        The phase in which it is uploaded. None for all phases.
    """

    minimum: float = -inf
    maximum: float = inf
    may_be_undefined: bool = False
    shape: tuple[int, ...] = ()
    dtype: torch.dtype | None = torch.float64
    typical: float = 1.0
    phase: str | None = None

    @property
    def is_logarithmic(self) -> bool:
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
