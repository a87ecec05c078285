"""The clients of a federation: their examples for training, validation and test."""

import hashlib
import json
import math
import operator
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from os import PathLike
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bespokefl.core.client_index import ClientIndex
from bespokefl.core.errors import InputError, count, listing
from bespokefl.core.rng import Reusable
from bespokefl.data.dataset import FRACTIONS, Array, Dataset, Fractions
from bespokefl.data.presplit import pool_sets
from bespokefl.data.splits import Assignment, Split, Transform, parse
from bespokefl.data.splits.transform import UNCHANGED, Parts, transform_examples

DEFAULT_CLIENTS = 20  # used if neither the caller nor the split sets the number


@dataclass(frozen=True, eq=False, repr=False)
class Clients:
    """The train, validation and test examples of every client, as indices into the shared tensors x and y.

    Created by `Dataset.split`, `Clients.from_arrays` or `Clients.from_sets`. If the split rotates images or permutes
    labels, x and y hold the transformed examples.

    Attributes
    ----------
    x, y : Tensor, the examples and labels of all clients
    names : tuple of str, the names of the clients
    train, validation, test : ClientIndex, for each client the indices of its examples
    classes : int, or None for regression
    data_name, split_name : str, the names of the data and of the split
    hash : str, SHA-256 of names, parts, groups, transforms and data, the same on every machine
    groups : tuple of int, the true group of each client, or None if the split creates no groups
    label_names : tuple of str, the names of the classes
    seed : int, the seed of the split
    """

    x: Tensor
    y: Tensor
    names: tuple[str, ...]
    train: ClientIndex
    validation: ClientIndex
    test: ClientIndex
    classes: int | None
    data_name: str
    split_name: str
    hash: str
    source: Dataset  # the data before the split
    groups: tuple[int, ...] | None = None
    label_names: tuple[str, ...] = ()
    seed: int = 0
    fingerprint: str = ""  # of the data
    client: np.ndarray | None = None  # the client ids of the data
    transforms: tuple[Transform, ...] | None = None  # applied to each client's examples
    origin: Tensor | None = None  # the original example of each entry of x; None: x is unchanged
    preparation: Any = None  # the `Preparation` of the examples; None: they are unchanged

    @classmethod
    def from_arrays(
        cls,
        x: Array,
        y: Array,
        client: Array | None = None,
        *,
        seed: int = 0,
        fractions: Fractions = FRACTIONS,
        name: str = "arrays",
        tokens: bool = False,
    ) -> "Clients":
        """Create one client for each id in `client`, or a single client without ids.

        Parameters
        ----------
        x, y, client, name, tokens : see `Dataset.from_arrays`
        seed : int, determines how each client's examples are divided into train, validation and test
        fractions : three floats, for train, validation and test

        Examples
        --------
        >>> import bespokefl as bf
        >>> clients = bf.Clients.from_arrays(x, y, client=hospital)
        >>> clients = bf.Clients.from_arrays(x, y).split("iid", clients=10)
        """
        dataset = Dataset.from_arrays(x, y, client, name, tokens=tokens)
        return dataset.split("iid" if client is None else "by_column", clients=1, seed=seed, fractions=fractions)

    @classmethod
    def from_sets(
        cls,
        train: Iterable[tuple[Array, Array]],
        validation: Iterable[tuple[Array, Array]] | None = None,
        test: Iterable[tuple[Array, Array]] | None = None,
        names: Iterable[str | int] | None = None,
        *,
        name: str = "sets",
        tokens: bool = False,
    ) -> "Clients":
        """Create clients from data that are divided already.

        Parameters
        ----------
        train, validation, test : iterables of (x, y), one pair of arrays for each client. The same arrays may occur
            several times, such as a common test set, and are stored once. A part that is None is empty.
        names : iterable of str or int, the names of the clients
        name : str, the name of the data
        tokens : bool, whether x holds token ids
        """
        dataset, client_names, parts = pool_sets(train, validation, test, names, name, tokens)
        return build_clients(dataset, client_names, parts, split_name="given", seed=0)

    def split(
        self, split: Split | str, *, clients: int | None = None, seed: int = 0, fractions: Fractions = FRACTIONS
    ) -> "Clients":
        """Pool the original examples of all clients and split them again; see `Dataset.split`."""
        return self.source.split(split, clients=clients, seed=seed, fractions=fractions)

    def save_split(self, path: str | PathLike[str]) -> None:
        """Write the split as JSON, for `Dataset.with_split` and other tools."""
        from bespokefl.data.split_file import write

        write(path, self)

    def __len__(self) -> int:
        return len(self.names)

    def __repr__(self) -> str:
        kind = "regression" if self.classes is None else f"{self.classes} classes"
        sizes = "/".join(str(len(part.indices)) for part in self.parts)
        untested = int((self.test.sizes == 0).sum())
        return (
            f"Clients({self.data_name}, {self.split_name}: {count(len(self), 'client')}, {sizes} examples for "
            f"train/validation/test, {kind}{f', {untested} without test' if untested else ''}, "
            f"hash {self.hash[:12]})"
        )

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one example."""
        return tuple(self.x.shape[1:])

    @property
    def sizes(self) -> Tensor:
        """The number of training examples of each client."""
        return self.train.sizes

    @property
    def parts(self) -> Parts:
        """Train, validation and test."""
        return self.train, self.validation, self.test

    @property
    def original_parts(self) -> Parts:
        """Train, validation and test, as indices into the data before the split."""
        if self.origin is None:
            return self.parts
        train, validation, test = (ClientIndex(self.origin[part.indices], part.offsets) for part in self.parts)
        return train, validation, test


def split_dataset(
    dataset: Dataset, split: Split | str, clients: int | None = None, seed: int = 0, fractions: Fractions = FRACTIONS
) -> Clients:
    """Assign the examples to clients and divide every client's examples into train, validation and test."""
    chosen = parse(split) if isinstance(split, str) else split
    num = _to_integer("clients", (chosen.num_clients or DEFAULT_CLIENTS) if clients is None else clients)
    seed = _to_integer("seed", seed)
    if num < 1:
        raise InputError(f"clients must be at least 1, got {num}")
    fractions = _check_fractions(fractions)
    assignment = chosen.assign(dataset, num, seed)
    parts = _divide(assignment, seed, fractions)
    return build_clients(dataset, assignment.names, parts, str(chosen), seed, assignment.groups, assignment.transforms)


def build_clients(
    dataset: Dataset,
    names: tuple[str, ...],
    parts: Parts,
    split_name: str,
    seed: int,
    groups: tuple[int, ...] | None = None,
    transforms: tuple[Transform, ...] | None = None,
) -> Clients:
    """Create clients from data and parts; every client must have a training example."""
    untrained = [names[i] for i in torch.nonzero(parts[0].sizes == 0).flatten().tolist()]
    if untrained:
        raise InputError(
            f"every client needs at least one training example, got none for {listing(untrained)}; "
            "use fewer clients or leave these out"
        )
    if transforms is not None and all(one == UNCHANGED for one in transforms):
        transforms = None
    identity = split_hash(dataset.fingerprint, names, parts, groups, transforms)
    x, y, origin = dataset.x, dataset.y, None
    if transforms is not None:
        x, y, parts, origin = transform_examples(x, y, parts, transforms)
    return Clients(
        x,
        y,
        names,
        *parts,
        classes=dataset.classes,
        data_name=dataset.name,
        split_name=split_name,
        hash=identity,
        groups=groups,
        label_names=dataset.label_names,
        seed=seed,
        fingerprint=dataset.fingerprint,
        client=dataset.client,
        transforms=transforms,
        origin=origin,
        source=dataset,
    )


def split_hash(
    fingerprint: str,
    names: Sequence[str],
    parts: Iterable[ClientIndex],
    groups: Sequence[int] | None = None,
    transforms: Sequence[Transform] | None = None,
) -> str:
    """SHA-256 of a header and the parts.

    The header is one line of JSON with sorted keys and a line feed: fingerprint, groups (or null), names and, only if
    there are any, transforms. Then follow for train, validation and test the offsets and the indices as little-endian
    64-bit integers.
    """
    header: dict[str, Any] = {"fingerprint": fingerprint, "names": list(names)}
    header["groups"] = None if groups is None else list(groups)
    if transforms is not None:
        header["transforms"] = [asdict(one) for one in transforms]
    sha = hashlib.sha256((json.dumps(header, sort_keys=True) + "\n").encode())
    for part in parts:
        sha.update(part.offsets.numpy().astype("<i8").tobytes())
        sha.update(part.indices.numpy().astype("<i8").tobytes())
    return sha.hexdigest()


def client_index(indices: np.ndarray, sizes: np.ndarray) -> ClientIndex:
    """The index of clients whose lists are concatenated in `indices` and have these sizes."""
    offsets = np.concatenate([[0], sizes.cumsum()]).astype(np.int64)
    return ClientIndex(torch.from_numpy(indices.astype(np.int64)), torch.from_numpy(offsets))


def _divide(assignment: Assignment, seed: int, fractions: Fractions) -> Parts:
    """Shuffle each client's examples, with a generator keyed by its name, and divide them into parts.

    Validation and test get their rounded fraction, at least one example each; clients with fewer than three examples
    have none. Train gets the rest, always at least one. If the split provides test examples, a client's own examples
    are divided into train and validation only, in the same ratio.
    """
    if assignment.tests is not None:
        train, kept, _ = fractions
        fractions = (train / (train + kept), kept / (train + kept), 0.0)
    sizes = np.bincount(assignment.owner[assignment.owner >= 0], minlength=len(assignment.names))
    unused = len(assignment.owner) - sizes.sum()
    flat = np.argsort(assignment.owner, kind="stable")[unused:]
    offsets = np.concatenate([[0], sizes.cumsum()])
    rng = Reusable()
    for name, start, end in zip(assignment.names, offsets[:-1].tolist(), offsets[1:].tolist(), strict=True):
        rng.at(seed, "parts", name).shuffle(flat[start:end])

    least = [((fraction > 0) & (sizes >= 3)).astype(np.int64) for fraction in fractions]
    _, validation, test = (
        np.where(sizes >= 3, np.maximum(np.floor(fraction * sizes + 0.5).astype(np.int64), low), 0)
        for fraction, low in zip(fractions, least, strict=True)
    )
    excess = np.maximum(validation + test - np.maximum(sizes - 1, 0), 0)
    from_validation = np.minimum(excess, validation - least[1])
    validation, test = validation - from_validation, test - (excess - from_validation)

    position = np.arange(len(flat)) - np.repeat(offsets[:-1], sizes)
    is_test = position < np.repeat(test, sizes)
    is_train = position >= np.repeat(test + validation, sizes)
    return (
        client_index(flat[is_train], sizes - test - validation),
        client_index(flat[~is_test & ~is_train], validation),
        client_index(flat[is_test], test) if assignment.tests is None else ClientIndex.of_lists(assignment.tests),
    )


def _to_integer(what: str, value: int) -> int:
    try:
        return int(operator.index(value))
    except TypeError:
        raise InputError(f"{what} must be an integer, got {value!r}") from None


def _check_fractions(fractions: Fractions) -> Fractions:
    try:
        train, validation, test = (float(one) for one in fractions)
    except (TypeError, ValueError):
        train = validation = test = math.nan
    if not (train > 0 and validation >= 0 and test >= 0 and math.isclose(train + validation + test, 1, abs_tol=1e-6)):
        raise InputError(
            f"fractions must be three numbers (train > 0, validation, test) that add up to 1, got {fractions!r}"
        )
    return train, validation, test
