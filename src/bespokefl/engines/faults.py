"""Simulated client failures. Which client fails, when and how is a random draw like all others.

nan, huge, wrong-shape   the upload arrives, but is broken
slow                     the upload arrives too late
drop                     the client neither trains nor answers
"""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bespokefl.core import rng as rngs
from bespokefl.core.errors import InputError, unknown
from bespokefl.core.method import State
from bespokefl.core.rows import Rows

FAULTS = ("nan", "huge", "wrong-shape", "slow", "drop")
HUGE = 1e16  # factor of a huge upload


@dataclass(frozen=True)
class Faults:
    """The probability of each kind of failure, for every client of a round."""

    rates: tuple[tuple[str, float], ...] = ()

    @classmethod
    def of(cls, text: str) -> "Faults":
        """Read a text such as "nan:0.05, drop:0.1"."""
        rates: dict[str, float] = {}
        for part in filter(None, (one.strip() for one in text.split(","))):
            kind, _, written = (one.strip() for one in part.partition(":"))
            if kind not in FAULTS:
                raise unknown("fault", kind, FAULTS)
            if kind in rates:
                raise InputError(f"each fault must be given once, got {kind} twice in {text!r}; leave one out.")
            try:
                rates[kind] = float(written)
            except ValueError:
                raise InputError(f"a fault must be written kind:share, as in drop:0.1, got {part!r}.") from None
            if not 0 <= rates[kind] <= 1:
                raise InputError(f"the share of clients that fail by {kind} must be in [0, 1], got {written}.")
        if sum(rates.values()) > 1:
            raise InputError(f"the shares of all faults must add up to at most 1, got {sum(rates.values()):g}.")
        return cls(tuple(rates.items()))

    def of_client(self, seed: int, number: int, client: str) -> str | None:
        """How this client fails in this round; None if it does not."""
        if not self.rates:
            return None
        drawn, up_to = rngs.generator(seed, "fault", number, client).random(), 0.0
        for kind, rate in self.rates:
            up_to += rate
            if drawn < up_to:
                return kind
        return None


def break_upload(upload: State, kind: str, rng: np.random.Generator) -> State:
    """Break one client's upload."""
    if kind == "wrong-shape":  # of one value only, so that the others do not reveal it
        name = sorted(upload)[int(rng.integers(len(upload)))]
        return upload | {name: _reshaped(upload[name])}
    return {name: _break(value, kind) for name, value in upload.items()}


def _reshaped(value: Rows | Tensor) -> Rows | Tensor:
    """Add a column to rows, or a second number to numbers."""
    if not isinstance(value, Rows):
        return torch.stack([value, value], -1)
    layout = value.layout
    shapes = tuple((*shape[:-1], shape[-1] + 1) if shape else (2,) for shape in layout.shapes)
    blocks = [block.new_zeros(1, *shape) for block, shape in zip(value.blocks, shapes, strict=True)]
    return Rows(replace(layout, shapes=shapes), blocks, size=1)


def _break(value: Any, kind: str) -> Any:
    if isinstance(value, Rows):
        return value.map(lambda block: _break(block, kind))
    if not value.is_floating_point():
        return value
    return torch.full_like(value, torch.nan) if kind == "nan" else value * HUGE + HUGE
