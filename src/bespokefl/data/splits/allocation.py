"""Assigns given numbers or slices of each class to clients; shared by the splits that limit a client's classes.

`held` is an array (clients, k): the classes of each client.
"""

import numpy as np

from bespokefl.core.errors import InputError
from bespokefl.data.dataset import Dataset
from bespokefl.data.splits.split import Split, class_labels


def consecutive_classes(split: Split, dataset: Dataset, clients: int, k: int) -> np.ndarray:
    """Client u holds the classes u, u + 1, … u + k − 1, modulo the number of classes: (clients, k)."""
    _, classes = class_labels(split, dataset)
    if k > classes:
        raise InputError(
            f"k must be at most the number of classes, {classes} in {dataset.name!r}, got {k}; use k={classes} or less"
        )
    return (np.arange(clients)[:, None] + np.arange(k)[None, :]) % classes


def check_class_sizes(split: Split, dataset: Dataset, held: np.ndarray, counts: np.ndarray) -> None:
    """Check that every class has as many examples as the clients take of it."""
    labels, classes = class_labels(split, dataset)
    sizes = np.bincount(labels, minlength=classes)
    wanted = np.bincount(held.ravel(), counts.ravel(), minlength=classes).astype(np.int64)
    short = int((wanted - sizes).argmax())
    if wanted[short] > sizes[short]:
        raise InputError(
            f"{split} needs {wanted[short]} examples of class {dataset.label_names[short]!r} for {len(held)} clients, "
            f"got {sizes[short]} in {dataset.name!r}; use fewer clients or ask for fewer examples"
        )


def assign_counts(labels: np.ndarray, held: np.ndarray, counts: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """The owner of each example: client u gets counts[u, i] random examples of class held[u, i]."""
    k = held.shape[1]
    owner = np.full(len(labels), -1, dtype=np.int64)
    order = np.argsort(held.ravel(), kind="stable")
    owned = np.repeat(order // k, counts.ravel()[order])  # the owners in class 0, then those in class 1, …
    ends = np.bincount(held.ravel(), counts.ravel()).astype(np.int64).cumsum()
    for label, (start, end) in enumerate(zip([0, *ends[:-1].tolist()], ends.tolist(), strict=True)):
        pool = rng.permutation(np.flatnonzero(labels == label))
        owner[pool[: end - start]] = owned[start:end]
    return owner


def cut_points(examples: int, slices: int, equal: bool, rng: np.random.Generator) -> np.ndarray:
    """0, the cuts in ascending order, and `examples`; no slice is empty if there are enough examples."""
    if equal:
        return np.arange(slices + 1) * examples // slices
    inner = np.sort(rng.choice(examples - 1, slices - 1, replace=False)) + 1 if slices > 1 else np.zeros(0)
    return np.concatenate([[0], inner, [examples]]).astype(np.int64)


def assign_slices(
    split: Split,
    dataset: Dataset,
    codes: np.ndarray,
    held: np.ndarray,
    slices: np.ndarray,
    equal: bool,
    rng: np.random.Generator,
    names: tuple[str, ...],
) -> np.ndarray:
    """The owner of each example: client u gets slice slices[u, i] of class held[u, i].

    `codes` are the classes (or subclasses) of the examples, `names` what they are called. Classes with the same
    number of slices are cut at the same points, drawn for the smallest class and scaled to the others.
    """
    sizes = np.bincount(codes, minlength=len(names))
    needed = np.zeros(len(names), dtype=np.int64)
    np.maximum.at(needed, held.ravel(), slices.ravel() + 1)
    short = int((needed - sizes).argmax())
    if needed[short] > sizes[short]:
        raise InputError(
            f"{split} needs an example of {names[short]!r} for each of {needed[short]} clients, got {sizes[short]} in "
            f"{dataset.name!r}; use fewer clients"
        )
    owner = np.full(len(codes), -1, dtype=np.int64)
    drawn: dict[int, tuple[np.ndarray, int]] = {}
    for num in np.unique(needed[needed > 0]).tolist():
        smallest = int(sizes[needed == num].min())
        drawn[num] = cut_points(smallest, num, equal, rng), smallest
    for code in np.flatnonzero(needed).tolist():
        cuts, smallest = drawn[int(needed[code])]
        ends = cuts * sizes[code] // smallest
        pool = rng.permutation(np.flatnonzero(codes == code))
        client, column = np.nonzero(held == code)
        for one, number in zip(client.tolist(), slices[client, column].tolist(), strict=True):
            owner[pool[ends[number] : ends[number + 1]]] = one
    return owner
