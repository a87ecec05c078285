"""What is learnt from training data before any model: means and spreads of features, fillings for gaps, a vocabulary.

It comes after the split, so that validation and test data have no part in it. Pooled statistics are sums over the
clients of how many values there are, of the values and of their squares: a client tells no more than these, once
(`Sums.of` is what it computes). What was learnt is kept with a run, for examples that come later.
"""

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bespokefl.core.errors import InputError, listing, unknown
from bespokefl.core.parts import Part
from bespokefl.data import text
from bespokefl.data.clients import Clients
from bespokefl.data.dataset import Array, as_array
from bespokefl.data.features import WORDS, Features, Table

SCALES = ("pooled", "own", "none")
FILLINGS = ("refuse", "mean", "drop")  # drop: rows with gaps were left out when the table was read
BLOCK = 1 << 22  # numbers that are held in float64 at a time
EQUAL = 1e-13  # variance over squared mean up to which values in float32 cannot be told from a constant


@dataclass(frozen=True, eq=False)
class Sums:
    """Of each feature over some examples: how many values, their sum, the sum of their squares. They add up."""

    count: np.ndarray
    total: np.ndarray
    squares: np.ndarray

    @classmethod
    def of(cls, x: np.ndarray, features: Features) -> "Sums":
        """A client's, from its own training examples; gaps (NaN) do not count."""
        zero = np.zeros(features.channels)
        sums = cls(zero, zero, zero)
        for block in _blocks(len(x), x):
            values = _by_feature(x[block], features).reshape(-1, features.channels)
            there = ~np.isnan(values)
            filled = np.where(there, values, 0.0)
            sums = sums + cls(there.sum(0).astype(float), filled.sum(0), np.square(filled).sum(0))
        return sums

    def __add__(self, other: "Sums") -> "Sums":
        return Sums(self.count + other.count, self.total + other.total, self.squares + other.squares)

    def widened(self, own: Features, wider: Features) -> "Sums":
        """Those of a table with features `own` as of one with more texts in its categories, which it has not seen."""
        which, beside = own.places_in(wider)
        known = which >= 0
        return Sums(
            self.count[beside], np.where(known, self.total[which], 0.0), np.where(known, self.squares[which], 0.0)
        )

    def __getitem__(self, at: slice) -> "Sums":
        return Sums(self.count[at], self.total[at], self.squares[at])

    @property
    def mean(self) -> np.ndarray:
        """NaN where there is no value."""
        found: np.ndarray = np.full(self.count.shape, np.nan)
        np.divide(self.total, self.count, out=found, where=self.count > 0)
        return found

    @property
    def spread(self) -> np.ndarray:
        """Standard deviation; 0 where all values are equal, NaN where there is none."""
        mean = self.mean
        # Values are float32: their squares are exact in float64, and the difference keeps enough digits.
        variance = np.divide(self.squares, self.count, out=np.full_like(mean, np.nan), where=self.count > 0) - mean**2
        return np.where(variance <= EQUAL * mean**2, 0.0, np.sqrt(np.maximum(variance, 0.0)))

    def rows(self, features: int) -> "Sums":
        """Of several clients; JSON does not tell of how many features those of nobody are."""
        return Sums(*(one.reshape(-1, features) for one in (self.count, self.total, self.squares)))

    def to_dict(self) -> dict[str, Any]:
        return {"count": self.count.tolist(), "total": self.total.tolist(), "squares": self.squares.tolist()}

    @classmethod
    def from_dict(cls, known: Mapping[str, Any]) -> "Sums":
        return cls(*(np.array(known[name], dtype=np.float64) for name in ("count", "total", "squares")))


@dataclass(frozen=True, eq=False)
class Preparation:
    """What was learnt, and how to make other examples fit: `apply`. Text becomes JSON and back without a loss."""

    features: Features
    scale: str = "none"
    missing: str = "refuse"
    pooled: Sums | None = None  # None: nothing is scaled or filled
    names: tuple[str, ...] = ()  # of the clients whose own statistics are kept
    own: Sums | None = None  # (clients, features), where the scale is own
    tokens: int | None = None  # how many numbers words can have, for text

    @property
    def shape(self) -> tuple[int, ...]:
        """Of a prepared example."""
        return self.features.shape

    @property
    def changes(self) -> bool:
        """Whether examples have to be made to fit at all."""
        return self.pooled is not None or self.features.kind in ("table", "text")

    def fit(self, clients: Clients) -> tuple[Clients, "Preparation"]:
        """Clients that came later, with raw examples, made to fit; and this with what their own scale is."""
        if self.scale != "own":
            return replace(clients, x=self.apply(clients.x.numpy())), self
        made, x = self, clients.x.numpy().copy()
        for at, name in enumerate(clients.names):
            parts = [part.of(at).numpy() for part in (clients.train, clients.validation, clients.test)]
            made = made.with_client(name, clients.x.numpy()[parts[0]])
            mine = np.concatenate(parts)
            x[mine] = made.apply(clients.x.numpy()[mine], client=name).numpy()
        return replace(clients, x=torch.from_numpy(x)), made

    def apply(self, x: Array | Sequence[str], client: str | None = None) -> Tensor:
        """Examples as the models take them, from raw ones as `tables.inputs` gives them, from arrays or from texts.

        client: whose they are; needed where every client has its own scale (see `with_client` for a new one).
        """
        if self.features.kind in WORDS:
            return torch.from_numpy(self._words(x))
        raw = as_array(x, "x")
        if raw.dtype.kind not in "fiub":
            raise InputError(f"x must hold numbers, got {raw.dtype.name}")
        if raw.shape[1:] != self.shape:
            raise InputError(f"x must have examples of shape {self.shape}, as in training, got {raw.shape[1:]}")
        raw = raw.astype(np.float32) / np.float32(255) if raw.dtype == np.uint8 else raw.astype(np.float32)
        if self.pooled is None:
            _refuse_gaps(raw, self.features)
            return torch.from_numpy(raw)
        own = None if self.scale != "own" else self._own(client)
        return torch.from_numpy(self._apply(raw, own, np.zeros(len(raw), dtype=np.int64)))

    def with_client(self, name: str, x: Array) -> "Preparation":
        """The same with a client that came later, by its own training examples; those of the others stay."""
        if self.scale != "own":
            return self
        raw = as_array(x, "x").astype(np.float32)
        _check_enough([name], np.array([len(raw)]))
        sums, kept = Sums.of(raw, self.features), self.own
        assert kept is not None
        stacked = [
            np.concatenate([getattr(kept, one), getattr(sums, one)[None]]) for one in ("count", "total", "squares")
        ]
        return replace(self, names=(*self.names, name), own=Sums(*stacked))

    def to_json(self) -> str:
        """As it is kept with a run."""
        known = {
            "features": self.features.to_dict(),
            "scale": self.scale,
            "missing": self.missing,
            "pooled": None if self.pooled is None else self.pooled.to_dict(),
            "names": list(self.names),
            "own": None if self.own is None else self.own.to_dict(),
            "tokens": self.tokens,
        }
        return json.dumps(known, ensure_ascii=False, allow_nan=False)

    @classmethod
    def from_json(cls, written: str) -> "Preparation":
        """What `to_json` wrote."""
        try:
            known = json.loads(written)
            pooled, own = known["pooled"], known["own"]
            features = Features.from_dict(known["features"])
            return cls(
                features=features,
                scale=known["scale"],
                missing=known["missing"],
                pooled=None if pooled is None else Sums.from_dict(pooled),
                names=tuple(known["names"]),
                own=None if own is None else Sums.from_dict(own).rows(features.channels),
                tokens=known["tokens"],
            )
        except (ValueError, KeyError, TypeError) as error:
            raise InputError(f"the preparation of the data is damaged: {error!r}") from None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Preparation) and self.to_json() == other.to_json()

    def __hash__(self) -> int:
        return hash(self.to_json())

    # -- inside

    def _own(self, client: str | None) -> Sums:
        if client is None:
            raise InputError("these data were scaled by each client's own statistics; name the client")
        if client not in self.names:
            raise InputError(
                f"there are no statistics of client {client!r}, only of {listing(self.names)}; add them with "
                "with_client, from its training examples"
            )
        assert self.own is not None
        at = self.names.index(client)
        return self.own[at : at + 1]

    def _apply(self, x: np.ndarray, own: "Sums | None", owner: np.ndarray) -> np.ndarray:
        """Filled and scaled; `own` has one row of statistics for each number in `owner`."""
        assert self.pooled is not None
        features, pooled = self.features, self.pooled
        quantities, unseen = features.quantities, features.categories & (pooled.total == 0)
        mean, spread = pooled.mean[None], pooled.spread[None]
        if own is not None:
            spread = np.where(np.isnan(own.mean), spread, own.spread)
            mean = np.where(np.isnan(own.mean), mean, own.mean)
        if self.missing != "mean":
            _refuse_gaps(x, features)
        factor = np.divide(1.0, spread, out=np.zeros_like(spread), where=spread > 0)
        result = np.empty_like(x)
        for block in _blocks(len(x), x):
            values = _by_feature(x[block], features)
            whose = owner[block] if own is not None else np.zeros(len(values), dtype=np.int64)
            center = mean[whose][:, None]
            values = np.where(np.isnan(values), center, values)
            if self.scale != "none":
                values = np.where(quantities, (values - center) * factor[whose][:, None], values)
            values[..., unseen] = 0
            result[block] = _as_example(values, features)
        return result

    def _words(self, x: Any) -> np.ndarray:
        if not isinstance(x, Tensor):
            plain = x if isinstance(x, np.ndarray) else np.array(list(x))
            if plain.dtype.kind in "OUT" and plain.ndim == 1:
                found = [str(one) for one in plain]
                return text.encode(found, self.features.columns[0].values, self.shape[0])
        ids = as_array(x, "x")
        if ids.ndim != 2 or ids.dtype.kind not in "iu" or (ids.size and ids.min() < 0):
            raise InputError(f"x must be texts, or numbers of words >= 0 (documents, length), got shape {ids.shape}")
        assert self.tokens is not None
        known = np.where(ids < self.tokens, ids, text.UNKNOWN).astype(np.int64)
        return _cut(known, self.shape[0])


def prepare(
    clients: Clients,
    features: Features | None = None,
    *,
    scale: str | None = None,
    missing: str = "refuse",
    vocabulary: int | None = None,
    length: int | None = None,
    learn_from: Collection[str] | None = None,
) -> tuple[Clients, Preparation]:
    """The clients with features scaled and gaps filled, words numbered; and what was learnt for that.

    features    what the examples consist of; None: what the table says that they were split from, else arrays
    scale       pooled: to mean 0 and spread 1 over all clients; own: over each client's own examples; none. None:
                pooled for a table, none for arrays, such as pictures
    missing     refuse, or mean: by the mean of the feature, pooled or own as the scale is
    vocabulary  how many words at most, the most frequent ones; for text
    length      words that a document is cut or filled to; None: so that 95 % of the training documents fit
    learn_from  names of the clients to learn from (their training examples); None: all
    """
    if clients.preparation is not None:
        raise InputError("these clients are prepared already; prepare those that split() gave")
    known = features or features_of(clients)
    if scale not in (None, *SCALES):
        raise unknown("scale", str(scale), SCALES)
    if missing not in FILLINGS:
        raise unknown("way to fill missing values", str(missing), FILLINGS)
    if known.shape != clients.shape:
        raise InputError(f"the features describe examples of shape {known.shape}, but the clients' are {clients.shape}")
    teachers = _teachers(clients, learn_from)
    if known.kind in WORDS:
        if scale in ("pooled", "own"):
            raise InputError(f"words cannot be scaled, got scale {scale!r}; leave it out")
        if known.kind == "tokens" and vocabulary is None and length is None:  # somebody's own numbers stay theirs
            return _marked(clients, Preparation(known, missing=missing, tokens=int(clients.x.max()) + 1))
        return _marked(*_prepared_words(clients, known, teachers, vocabulary, length, missing))
    if vocabulary is not None or length is not None:
        raise InputError("vocabulary and length are for text, but these data are numbers; leave them out")
    scale = scale or ("pooled" if known.kind == "table" else "none")
    x = clients.x.numpy()
    gaps = bool(np.isnan(x.sum(dtype=np.float64)))
    if gaps and missing != "mean":
        _refuse_gaps(x, known)
    if scale == "none" and not gaps and not known.categories.any():
        return _marked(clients, Preparation(known, scale, missing))
    pooled = Sums.of(x[clients.train.take(teachers).indices.numpy()], known)
    _check_values(pooled, known)
    own = _own_sums(x, clients.train, known) if scale == "own" else None
    if own is not None:
        _check_enough(clients.names, clients.train.sizes.numpy())
        clients = _unshared(clients)
    made = Preparation(known, scale, missing, pooled, clients.names if own is not None else (), own)
    return _marked(replace(clients, x=torch.from_numpy(made._apply(clients.x.numpy(), own, _owner(clients)))), made)


def _marked(clients: Clients, preparation: Preparation) -> tuple[Clients, Preparation]:
    """Clients that know how they were prepared, so that it is not done twice."""
    return replace(clients, preparation=preparation), preparation


def features_of(clients: Clients) -> Features:
    """What the examples of these clients consist of."""
    if isinstance(clients.source, Table):
        return clients.source.features
    return Features.of(clients.shape, not clients.x.is_floating_point())


def _prepared_words(
    clients: Clients,
    features: Features,
    teachers: Sequence[int],
    vocabulary: int | None,
    length: int | None,
    missing: str,
) -> tuple[Clients, Preparation]:
    if length is not None and length < 1:
        raise InputError(f"length must be at least 1 word, got {length}")
    x = clients.x.numpy()
    lessons = x[clients.train.take(teachers).indices.numpy()]
    only = features.columns[0]
    if features.kind == "text":
        counts = np.bincount(lessons.ravel(), minlength=len(only.values) + text.FIRST)
        chosen = text.frequent(counts, only.values, text.SIZE if vocabulary is None else vocabulary)
        numbers = text.renumbered(only.values, chosen)
        only, tokens = replace(only, values=chosen), len(chosen) + text.FIRST
        x = numbers[x]
    else:
        seen = int(lessons.max(initial=text.UNKNOWN)) + 1
        tokens = seen if vocabulary is None else min(seen, vocabulary + text.FIRST)
        x = np.where(x < tokens, x, text.UNKNOWN)
    x = _cut(x, text.fitting_length(lessons) if length is None else length)
    known = replace(features, columns=(only,), shape=tuple(x.shape[1:]))
    return replace(clients, x=torch.from_numpy(x)), Preparation(known, missing=missing, tokens=tokens)


def _cut(x: np.ndarray, length: int) -> np.ndarray:
    """Documents of this length, cut or filled at the end."""
    wide = np.full((len(x), length), text.PADDING, dtype=np.int64)
    shown = min(length, x.shape[1])
    wide[:, :shown] = x[:, :shown]
    return wide


def _teachers(clients: Clients, names: Collection[str] | None) -> list[int]:
    if names is None:
        return list(range(len(clients)))
    foreign = sorted(set(names) - set(clients.names))
    if foreign or not names:
        raise InputError(f"learn_from must name some of the clients, got {listing(foreign) or 'none'}")
    chosen = set(names)
    return [at for at, name in enumerate(clients.names) if name in chosen]


def _own_sums(x: np.ndarray, train: Part, features: Features) -> Sums:
    """Every client's `Sums.of`, (clients, features), without a step for each of them."""
    indices, sizes = train.indices.numpy(), train.sizes.numpy()
    shape = (len(sizes), features.channels)
    sums = Sums(np.zeros(shape), np.zeros(shape), np.zeros(shape))
    owner = np.repeat(np.arange(len(sizes)), sizes)
    for block in _blocks(len(indices), x):
        values = _by_feature(x[indices[block]], features)
        there = ~np.isnan(values)
        filled = np.where(there, values, 0.0)
        starts = np.flatnonzero(np.diff(owner[block], prepend=-1))  # of each client's examples, which are together
        whose = owner[block][starts]
        sums.count[whose] += np.add.reduceat(there.sum(1), starts)
        sums.total[whose] += np.add.reduceat(filled.sum(1), starts)
        sums.squares[whose] += np.add.reduceat(np.square(filled).sum(1), starts)
    return sums


def _owner(clients: Clients) -> np.ndarray:
    """Whose each example is; 0 where nobody's."""
    owner = np.zeros(len(clients.x), dtype=np.int64)
    for part in (clients.train, clients.validation, clients.test):
        owner[part.indices.numpy()] = np.repeat(np.arange(len(clients)), part.sizes.numpy())
    return owner


def _unshared(clients: Clients) -> Clients:
    """The same clients with a copy of their own of every example that several of them have."""
    parts = (clients.train, clients.validation, clients.test)
    num = len(clients)

    def keys(part: Part) -> np.ndarray:
        """One number for each pair of an example and its client."""
        return part.indices.numpy() * num + np.repeat(np.arange(num), part.sizes.numpy())

    pairs = np.unique(np.concatenate([keys(part) for part in parts]))
    which = pairs // num
    if (which[1:] != which[:-1]).all():
        return clients

    def moved(part: Part) -> Part:
        return Part(torch.from_numpy(np.searchsorted(pairs, keys(part))), part.offsets)

    copied = torch.from_numpy(which)
    train, validation, test = (moved(part) for part in parts)
    return replace(
        clients,
        x=clients.x[copied],
        y=clients.y[copied],
        train=train,
        validation=validation,
        test=test,
        origin=copied if clients.origin is None else clients.origin[copied],
    )


def _blocks(rows: int, x: np.ndarray) -> list[slice]:
    size = max(1, BLOCK // max(1, int(np.prod(x.shape[1:]))))
    return [slice(start, min(start + size, rows)) for start in range(0, rows, size)]


def _by_feature(x: np.ndarray, features: Features) -> np.ndarray:
    """(examples, places, features) in float64: a picture's channels come first, a series' last."""
    values = x.astype(np.float64)
    if len(features.shape) == 3:
        return values.reshape(len(x), features.channels, -1).swapaxes(1, 2)
    return values.reshape(len(x), -1, features.channels)


def _as_example(values: np.ndarray, features: Features) -> np.ndarray:
    """Back from `_by_feature`."""
    ordered = values.swapaxes(1, 2) if len(features.shape) == 3 else values
    return ordered.reshape(len(values), *features.shape).astype(np.float32)


def _check_values(pooled: Sums, features: Features) -> None:
    empty = [name for name, count in zip(features.names, pooled.count, strict=True) if not count]
    if empty:
        raise InputError(f"{empty[0]!r} has no value in any training example; drop this column")


def _check_enough(names: Sequence[str], sizes: np.ndarray) -> None:
    few = [names[at] for at in np.flatnonzero(sizes < 2).tolist()]
    if few:
        raise InputError(
            f"a scale of its own needs at least 2 training examples of every client, got fewer for {listing(few)}; "
            "use the pooled scale"
        )


def _refuse_gaps(x: np.ndarray, features: Features) -> None:
    gaps = np.isnan(x).reshape(len(x), -1)
    if gaps.any():
        row, place = (int(one[0]) for one in np.nonzero(gaps))
        name = features.names[place] if features.kind == "table" else f"place {place}"
        raise InputError(
            f"{name!r} lacks {int(gaps[:, place].sum())} values, the first in example {row}; fill them, or prepare the "
            "data with missing mean"
        )
