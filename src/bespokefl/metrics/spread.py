"""How far clients are apart: the mean of all says nothing about the one that is served worst.

A value that is NaN (a client without data) is left out. Of nothing, the answer is None.
"""

import numpy as np

from bespokefl.core.errors import InputError
from bespokefl.metrics.vectors import Array, Values, alike, vector


def worst(values: Values, higher_is_better: bool = True) -> float | None:
    """The value of the client that is served worst."""
    there = _there(values)
    if not len(there):
        return None
    return float(there.min() if higher_is_better else there.max())


def worst_decile(values: Values, higher_is_better: bool = True) -> float | None:
    """The mean over the worst tenth of the clients, ⌈M/10⌉ of M."""
    ascending = np.sort(_there(values))
    num = _tenth(ascending)
    if not num:
        return None
    return float((ascending[:num] if higher_is_better else ascending[-num:]).mean())


def largest_decile(values: Values, sizes: Values) -> float | None:
    """The mean, weighted by examples, over the tenth of the clients that have most: ⌈M/10⌉ of M.

    Clients of equal size share the places that are left for them, so that their order means nothing.
    """
    return _decile(values, sizes, 1.0)


def smallest_decile(values: Values, sizes: Values) -> float | None:
    """The same over the tenth of the clients that have fewest examples."""
    return _decile(values, sizes, -1.0)


def _decile(values: Values, sizes: Values, sign: float) -> float | None:
    array, examples = alike(("values", vector(values)), ("sizes", sizes))
    if np.isnan(examples).any() or (examples < 0).any():
        raise InputError("sizes must be numbers of examples, 0 or more, got a negative one or NaN.")
    there = ~np.isnan(array)
    array, examples = array[there], examples[there]
    num = _tenth(array)
    if not num:
        return None
    order = sign * examples
    border = np.sort(order)[-num]
    inside, on = order > border, order == border
    places = inside + on * ((num - inside.sum()) / on.sum())
    weights = places * examples if (places * examples).any() else places  # nobody has an example: all count the same
    return float((weights * array).sum() / weights.sum())


def _tenth(array: Array) -> int:
    return -(-len(array) // 10)


def _there(values: Values) -> Array:
    array = vector(values)
    return array[~np.isnan(array)]
