"""One figure per client, in five numbers."""

import numpy as np

from bespokefl.metrics.spread import worst, worst_decile
from bespokefl.metrics.vectors import Values, alike, known, vector

Summary = dict[str, float | None]


def summarize(values: Values, sizes: Values, higher_is_better: bool = True) -> Summary:
    """Mean, mean weighted by training examples n_k, deviation between clients (divisor M − 1), worst, worst tenth.

    Clients without a value (NaN) are left out. What is undefined is None: everything without clients, the deviation
    of a single one.
    """
    array, weights = alike(("values", vector(values)), ("sizes", sizes))
    there = ~np.isnan(array)
    array, weights = array[there], weights[there]
    total = weights.sum()
    return {
        "mean": float(array.mean()) if len(array) else None,
        "weighted_mean": float((weights * array).sum() / total) if total else None,
        "std": float(array.std(ddof=1)) if len(array) > 1 else None,
        "worst": worst(array, higher_is_better),
        "worst_decile": worst_decile(array, higher_is_better),
    }


def standard_error(values: Values) -> float | None:
    """SEM: the deviation of a figure between seeds (divisor S − 1) over √S; None for fewer than two."""
    found = known(vector(values))
    return float(found.std(ddof=1) / np.sqrt(len(found))) if len(found) > 1 else None
