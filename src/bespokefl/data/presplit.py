"""Pools data that are divided among clients and parts already into one data set and its parts."""

from collections.abc import Iterable

import numpy as np

from bespokefl.core.client_index import PARTS, ClientIndex
from bespokefl.core.errors import InputError
from bespokefl.data.dataset import Array, Dataset, as_array
from bespokefl.data.splits.split import client_names
from bespokefl.data.splits.transform import Parts

Pair = tuple[Array, Array]  # x and y
LABEL_KINDS = {"b": "boolean", "i": "integer", "u": "integer", "f": "float", "U": "text"}


def pool_sets(
    train: Iterable[Pair],
    validation: Iterable[Pair] | None,
    test: Iterable[Pair] | None,
    names: Iterable[str | int] | None,
    name: str,
    tokens: bool,
) -> tuple[Dataset, tuple[str, ...], Parts]:
    """The data set of all examples, the names of the clients and their parts."""
    given = [list(train), *(None if pairs is None else list(pairs) for pairs in (validation, test))]
    num = len(given[0] or [])
    chosen_names = _check_names(names, num)
    lists = [[None] * num if pairs is None else pairs for pairs in given]
    for part, pairs in zip(PARTS, lists, strict=True):
        if len(pairs) != num:
            raise InputError(f"{part} must hold one (x, y) for each of the {num} clients, got {len(pairs)}")
    stored: dict[tuple[int, int], np.ndarray] = {}  # the indices of arrays that occurred before, by identity
    empty = np.zeros(0, dtype=np.int64)
    arrays: list[tuple[np.ndarray, np.ndarray, str]] = []
    starts = [0]

    def indices(pair: Pair | None, where: str) -> np.ndarray:
        if pair is None:
            return empty
        if not isinstance(pair, tuple | list) or len(pair) != 2:
            raise InputError(f"{where} must be a pair (x, y), got {type(pair).__name__}")
        key = (id(pair[0]), id(pair[1]))
        if key not in stored:
            x, y = _check_pair(pair, where, arrays[0] if arrays else None)
            if len(y) == 0:
                return empty
            arrays.append((x, y, where))
            stored[key] = np.arange(starts[-1], starts[-1] + len(y))
            starts.append(starts[-1] + len(y))
        return stored[key]

    first, second, third = (
        ClientIndex.of_lists(
            [indices(pair, f"{part} of client {client!r}") for pair, client in zip(pairs, chosen_names, strict=True)]
        )
        for part, pairs in zip(PARTS, lists, strict=True)
    )
    if not arrays:
        raise InputError(f"the sets must hold at least one example, got none in {num} clients")

    def locate(example: int) -> str:
        number = int(np.searchsorted(starts, example, side="right")) - 1
        return f"example {example - starts[number]} of {arrays[number][2]}"

    x, y = (np.concatenate([one[side] for one in arrays]) for side in (0, 1))
    dataset = Dataset.from_arrays(x, y, name=name, tokens=tokens, locate=locate)
    return dataset, chosen_names, (first, second, third)


def _check_names(names: Iterable[str | int] | None, num: int) -> tuple[str, ...]:
    if num == 0:
        raise InputError("train must hold one (x, y) for each client, got none")
    chosen = client_names(num) if names is None else tuple(str(one) for one in names)
    if len(chosen) != num:
        raise InputError(f"names must hold one name for each of the {num} clients, got {len(chosen)}")
    if len(set(chosen)) != num:
        twice = next(one for one in chosen if chosen.count(one) > 1)
        raise InputError(f"names must differ, got {twice!r} more than once")
    return chosen


def _check_pair(
    pair: Pair, where: str, first: tuple[np.ndarray, np.ndarray, str] | None
) -> tuple[np.ndarray, np.ndarray]:
    """x and y as numpy arrays that can be concatenated with the first ones."""
    x, y = (as_array(one, f"{what} in {where}") for what, one in zip("xy", pair, strict=True))
    sizes = [len(one) if one.ndim else 0 for one in (x, y)]
    if sizes[0] != sizes[1]:
        raise InputError(f"x and y in {where} must have one entry per example each, got {sizes[0]} and {sizes[1]}")
    if sizes[0] == 0:
        return np.zeros(0), np.zeros(0)
    first_x, first_y, origin = first or (x, y, where)
    for what, one, other in (("x", x, first_x), ("y", y, first_y)):
        if one.shape[1:] != other.shape[1:]:
            raise InputError(
                f"{what} in {where} must have examples of shape {other.shape[1:]} as in {origin}, got {one.shape[1:]}"
            )
        # bytes are scaled, other numbers are not; integers are classes, floats are targets
        kinds = {a.dtype == np.uint8 if what == "x" else LABEL_KINDS.get(a.dtype.kind) for a in (one, other)}
        if len(kinds) > 1:
            raise InputError(
                f"{what} in {where} must have the type it has in {origin}, {other.dtype.name}, "
                f"got {one.dtype.name}; convert one of them"
            )
    return x, y
