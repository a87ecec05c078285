"""Clients that fail, simulated: which one, in which round and how, is drawn like everything else.

nan, huge, wrong-shape   the upload arrives, broken
slow                     it arrives too late
drop                     the client is gone: it neither trains nor answers
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bespokefl.core import rng as chance
from bespokefl.core.errors import InputError, unknown
from bespokefl.core.method import State
from bespokefl.core.rows import Layout, Rows

KINDS = ("nan", "huge", "wrong-shape", "slow", "drop")
HUGE = 1e16


@dataclass(frozen=True)
class Faults:
    """How likely each kind is, for every client that takes part in a round."""

    rates: tuple[tuple[str, float], ...] = ()

    @classmethod
    def of(cls, text: str) -> "Faults":
        """ "nan:0.05, drop:0.1" """
        rates: dict[str, float] = {}
        for part in filter(None, (one.strip() for one in text.split(","))):
            kind, _, written = (one.strip() for one in part.partition(":"))
            if kind not in KINDS:
                raise unknown("fault", kind, KINDS)
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
        """How this client fails in this round, if it does."""
        if not self.rates:
            return None
        drawn, up_to = chance.generator(seed, "fault", number, client).random(), 0.0
        for kind, rate in self.rates:
            up_to += rate
            if drawn < up_to:
                return kind
        return None


NO_FAULTS = Faults()


def spoil(upload: State, kind: str, rng: np.random.Generator) -> State:
    """One client's upload as it arrives, broken."""
    if kind == "wrong-shape":  # one of its values, so that no other gives it away
        name = sorted(upload)[int(rng.integers(len(upload)))]
        return upload | {name: _reshaped(upload[name])}
    return {name: _spoilt(value, kind) for name, value in upload.items()}


def _reshaped(value: Rows | Tensor) -> Rows | Tensor:
    """Rows with columns too many, numbers with a second one for each."""
    if not isinstance(value, Rows):
        return torch.stack([value, value], -1)
    layout = value.layout
    shapes = tuple((*shape[:-1], shape[-1] + 1) if shape else (2,) for shape in layout.shapes)
    blocks = [block.new_zeros(1, *shape) for block, shape in zip(value.blocks, shapes, strict=True)]
    return Rows(Layout(layout.names, shapes, layout.head), blocks, size=1)


def _spoilt(value: Any, kind: str) -> Any:
    if isinstance(value, Rows):
        return value.map(lambda block: _spoilt(block, kind))
    if not value.is_floating_point():
        return value
    return torch.full_like(value, torch.nan) if kind == "nan" else value * HUGE + HUGE
