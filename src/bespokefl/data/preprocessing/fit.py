"""What is learnt from training data before any model: means and spreads of features, fillings for gaps, a vocabulary.

It comes after the split, so that validation and test data have no part in it. Pooled statistics are sums over the
clients of how many values there are, of the values and of their squares: a client tells no more than these, once
(`Sums.of` is what it computes). What was learnt is a `Preparation`.
"""

from collections.abc import Collection, Sequence
from dataclasses import replace

import numpy as np
import torch

from bespokefl.core.client_index import ClientIndex
from bespokefl.core.errors import InputError, listing, unknown
from bespokefl.data.clients import Clients
from bespokefl.data.preprocessing.feature_sums import Sums
from bespokefl.data.preprocessing.transform import Preparation, check_enough, refuse_gaps
from bespokefl.data.tables import text
from bespokefl.data.tables.features import WORDS, Features, Table

SCALES = ("pooled", "own", "none")
FILLINGS = ("refuse", "mean", "drop")  # drop: rows with gaps were left out when the table was read


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
        refuse_gaps(x, known)
    if scale == "none" and not gaps and not known.categories.any():
        return _marked(clients, Preparation(known, scale, missing))
    pooled = Sums.of(x[clients.train.take(teachers).indices.numpy()], known)
    _check_values(pooled, known)
    own = Sums.of_each(x, clients.train, known) if scale == "own" else None
    if own is not None:
        check_enough(clients.names, clients.train.sizes.numpy())
        clients = _unshared(clients)
    made = Preparation(known, scale, missing, pooled, clients.names if own is not None else (), own)
    ready = made.fill_and_scale(clients.x.numpy(), own, _owner(clients))
    return _marked(replace(clients, x=torch.from_numpy(ready)), made)


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
    x = text.cut(x, text.fitting_length(lessons) if length is None else length)
    known = replace(features, columns=(only,), shape=tuple(x.shape[1:]))
    return replace(clients, x=torch.from_numpy(x)), Preparation(known, missing=missing, tokens=tokens)


def _teachers(clients: Clients, names: Collection[str] | None) -> list[int]:
    if names is None:
        return list(range(len(clients)))
    foreign = sorted(set(names) - set(clients.names))
    if foreign or not names:
        raise InputError(f"learn_from must name some of the clients, got {listing(foreign) or 'none'}")
    chosen = set(names)
    return [at for at, name in enumerate(clients.names) if name in chosen]


def _check_values(pooled: Sums, features: Features) -> None:
    empty = [name for name, count in zip(features.names, pooled.count, strict=True) if not count]
    if empty:
        raise InputError(f"{empty[0]!r} has no value in any training example; drop this column")


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

    def keys(part: ClientIndex) -> np.ndarray:
        """One number for each pair of an example and its client."""
        return part.indices.numpy() * num + np.repeat(np.arange(num), part.sizes.numpy())

    pairs = np.unique(np.concatenate([keys(part) for part in parts]))
    which = pairs // num
    if (which[1:] != which[:-1]).all():
        return clients

    def moved(part: ClientIndex) -> ClientIndex:
        return ClientIndex(torch.from_numpy(np.searchsorted(pairs, keys(part))), part.offsets)

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
