"""The clients of a federation: whose examples are whose, and which are for training, validation and test."""

import hashlib
import json
import math
import operator
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from os import PathLike
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bespokefl.core import rng as chance
from bespokefl.core.client_index import ClientIndex
from bespokefl.core.errors import InputError, count, listing
from bespokefl.data.dataset import FRACTIONS, Array, Dataset, Fractions
from bespokefl.data.presplit import pool
from bespokefl.data.splits import Assignment, Split, Transform, parse
from bespokefl.data.splits.transform import UNCHANGED, Parts, transformed

CLIENTS = 20  # where neither the person nor the split says how many


@dataclass(frozen=True, eq=False, repr=False)
class Clients:
    """Every client's three parts, as indices into x and y, which all clients share.

    Where the split turns pictures or exchanges labels, x and y hold the examples as the clients see them.
    """

    x: Tensor
    y: Tensor
    names: tuple[str, ...]
    train: ClientIndex
    validation: ClientIndex
    test: ClientIndex
    classes: int | None  # None: regression
    data_name: str
    split_name: str
    hash: str  # of names, parts, groups, transforms and data; the same on every machine
    groups: tuple[int, ...] | None = None  # each client's true group, where the split knows it
    label_names: tuple[str, ...] = ()
    seed: int = 0
    fingerprint: str = ""  # of the data
    client: np.ndarray | None = None  # the data's own client ids
    transforms: tuple[Transform, ...] | None = None  # what was done to each client's examples
    origin: Tensor | None = None  # for each of x, the data's example it was made of; None: the same
    preparation: Any = None  # how the examples were made to fit (a `Preparation`); None: they are as they came
    source: Dataset | None = None  # the data as they were, for splitting anew

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
        """One client for each id in `client`; without ids a single client, for `split` to divide."""
        dataset = Dataset.from_arrays(x, y, client, name, tokens=tokens)
        if client is None:
            return dataset.split("iid", clients=1, seed=seed, fractions=fractions)
        return dataset.split("by_column", seed=seed, fractions=fractions)

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
        """Clients whose parts somebody has already made: one (x, y) per client and part.

        The same arrays may stand in several places (a test set for all) and are stored once. Without validation or
        test sets these parts are empty.
        """
        dataset, known_as, parts = pool(train, validation, test, names, name, tokens)
        return assemble(dataset, known_as, parts, split_name="given", seed=0)

    def split(
        self, split: Split | str, *, clients: int | None = None, seed: int = 0, fractions: Fractions = FRACTIONS
    ) -> "Clients":
        """Pool all examples, as they were, and split them anew."""
        pooled = self.source
        if pooled is None:
            pooled = Dataset(self.data_name, self.x, self.y, self.client, self.classes, self.label_names)
        return pooled.split(split, clients=clients, seed=seed, fractions=fractions)

    def save_split(self, path: str | PathLike[str]) -> None:
        """Write the split as JSON, for `Dataset.with_split` and for other tools."""
        from bespokefl.data.split_file import write

        write(path, self)

    def __len__(self) -> int:
        return len(self.names)

    def __repr__(self) -> str:
        kind = "regression" if self.classes is None else f"{self.classes} classes"
        parts = "/".join(str(len(part.indices)) for part in (self.train, self.validation, self.test))
        untested = int((self.test.sizes == 0).sum())
        return (
            f"Clients({self.data_name}, {self.split_name}: {count(len(self), 'client')}, {parts} examples for "
            f"train/validation/test, {kind}{f', {untested} without test' if untested else ''}, "
            f"hash {self.hash[:12]})"
        )

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one example."""
        return tuple(self.x.shape[1:])

    @property
    def sizes(self) -> Tensor:
        """How many training examples each client has."""
        return self.train.sizes

    @property
    def original_parts(self) -> Parts:
        """Train, validation and test, as indices into the data as they were."""
        if self.origin is None:
            return self.train, self.validation, self.test
        train, validation, test = (
            ClientIndex(self.origin[part.indices], part.offsets) for part in (self.train, self.validation, self.test)
        )
        return train, validation, test


def deal(
    dataset: Dataset, split: Split | str, clients: int | None = None, seed: int = 0, fractions: Fractions = FRACTIONS
) -> Clients:
    """Split the data and cut every client's examples into train, validation and test."""
    chosen = parse(split) if isinstance(split, str) else split
    num = _whole("clients", (chosen.num_clients or CLIENTS) if clients is None else clients)
    seed = _whole("seed", seed)
    if num < 1:
        raise InputError(f"clients must be at least 1, got {num}")
    cut = _checked(fractions)
    assignment = chosen.assign(dataset, num, seed)
    parts = _cut(assignment, seed, cut)
    return assemble(dataset, assignment.names, parts, str(chosen), seed, assignment.groups, assignment.transforms)


def assemble(
    dataset: Dataset,
    names: tuple[str, ...],
    parts: Parts,
    split_name: str,
    seed: int,
    groups: tuple[int, ...] | None = None,
    transforms: tuple[Transform, ...] | None = None,
) -> Clients:
    """Clients from data and parts, indices into these data; refuses one that has nothing to train on."""
    idle = [names[i] for i in torch.nonzero(parts[0].sizes == 0).flatten().tolist()]
    if idle:
        raise InputError(
            f"every client needs at least one training example, got none for {listing(idle)}; "
            "use fewer clients or leave these out"
        )
    if transforms is not None and all(one == UNCHANGED for one in transforms):
        transforms = None
    identity = split_hash(dataset.fingerprint, names, parts, groups, transforms)
    x, y, origin = dataset.x, dataset.y, None
    if transforms is not None:
        x, y, parts, origin = transformed(x, y, parts, transforms)
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
    """SHA-256 of: the header as one line of JSON, keys in alphabetical order, and a line feed; then for train,
    validation and test in turn the offsets and the indices, as little-endian 64-bit integers.

    The header has fingerprint, groups (or null), names and, only where there are any, transforms.
    """
    header: dict[str, Any] = {"fingerprint": fingerprint, "names": list(names)}
    header["groups"] = None if groups is None else list(groups)
    if transforms is not None:
        header["transforms"] = [one.written() for one in transforms]
    sha = hashlib.sha256((json.dumps(header, sort_keys=True) + "\n").encode())
    for part in parts:
        sha.update(part.offsets.numpy().astype("<i8").tobytes())
        sha.update(part.indices.numpy().astype("<i8").tobytes())
    return sha.hexdigest()


def _cut(assignment: Assignment, seed: int, fractions: Fractions) -> Parts:
    """Shuffle each client's examples, by its name, and cut them.

    Validation and test get their fraction, rounded, and at least one each; where a client has fewer than three
    examples they get none. Train gets the rest, always at least one. Where the split has test examples for the
    clients, their own are cut into train and validation alone, in the same proportion to one another.
    """
    if assignment.tests is not None:
        train, kept, _ = fractions
        fractions = (train / (train + kept), kept / (train + kept), 0.0)
    sizes = np.bincount(assignment.owner[assignment.owner >= 0], minlength=len(assignment.names))
    unused = len(assignment.owner) - sizes.sum()
    flat = np.argsort(assignment.owner, kind="stable")[unused:]
    offsets = np.concatenate([[0], sizes.cumsum()])
    rng = chance.Reusable()
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
    test_end, validation_end = np.repeat(test, sizes), np.repeat(test + validation, sizes)
    is_test = position < test_end
    is_train = position >= validation_end
    return (
        _part(flat[is_train], sizes - test - validation),
        _part(flat[~is_test & ~is_train], validation),
        _part(flat[is_test], test) if assignment.tests is None else ClientIndex.of_lists(assignment.tests),
    )


def _part(flat: np.ndarray, sizes: np.ndarray) -> ClientIndex:
    offsets = np.concatenate([[0], sizes.cumsum()]).astype(np.int64)
    return ClientIndex(torch.from_numpy(flat.astype(np.int64)), torch.from_numpy(offsets))


def _whole(what: str, value: int) -> int:
    try:
        return int(operator.index(value))
    except TypeError:
        raise InputError(f"{what} must be a whole number, got {value!r}") from None


def _checked(fractions: Fractions) -> Fractions:
    try:
        train, validation, test = (float(one) for one in fractions)
    except (TypeError, ValueError):
        train = validation = test = math.nan
    if not (train > 0 and validation >= 0 and test >= 0 and math.isclose(train + validation + test, 1, abs_tol=1e-6)):
        raise InputError(
            f"fractions must be three numbers (train > 0, validation, test) that add up to 1, got {fractions!r}"
        )
    return train, validation, test
