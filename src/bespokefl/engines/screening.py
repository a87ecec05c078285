"""What protects a federation, simulated or real: an upload that cannot be used is refused before it is aggregated.

    wrong shape       it has not the names, columns, shapes and dtypes that its method says (`Method.upload`), or, where
                      that does not say, that most clients' uploads have
    not finite        there is a NaN or an infinity in it, other than where its method means "undefined"
    impossible        a number in it cannot be: a variance below zero, a cluster that there is not
    absurdly large    against the smallest upload of the round, so that one honest client is enough to tell; rows also
                      against the model that the run began with, which tells where no client is honest

It is about what is broken, not about what lies: a wrong upload of a usual size passes.
"""

import logging
from collections import Counter
from collections.abc import Sequence

import torch
from torch import Tensor

from bespokefl.core.errors import in_brief, listing
from bespokefl.core.method import Method, Round, State
from bespokefl.core.rows import Rows

log = logging.getLogger("bespokefl")

LARGER_ROWS, LARGER_NUMBERS = 1e4, 1e12  # times one plus the largest entry of the smallest upload
GROWN = 1e12  # times one plus the largest entry of the first model

Entry = tuple[list[int], State]  # clients, and their uploads: a row each
Look = tuple[tuple[object, ...], ...]  # by name: layout or shape, and dtype


def most(start: Rows) -> float:
    """What no entry of a row exceeds by honest training from this model."""
    return GROWN * (1 + float(start.largest().max()))


class Screening:
    """Knows the method, and the model that the run began with."""

    def __init__(self, method: Method, start: Rows) -> None:
        self._method = method
        self._start = start
        # Who changes what is uploaded and says nothing has not said what the class above says.
        self._says = _depth(method, "upload") <= _depth(method, "local_update")
        self._most = most(start)

    def __call__(self, entries: Sequence[Entry], server: State, round: Round) -> tuple[list[Entry], dict[int, str]]:
        """The uploads that can be used, and why the others cannot: by client. `server` is its state of before."""
        fitting, refused = self._alike(entries, server, round)
        wrong = [dict[int, str]() for _ in fitting]  # by place in the entry
        for name in fitting[0][1] if fitting else ():
            values = [upload[name] for _, upload in fitting]
            for own, found in zip(wrong, self._wrong(name, values), strict=True):
                own |= {at: reason for at, reason in found.items() if at not in own}
        kept = []
        for (clients, upload), own in zip(fitting, wrong, strict=True):
            refused |= {clients[at]: reason for at, reason in own.items()}
            sound = [at for at in range(len(clients)) if at not in own]
            if len(sound) == len(clients):
                kept.append((clients, upload))
            elif sound:
                places = torch.tensor(sound)
                kept.append(([clients[at] for at in sound], {name: value[places] for name, value in upload.items()}))
        return kept, refused

    def _alike(self, entries: Sequence[Entry], server: State, round: Round) -> tuple[list[Entry], dict[int, str]]:
        """The uploads that look as the method says, or, where it does not say, as most clients' do."""
        looks = [_look(upload, len(clients)) for clients, upload in entries]
        said = self._method.upload(self._start, server, round) if self._says else None
        right = self._usual(entries, looks) if said is None else _look(said, 1)
        fitting: list[Entry] = []
        refused: dict[int, str] = {}
        for look, (clients, upload) in zip(looks, entries, strict=True):
            if look is not None and look == right:
                fitting.append((clients, upload))
            else:
                refused |= dict.fromkeys(clients, "wrong shape")
        if said is not None and entries and not fitting:
            name = self._method.name or type(self._method).__name__
            came, wanted = (in_brief(listing(sorted(values)) or "nothing") for values in (entries[0][1], said))
            log.warning(
                "round %d: nobody's upload (%s) looks as %s says in `upload` (%s)", round.number, came, name, wanted
            )
        return fitting, refused

    def _usual(self, entries: Sequence[Entry], looks: Sequence[Look | None]) -> Look | None:
        """What most clients' uploads look like, of those whose rows have columns of the model; nothing comes last."""
        votes: Counter[Look] = Counter()
        for look, (clients, upload) in zip(looks, entries, strict=True):
            if look is not None and self._known(upload):
                votes[look] += len(clients)
        return max(votes, key=lambda look: (len(look) > 0, votes[look]), default=None)

    def _known(self, upload: State) -> bool:
        """Whether its rows have the columns of the model, or of some of its parameters."""
        layout = self._start.layout
        shapes = dict(zip(layout.names, layout.shapes, strict=True))
        return all(
            value.dtype.is_floating_point and shapes.get(name) == shape
            for value in upload.values()
            if isinstance(value, Rows)
            for name, shape in zip(value.layout.names, value.layout.shapes, strict=True)
        )

    def _wrong(self, name: str, values: Sequence[Rows | Tensor]) -> list[dict[int, str]]:
        """What is wrong with these values of a name, one for each entry: by place."""
        bad: list[dict[int, str]] = []
        sizes = []
        for value in values:
            size, own = _largest(value), dict[int, str]()
            if not isinstance(value, Rows):
                possible = self._method.possible(name, value) | ~torch.isfinite(value)
                own = dict.fromkeys(
                    (~possible).reshape(len(value), -1).any(1).nonzero().flatten().tolist(), "impossible"
                )
                if name in self._method.undefined:
                    size = _largest(value.nan_to_num(nan=0.0, posinf=torch.inf, neginf=-torch.inf))
            own |= dict.fromkeys((~torch.isfinite(size)).nonzero().flatten().tolist(), "not finite")
            bad.append(own)
            sizes.append(size)
        sound = [size[[at for at in range(len(size)) if at not in own]] for size, own in zip(sizes, bad, strict=True)]
        known = torch.cat(sound)
        if not len(known):
            return bad
        rows = isinstance(values[0], Rows)
        limit = (LARGER_ROWS if rows else LARGER_NUMBERS) * (1 + float(known.min()))
        limit = min(limit, self._most) if rows else limit
        for size, own in zip(sizes, bad, strict=True):
            for at in (size > limit).nonzero().flatten().tolist():
                own.setdefault(at, "absurdly large")
        return bad


def _largest(value: Rows | Tensor) -> Tensor:
    """Each client's largest entry, by size, (K,)."""
    if isinstance(value, Rows):
        return value.largest().double().cpu()
    flat = value.reshape(len(value), -1).double().cpu().abs()
    return flat.amax(1) if flat.shape[1] else flat.new_zeros(len(flat))


def _look(upload: State, size: int) -> Look | None:
    """What an upload of so many clients looks like for each of them; None where it has not a place for each."""
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
    """How far above a method's own class the one is that defines this."""
    return next(at for at, kind in enumerate(type(method).__mro__) if name in vars(kind))
