"""Do all clients get alike? Four measures of how even a vector is.

Divi et al. (PersFL), equations 5.8 to 5.13. They are of any values from 0 on, accuracies or gains; gains of both signs
are measured apart, U⁺ and |U⁻| (`of_gains`). Clients without a value (NaN) are left out; what is undefined is None:
everything without clients, and all but the variance where all values are 0.
"""

import numpy as np

from bespokefl.core.errors import InputError
from bespokefl.metrics.improvement import decreases, improvements
from bespokefl.metrics.vectors import Array, Values, vector

Measures = dict[str, float | None]
LOWER_IS_FAIRER = frozenset({"average_variance"})  # of the others, higher is


def average_variance(values: Values) -> float | None:
    """AV = (1/K) Σ (F_i − F̄)² (5.8)."""
    found = _there(values)
    return float(found.var()) if len(found) else None


def cosine_similarity(values: Values) -> float | None:
    """CS, the cosine between the values and a vector of ones (5.10)."""
    found = _shares(values)
    return None if found is None else float(found.mean() / np.sqrt(np.square(found).mean()))


def entropy(values: Values) -> float | None:
    """Of the clients' shares in the sum, in nats (5.12): log K if all get the same."""
    found = _shares(values)
    if found is None:
        return None
    positive = found[found > 0] / found.sum()
    return float(-(positive * np.log(positive)).sum()) + 0.0


def jain(values: Values) -> float | None:
    """JI = (Σ F_i)² / (K Σ F_i²) (5.13): 1 if all get the same, 1/K if one gets everything."""
    found = _shares(values)
    return None if found is None else float(found.sum() ** 2 / (len(found) * np.square(found).sum()))


def measures(values: Values) -> Measures:
    """All four."""
    return {one.__name__: one(values) for one in (average_variance, cosine_similarity, entropy, jain)}


def of_gains(gains: Values) -> dict[str, Measures]:
    """All four, of the gains of those that are better off, and of what those lose that are worse off."""
    found = vector(gains, "gains")
    return {"improved": measures(improvements(found)), "decreased": measures(decreases(found))}


def _there(values: Values) -> Array:
    array = vector(values)
    return array[~np.isnan(array)]


def _shares(values: Values) -> Array | None:
    """The values, the largest as 1, so that squares neither overflow nor vanish; None where there is nothing."""
    found = _there(values)
    if (found < 0).any():
        raise InputError(f"fairness is of values >= 0, got {found.min():.6g}; of gains, use fairness.of_gains.")
    largest = found.max(initial=0.0)
    return found / largest if largest > 0 else None
