"""Fits preprocessing on training data: means and standard deviations, values for missing entries, a vocabulary.

This happens after the split, so that validation and test data have no influence. Pooled statistics are sums over
clients of `FeatureSums`, which is all that a client shares. The result is a `Preparation`.
"""

from collections.abc import Collection, Sequence
from dataclasses import replace

import numpy as np
import torch

from bespokefl.core.errors import InputError, listing, spell, unknown
from bespokefl.data.clients import Clients
from bespokefl.data.preprocessing.feature_sums import FeatureSums
from bespokefl.data.preprocessing.transform import Preparation, check_own_scale, reject_missing
from bespokefl.data.splits.transform import renumber
from bespokefl.data.tables import text
from bespokefl.data.tables.features import WORD_KINDS, Features, Table
from bespokefl.data.tables.table import MISSING

SCALES = ("pooled", "own", "none")


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
    """Scale features, fill missing values and encode words, as fitted on the clients' training examples.

    Parameters
    ----------
    clients : Clients
        The clients, as `split` returned them.
    features : Features, optional
        What the examples consist of; by default the features of the table that was split, else arrays.
    scale : str, optional
        Numbers have mean 0 and standard deviation 1 over all clients ("pooled", the default of a table), over each
        client's "own" examples, or are not scaled ("none", the default of arrays, such as images).
    missing : str
        "refuse" missing values, or fill them with the "mean" of the feature (pooled or own, like the scale).
    vocabulary : int, optional
        For text, the maximum number of words; the most frequent ones are kept.
    length : int, optional
        For text, the number of words that documents are cut or padded to; by default 95 % of them fit.
    learn_from : collection of str, optional
        The names of the clients to learn from; by default all.

    Returns
    -------
    tuple of Clients and Preparation
        The clients with prepared examples, and the fitted preprocessing for other examples.
    """
    if clients.preparation is not None:
        raise InputError("these clients are prepared already; prepare those that split() returned")
    known = features or features_of(clients)
    if scale not in (None, *SCALES):
        raise unknown("scale", str(scale), SCALES)
    if missing not in MISSING:
        raise unknown("way to fill missing values", str(missing), MISSING)
    if known.shape != clients.shape:
        raise InputError(f"the features describe examples of shape {known.shape}, but the clients' are {clients.shape}")
    learners = _indices_of(clients, learn_from)
    if known.kind in WORD_KINDS:
        if scale in ("pooled", "own"):
            raise InputError(f"words cannot be scaled, got {spell('scale', scale)}; leave it out")
        if known.kind == "tokens" and vocabulary is None and length is None:  # keep the user's own ids
            ready, made = clients, Preparation(known, missing=missing, tokens=int(clients.x.max()) + 1)
        else:
            ready, made = _prepare_words(clients, known, learners, vocabulary, length, missing)
    elif vocabulary is not None or length is not None:
        raise InputError(
            f"{spell('vocabulary')} and {spell('length')} are for text, but these data are numbers; leave them out"
        )
    else:
        scale = scale or ("pooled" if known.kind == "table" else "none")
        ready, made = _prepare_numbers(clients, known, learners, scale, missing)
    return replace(ready, preparation=made), made  # so that they are not prepared twice


def features_of(clients: Clients) -> Features:
    """What the examples of these clients consist of."""
    if isinstance(clients.source, Table):
        return clients.source.features
    return Features.of_arrays(clients.shape, not clients.x.is_floating_point())


def _prepare_numbers(
    clients: Clients, features: Features, learners: Sequence[int], scale: str, missing: str
) -> tuple[Clients, Preparation]:
    x = clients.x.numpy()
    has_missing = bool(np.isnan(x.sum(dtype=np.float64)))
    if has_missing and missing != "mean":
        reject_missing(x, features)
    if scale == "none" and not has_missing and not features.are("category").any():
        return clients, Preparation(features, scale, missing)
    pooled = FeatureSums.of(x[clients.train.take(learners).indices.numpy()], features)
    empty = next((name for name, count in zip(features.names, pooled.count, strict=True) if not count), None)
    if empty is not None:
        raise InputError(f"{empty!r} has no value in any training example; drop this column")
    own = FeatureSums.of_each(x, clients.train, features) if scale == "own" else None
    if own is not None:
        check_own_scale(clients.names, clients.train.sizes.numpy())
        clients = _copy_shared_examples(clients)
    made = Preparation(features, scale, missing, pooled, clients.names if own is not None else (), own)
    ready = made.fill_and_scale(clients.x.numpy(), own, _owners(clients))
    return replace(clients, x=torch.from_numpy(ready)), made


def _prepare_words(
    clients: Clients,
    features: Features,
    learners: Sequence[int],
    vocabulary: int | None,
    length: int | None,
    missing: str,
) -> tuple[Clients, Preparation]:
    if length is not None and length < 1:
        raise InputError(f"length must be at least 1 word, got {length}")
    x = clients.x.numpy()
    train = x[clients.train.take(learners).indices.numpy()]
    column = features.columns[0]
    if features.kind == "text":
        counts = np.bincount(train.ravel(), minlength=len(column.values) + text.FIRST)
        size = text.DEFAULT_VOCABULARY if vocabulary is None else vocabulary
        chosen = text.most_frequent(counts, column.values, size)
        x = text.id_map(column.values, chosen)[x]
        column, tokens = replace(column, values=chosen), len(chosen) + text.FIRST
    else:
        seen = int(train.max(initial=text.UNKNOWN)) + 1
        tokens = seen if vocabulary is None else min(seen, vocabulary + text.FIRST)
        x = np.where(x < tokens, x, text.UNKNOWN)
    x = text.pad_or_cut(x, text.default_length(train) if length is None else length)
    known = replace(features, columns=(column,), shape=tuple(x.shape[1:]))
    return replace(clients, x=torch.from_numpy(x)), Preparation(known, missing=missing, tokens=tokens)


def _indices_of(clients: Clients, names: Collection[str] | None) -> list[int]:
    if names is None:
        return list(range(len(clients)))
    foreign = sorted(set(names) - set(clients.names))
    if foreign or not names:
        raise InputError(f"learn_from must name some of the clients, got {listing(foreign) or 'none'}")
    chosen = set(names)
    return [index for index, name in enumerate(clients.names) if name in chosen]


def _owners(clients: Clients) -> np.ndarray:
    """The owner of each example; 0 for unused ones."""
    owner = np.zeros(len(clients.x), dtype=np.int64)
    for part in clients.parts:
        owner[part.indices.numpy()] = np.repeat(np.arange(len(clients)), part.sizes.numpy())
    return owner


def _copy_shared_examples(clients: Clients) -> Clients:
    """The same clients, with a separate copy of every example that several of them have."""
    num = len(clients)
    # one number for each pair of an example and its client
    keys = [part.indices.numpy() * num + np.repeat(np.arange(num), part.sizes.numpy()) for part in clients.parts]
    pairs, (train, validation, test) = renumber(clients.parts, keys)
    copied = torch.from_numpy(pairs // num)
    if (copied[1:] != copied[:-1]).all():
        return clients
    return replace(
        clients,
        x=clients.x[copied],
        y=clients.y[copied],
        train=train,
        validation=validation,
        test=test,
        origin=copied if clients.origin is None else clients.origin[copied],
    )
