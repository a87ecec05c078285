"""Pools sets that somebody has already split, one (x, y) per client and part, into one data set and its parts."""

from collections.abc import Iterable

import numpy as np

from bespokefl.core.client_index import ClientIndex
from bespokefl.core.errors import InputError
from bespokefl.data.dataset import PARTS, Array, Dataset, as_array
from bespokefl.data.splits.split import numbered

Set = tuple[Array, Array]
KINDS = {"b": "truth values", "i": "whole numbers", "u": "whole numbers", "f": "floats", "U": "text"}


def pool(
    train: Iterable[Set],
    validation: Iterable[Set] | None,
    test: Iterable[Set] | None,
    names: Iterable[str | int] | None,
    name: str,
    tokens: bool,
) -> tuple[Dataset, tuple[str, ...], tuple[ClientIndex, ClientIndex, ClientIndex]]:
    """The data set of all examples, the clients' names and their parts."""
    given = [list(train), *(None if sets is None else list(sets) for sets in (validation, test))]
    num = len(given[0] or [])
    known_as = _names(names, num)
    lists = [[None] * num if sets is None else sets for sets in given]
    for part, sets in zip(PARTS, lists, strict=True):
        if len(sets) != num:
            raise InputError(f"{part} must hold one (x, y) for each of the {num} clients, got {len(sets)}")
    stored: dict[tuple[int, int], np.ndarray] = {}  # by identity: the indices of a set that was met before
    empty = np.zeros(0, dtype=np.int64)
    arrays: list[tuple[np.ndarray, np.ndarray, str]] = []
    starts = [0]

    def indices(one: Set | None, where: str) -> np.ndarray:
        if one is None:
            return empty
        x, y = _pair(one, where)
        key = (id(x), id(y))
        if key not in stored:
            pair = _checked(x, y, where, arrays[0] if arrays else None)
            if pair is None:
                return empty
            arrays.append((*pair, where))
            stored[key] = np.arange(starts[-1], starts[-1] + len(pair[1]))
            starts.append(starts[-1] + len(pair[1]))
        return stored[key]

    first, second, third = (
        ClientIndex.of_lists(
            [indices(one, f"{part} of client {who!r}") for one, who in zip(sets, known_as, strict=True)]
        )
        for part, sets in zip(PARTS, lists, strict=True)
    )
    if not arrays:
        raise InputError(f"the sets must hold at least one example, got none in {num} clients")

    def place(example: int) -> str:
        number = int(np.searchsorted(starts, example, side="right")) - 1
        return f"example {example - starts[number]} of {arrays[number][2]}"

    x, y = (np.concatenate([one[side] for one in arrays]) for side in (0, 1))
    return Dataset.from_arrays(x, y, name=name, tokens=tokens, place=place), known_as, (first, second, third)


def _names(names: Iterable[str | int] | None, num: int) -> tuple[str, ...]:
    if num == 0:
        raise InputError("train must hold one (x, y) for each client, got none")
    chosen = numbered(num) if names is None else tuple(str(one) for one in names)
    if len(chosen) != num:
        raise InputError(f"names must hold one name for each of the {num} clients, got {len(chosen)}")
    if len(set(chosen)) != num:
        twice = next(one for one in chosen if chosen.count(one) > 1)
        raise InputError(f"names must differ, got {twice!r} more than once")
    return chosen


def _pair(one: Set, where: str) -> Set:
    if not isinstance(one, tuple | list) or len(one) != 2:
        raise InputError(f"{where} must be a pair (x, y), got {type(one).__name__}")
    return one[0], one[1]


def _checked(
    x: Array, y: Array, where: str, first: tuple[np.ndarray, np.ndarray, str] | None
) -> tuple[np.ndarray, np.ndarray] | None:
    """Both as numpy, fit to stand with the first set; None where there are no examples."""
    pair = as_array(x, f"x in {where}"), as_array(y, f"y in {where}")
    sizes = [len(one) if one.ndim else 0 for one in pair]
    if sizes[0] != sizes[1]:
        raise InputError(f"x and y in {where} must have one entry per example each, got {sizes[0]} and {sizes[1]}")
    if sizes[0] == 0:
        return None
    if first is not None:
        for what, one, other in (("x", pair[0], first[0]), ("y", pair[1], first[1])):
            if one.shape[1:] != other.shape[1:]:
                raise InputError(
                    f"{what} in {where} must have examples of shape {other.shape[1:]} as in {first[2]}, "
                    f"got {one.shape[1:]}"
                )
            # bytes are scaled, other numbers are not; whole numbers are classes, floats are targets
            kinds = {a.dtype == np.uint8 if what == "x" else KINDS.get(a.dtype.kind) for a in (one, other)}
            if len(kinds) > 1:
                raise InputError(
                    f"{what} in {where} must be of the kind it has in {first[2]}, {other.dtype.name}, "
                    f"got {one.dtype.name}; convert one of them"
                )
    return pair
