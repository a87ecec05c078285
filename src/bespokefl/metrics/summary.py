"""One figure per client, in five numbers."""

import math

import numpy as np
from numpy.typing import ArrayLike

from bespokefl.metrics.spread import worst, worst_decile

Summary = dict[str, float | None]


def summarize(values: ArrayLike, sizes: ArrayLike, higher_is_better: bool = True) -> Summary:
    """Mean, mean weighted by training examples n_k, deviation between clients (divisor M − 1), worst, worst tenth.

    Clients without a value (NaN) are left out. What is undefined is None: everything without clients, the deviation
    of a single one.
    """
    array, weights = np.asarray(values, dtype=np.float64), np.asarray(sizes, dtype=np.float64)
    there = ~np.isnan(array)
    array, weights = array[there], weights[there]
    total = weights.sum()
    numbers = {
        "mean": array.mean() if len(array) else math.nan,
        "weighted_mean": (weights * array).sum() / total if total else math.nan,
        "std": array.std(ddof=1) if len(array) > 1 else math.nan,
        "worst": worst(array, higher_is_better),
        "worst_decile": worst_decile(array, higher_is_better),
    }
    return {name: None if math.isnan(value) else float(value) for name, value in numbers.items()}
