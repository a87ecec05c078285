"""Screening of uploads: the server rejects an upload that it cannot use before it aggregates the others.

    wrong shape       names, columns, shapes or dtypes differ from what the method declares in `upload` or, without a
                      declaration, from the uploads of the majority
    not finite        it contains NaN or infinity where the method does not declare that it may
    impossible        a number is outside of its declared range: a negative variance, an unknown cluster
    absurdly large    compared with the smallest upload of the round, so that one honest client suffices; rows also
                      compared with the initial model, which helps if no client is honest

This detects broken uploads, not malicious ones: a wrong upload of a usual size passes.
"""

import logging
from collections import Counter
from collections.abc import Sequence

import torch
from torch import Tensor

from bespokefl.core.errors import in_brief, listing
from bespokefl.core.method import Method, Round, State
from bespokefl.core.rows import Rows
from bespokefl.core.uploads import Choice, Declaration, Declarations, Scalar

log = logging.getLogger("bespokefl")

# The largest valid entry is one of these factors times (1 + the largest entry of the upload or model compared with).
ROW_FACTOR, NUMBER_FACTOR = 1e4, 1e12  # compared with the smallest upload
GROWTH_FACTOR = 1e12  # compared with the initial model

Entry = tuple[list[int], State]  # clients, and their uploads: one row each
Signature = tuple[tuple[object, ...], ...]  # per name: layout or shape, and dtype


def select(entry: Entry, positions: Sequence[int]) -> Entry:
    """The clients at these positions, and their values."""
    clients, values = entry
    if len(positions) == len(clients):
        return entry
    index = torch.tensor(positions)
    return [clients[at] for at in positions], {name: value[index] for name, value in values.items()}


def largest_plausible_entry(start: Rows) -> float:
    """The largest entry of a row that training from this model can lead to."""
    return GROWTH_FACTOR * (1 + float(start.largest().max()))


class Screening:
    """Tells usable uploads of a method from others, in a run that starts with these weights."""

    def __init__(self, method: Method, start: Rows) -> None:
        self._method, self._start = method, start
        # A subclass that overrides `local_update` and not `upload` has not declared its uploads.
        self._is_declared = _depth(method, "upload") <= _depth(method, "local_update")
        self._largest = largest_plausible_entry(start)

    def __call__(self, entries: Sequence[Entry], server: State, round: Round) -> tuple[list[Entry], dict[int, str]]:
        """The usable uploads, and by client why others are rejected. `server` is the state before aggregation."""
        if not entries:
            return [], {}
        declared = self._method.upload(self._method.message(server, entries[0][0][:1], round))
        matching, rejected = self._matching(entries, declared if self._is_declared else None, round)
        faults = [dict[int, str]() for _ in matching]  # by position in the entry
        for name in matching[0][1] if matching else ():
            found = self._faults((declared or {}).get(name), [upload[name] for _, upload in matching])
            faults = [new | known for known, new in zip(faults, found, strict=True)]
        kept = []
        for (clients, upload), own in zip(matching, faults, strict=True):
            rejected |= {clients[at]: reason for at, reason in own.items()}
            sound = [at for at in range(len(clients)) if at not in own]
            if sound:
                kept.append(select((clients, upload), sound))
        return kept, rejected

    def _matching(
        self, entries: Sequence[Entry], declared: Declarations | None, round: Round
    ) -> tuple[list[Entry], dict[int, str]]:
        """The uploads with the declared signature or, without a declaration, with that of the majority."""
        signatures = [_signature(upload, len(clients)) for clients, upload in entries]
        if declared is None:
            expected = self._most_frequent(entries, signatures)
        else:
            own = {name: one for name, one in declared.items() if one.phase in (None, round.phase)}
            expected = tuple((name, *own[name].signature(self._start)) for name in sorted(own))
        matching: list[Entry] = []
        rejected: dict[int, str] = {}
        for signature, (clients, upload) in zip(signatures, entries, strict=True):
            if signature is not None and signature == expected:
                matching.append((clients, upload))
            else:
                rejected |= dict.fromkeys(clients, "wrong shape")
        if declared is not None and not matching:
            log.warning(
                "round %d: all uploads (%s) differ from what %s declares in `upload` (%s)",
                round.number,
                in_brief(listing(sorted(entries[0][1])) or "nothing"),
                self._method.name or type(self._method).__name__,
                in_brief(listing(sorted(own)) or "nothing"),
            )
        return matching, rejected

    def _most_frequent(self, entries: Sequence[Entry], signatures: Sequence[Signature | None]) -> Signature | None:
        """The signature of most clients' uploads, among those with columns of the model; empty uploads come last."""
        votes: Counter[Signature] = Counter()
        for signature, (clients, upload) in zip(signatures, entries, strict=True):
            if signature is not None and self._fits_model(upload):
                votes[signature] += len(clients)
        return max(votes, key=lambda one: (len(one) > 0, votes[one]), default=None)

    def _fits_model(self, upload: State) -> bool:
        """Whether all rows have columns of the model's parameters."""
        layout = self._start.layout
        shapes = dict(zip(layout.names, layout.shapes, strict=True))
        return all(
            value.dtype.is_floating_point and shapes.get(name) == shape
            for value in upload.values()
            if isinstance(value, Rows)
            for name, shape in zip(value.layout.names, value.layout.shapes, strict=True)
        )

    def _faults(self, declared: Declaration | None, values: Sequence[Rows | Tensor]) -> list[dict[int, str]]:
        """Why clients' values of a name cannot be used: for each entry, by position."""
        faults: list[dict[int, str]] = []
        sizes = []
        for value in values:
            size, own = _largest(value), dict[int, str]()
            if isinstance(declared, Scalar | Choice) and isinstance(value, Tensor):
                valid = (declared.is_valid(value) | ~torch.isfinite(value)).reshape(len(value), -1).all(1)
                own = dict.fromkeys((~valid).nonzero().flatten().tolist(), "impossible")
                if isinstance(declared, Scalar) and declared.may_be_undefined:
                    size = _largest(value.nan_to_num(nan=0.0, posinf=torch.inf, neginf=-torch.inf))
            own |= dict.fromkeys((~torch.isfinite(size)).nonzero().flatten().tolist(), "not finite")
            faults.append(own)
            sizes.append(size)
        sound = [
            size[[at for at in range(len(size)) if at not in own]] for size, own in zip(sizes, faults, strict=True)
        ]
        compared = torch.cat(sound)
        if not len(compared):
            return faults
        if isinstance(values[0], Rows):
            limit = min(ROW_FACTOR * (1 + float(compared.min())), self._largest)
        else:
            limit = NUMBER_FACTOR * (1 + float(compared.min()))
        for size, own in zip(sizes, faults, strict=True):
            for at in (size > limit).nonzero().flatten().tolist():
                own.setdefault(at, "absurdly large")
        return faults


def _largest(value: Rows | Tensor) -> Tensor:
    """The largest absolute entry of each client, (K,)."""
    if isinstance(value, Rows):
        return value.largest().double().cpu()
    flat = value.reshape(len(value), -1).double().cpu().abs()
    return flat.amax(1) if flat.shape[1] else flat.new_zeros(len(flat))


def _signature(upload: State, size: int) -> Signature | None:
    """The signature of each client's upload; None if a value does not have one row for each of `size` clients."""
    found: list[tuple[object, ...]] = []
    for name, value in sorted(upload.items()):
        if isinstance(value, Rows):
            shapes = [(size, *shape) for shape in value.layout.shapes]
            if len(value) != size or [tuple(block.shape) for block in value.blocks] != shapes:
                return None
            found.append((name, value.layout, tuple(block.dtype for block in value.blocks)))
        elif isinstance(value, Tensor) and value.dim() and len(value) == size:
            found.append((name, tuple(value.shape[1:]), value.dtype))
        else:
            return None
    return tuple(found)


def _depth(method: Method, name: str) -> int:
    """How far above a method's own class the class is that defines an attribute."""
    return next(at for at, kind in enumerate(type(method).__mro__) if name in vars(kind))
