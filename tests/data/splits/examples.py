"""Small data for the tests of splits, with everything a split can ask for."""

import numpy as np

from bespokefl.core.client_index import PARTS
from bespokefl.data import Clients, Dataset


def pictures(labels: np.ndarray, test_every: int = 5, side: int = 2) -> Dataset:
    """A different square picture for each example; every fifth of a class is official test; two subclasses each."""
    num = len(labels)
    x = np.arange(num * side * side, dtype=np.float32).reshape(num, 1, side, side)
    position = np.array([np.sum(labels[:at] == label) for at, label in enumerate(labels)])
    columns = {
        "test": position % test_every == 0,
        "subclass": np.array([f"{label}{'ab'[at % 2]}" for label, at in zip(labels, position, strict=True)]),
        "domain": np.array(["photo", "sketch", "cartoon"])[np.arange(num) * 3 // num],
    }
    return Dataset.from_arrays(
        x, labels, np.arange(num) % 7, "pictures", columns=columns, classes=int(labels.max()) + 1
    )


def balanced(classes: int, each: int) -> Dataset:
    return pictures(np.tile(np.arange(classes), each))


def used(clients: Clients, *parts: str) -> np.ndarray:
    """The examples, as the data count them, of these parts."""
    chosen = dict(zip(PARTS, clients.original_parts, strict=True))
    return np.concatenate([chosen[part].indices.numpy() for part in parts])


def own(clients: Clients, client: int, *parts: str) -> np.ndarray:
    chosen = dict(zip(PARTS, clients.original_parts, strict=True))
    return np.concatenate([chosen[part].of(client).numpy() for part in parts or PARTS])
