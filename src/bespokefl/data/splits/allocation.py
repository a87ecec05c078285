"""Assigns given numbers of examples of each class to clients; shared by the splits that limit a client's classes.

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
