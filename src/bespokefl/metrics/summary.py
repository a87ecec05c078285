"""Summarize one score of all clients in five numbers."""

import numpy as np

from bespokefl.metrics.client_values import Values, drop_missing, same_shape, to_vector
from bespokefl.metrics.spread import worst, worst_decile

Summary = dict[str, float | None]


def summarize(values: Values, sizes: Values, higher_is_better: bool = True) -> Summary:
    """Return statistics of one score over all clients.

    Parameters
    ----------
    values : array-like of shape (M,)
        The score of each client; NaN for a client without one, which is left out.
    sizes : array-like of shape (M,)
        The number of training examples n_k of each client.
    higher_is_better : bool
        False for losses.

    Returns
    -------
    dict of str to float or None
        "mean", "weighted_mean" (by n_k), "std" (divisor M − 1), "worst" and "worst_decile" (the mean of the worst tenth
        of the clients). None if undefined: all without clients, "std" with a single one.
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
