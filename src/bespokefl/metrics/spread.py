"""Scores of all clients in a few numbers: the mean hides the clients that are served worst.

Scores are one per client, (M,); `higher_is_better` is False for losses. A client without a score (NaN) is left out.
Without any score the result is None.
"""

import numpy as np

from bespokefl.core.errors import InputError
from bespokefl.metrics.client_values import Array, Values, drop_missing, same_shape, to_vector


def summarize(values: Values, sizes: Values, higher_is_better: bool = True) -> dict[str, float | None]:
    """Return statistics of one score over all clients, whose numbers of training examples are `sizes`, (M,).

    They are "mean", "weighted_mean" (by `sizes`), "std" (divisor M − 1), "worst" and "worst_decile"; None if undefined.
    """
    array, weights = same_shape(("values", to_vector(values)), ("sizes", sizes))
    present = ~np.isnan(array)
    array, weights = array[present], weights[present]
    total = weights.sum()
    return {
        "mean": float(array.mean()) if len(array) else None,
        "weighted_mean": float((weights * array).sum() / total) if total else None,
        "std": float(array.std(ddof=1)) if len(array) > 1 else None,
        "worst": worst(array, higher_is_better),
        "worst_decile": worst_decile(array, higher_is_better),
    }


def standard_error(values: Values) -> float | None:
    """Return the standard error of the mean of S values, such as one per seed; None for fewer than two."""
    present = drop_missing(to_vector(values))
    return float(present.std(ddof=1) / np.sqrt(len(present))) if len(present) > 1 else None


def worst(values: Values, higher_is_better: bool = True) -> float | None:
    """Return the worst score: the lowest, or the highest if lower is better."""
    present = drop_missing(to_vector(values))
    return float(present.min() if higher_is_better else present.max()) if len(present) else None


def worst_decile(values: Values, higher_is_better: bool = True) -> float | None:
    """Return the mean score of the worst tenth of the clients, ⌈M/10⌉ of M."""
    ascending = np.sort(drop_missing(to_vector(values)))
    num = _tenth(ascending)
    return float((ascending[:num] if higher_is_better else ascending[-num:]).mean()) if num else None


def largest_decile(values: Values, sizes: Values) -> float | None:
    """Return the mean score of the tenth of the clients with the most examples, weighted by examples.

    Of M clients ⌈M/10⌉ count. Clients of the same size share the last positions, so the order of clients is irrelevant.
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
