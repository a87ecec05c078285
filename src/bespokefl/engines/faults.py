"""Clients that fail or lie, and how the server sees through it.

`Faults` simulates them: which client fails, in which round and how, is drawn like everything else. `screen` is what
protects a federation, simulated or real: an upload that is not finite, of another shape than the others', or absurdly
large is refused before it is aggregated.

    nan, huge, wrong-shape   the upload arrives, broken
    slow                     it arrives too late
    drop                     the client is gone: it neither trains nor answers
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from bespokefl.core import chance
from bespokefl.core.errors import InputError, unknown
from bespokefl.core.method import State
from bespokefl.core.rows import Layout, Rows

KINDS = ("nan", "huge", "wrong-shape", "slow", "drop")
ABSURD = 1e4  # times one plus the largest entry of the smallest upload: one honest client is enough to tell

Entry = tuple[list[int], State]  # clients, and their uploads: a row each


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


def spoil(upload: State, kind: str) -> State:
    """One client's upload as it arrives, broken."""
    return {name: _spoilt(value, kind) for name, value in upload.items()}


def _spoilt(value: Any, kind: str) -> Any:
    if isinstance(value, Rows):
        if kind == "wrong-shape":
            layout = value.layout
            shapes = tuple((*shape[:-1], shape[-1] + 1) if shape else (2,) for shape in layout.shapes)
            return Rows(
                Layout(layout.names, shapes, layout.head), [value.blocks[0].new_zeros(1, *shape) for shape in shapes]
            )
        return value.map(lambda block: _spoilt(block, kind))
    if not value.is_floating_point():
        return value
    return torch.full_like(value, torch.nan) if kind == "nan" else value * 1e12 + 1e12


def screen(entries: Sequence[Entry], layout: Layout) -> tuple[list[Entry], dict[int, str]]:
    """The uploads that can be used, and why the others cannot: by client.

    Rows must have the columns of the model, or of some of its parameters. What else is sent must look as it does with
    most clients.
    """
    refused: dict[int, str] = {}
    votes: dict[object, int] = {}
    for clients, upload in entries:
        if _fits(upload, layout):
            votes[_shape(upload)] = votes.get(_shape(upload), 0) + len(clients)
    usual = max(votes, key=lambda shape: votes[shape], default=None)
    fitting: list[Entry] = []
    for clients, upload in entries:
        if _fits(upload, layout) and _shape(upload) == usual:
            fitting.append((clients, upload))
        else:
            refused |= dict.fromkeys(clients, "wrong shape")
    fine = [torch.ones(len(clients), dtype=torch.bool) for clients, _ in fitting]
    for name in [name for name, value in fitting[0][1].items() if isinstance(value, Rows)] if fitting else ():
        largest = [upload[name].largest().double().cpu() for _, upload in fitting]
        together = torch.cat(largest)
        known = together[torch.isfinite(together)]
        limit = ABSURD * (1 + float(known.min())) if len(known) else 0.0
        for own, good, (clients, _) in zip(largest, fine, fitting, strict=True):
            for at in (~(own <= limit)).nonzero().flatten().tolist():
                good[at] = False
                refused[clients[at]] = "absurdly large" if torch.isfinite(own[at]) else "not finite"
    kept = []
    for (clients, upload), good in zip(fitting, fine, strict=True):
        if good.all():
            kept.append((clients, upload))
        elif good.any():
            places = good.nonzero().flatten()
            chosen = {name: value[places] for name, value in upload.items()}
            kept.append(([clients[at] for at in places.tolist()], chosen))
    return kept, refused


def _fits(upload: State, layout: Layout) -> bool:
    shapes = dict(zip(layout.names, layout.shapes, strict=True))
    return all(
        shapes.get(name) == shape
        for value in upload.values()
        if isinstance(value, Rows)
        for name, shape in zip(value.layout.names, value.layout.shapes, strict=True)
    )


def _shape(upload: State) -> object:
    """What an upload looks like, but for the number of clients in it."""
    return tuple(
        (name, value.layout.names, value.layout.shapes) if isinstance(value, Rows) else (name, _of_tensor(value))
        for name, value in sorted(upload.items())
    )


def _of_tensor(value: Tensor) -> tuple[object, ...]:
    return (value.dtype, tuple(value.shape[1:]))
