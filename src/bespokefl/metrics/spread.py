"""How much scores differ between clients: the mean hides the clients that are served worst.

A client without a score (NaN) is left out. Without any score the result is None.
"""

import numpy as np

from bespokefl.core.errors import InputError
from bespokefl.metrics.client_values import Array, Values, drop_missing, same_shape, to_vector


def worst(values: Values, higher_is_better: bool = True) -> float | None:
    """Return the worst score: the lowest, or the highest if lower is better."""
    present = drop_missing(to_vector(values))
    if not len(present):
        return None
    return float(present.min() if higher_is_better else present.max())


def worst_decile(values: Values, higher_is_better: bool = True) -> float | None:
    """Return the mean score of the worst tenth of the clients, ⌈M/10⌉ of M."""
    ascending = np.sort(drop_missing(to_vector(values)))
    num = _tenth(ascending)
    if not num:
        return None
    return float((ascending[:num] if higher_is_better else ascending[-num:]).mean())


def largest_decile(values: Values, sizes: Values) -> float | None:
    """Return the mean score of the tenth of the clients with the most examples, weighted by examples.

    Of M clients ⌈M/10⌉ count. Clients of the same size share the last positions, so the order of clients is irrelevant.

    Parameters
    ----------
    values : array-like of shape (M,)
        The score of each client.
    sizes : array-like of shape (M,)
        The number of training examples of each client.
    """
    return _decile(values, sizes, 1.0)


def smallest_decile(values: Values, sizes: Values) -> float | None:
    """Return the same as `largest_decile` for the tenth of the clients with the fewest examples."""
    return _decile(values, sizes, -1.0)


def _decile(values: Values, sizes: Values, sign: float) -> float | None:
    array, examples = same_shape(("values", to_vector(values)), ("sizes", sizes))
    if np.isnan(examples).any() or (examples < 0).any():
        raise InputError("sizes must be numbers of examples, 0 or more, got a negative one or NaN.")
    present = ~np.isnan(array)
    array, examples = array[present], examples[present]
    num = _tenth(array)
    if not num:
        return None
    order = sign * examples
    border = np.sort(order)[-num]
    inside, on = order > border, order == border
    positions = inside + on * ((num - inside.sum()) / on.sum())
    weights = positions * examples if (positions * examples).any() else positions  # equal weights without any examples
    return float((weights * array).sum() / weights.sum())


def _tenth(array: Array) -> int:
    return -(-len(array) // 10)
