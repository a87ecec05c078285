"""Four measures of how evenly values are spread over clients.

Divi et al. (PersFL), equations 5.8 to 5.13. `values` are >= 0, one per client: accuracies, or gains. Gains of both
signs are measured separately, as `U⁺` and `|U⁻|` (`of_gains`). Clients without a value (NaN) are left out. A measure is
None if it is undefined: without clients or, except for the variance, if all values are 0.
"""

import numpy as np

from bespokefl.core.errors import InputError
from bespokefl.metrics.client_values import Array, Values, drop_missing, to_vector
from bespokefl.metrics.improvement import decreases, improvements

Measures = dict[str, float | None]
LOWER_IS_FAIRER = frozenset({"average_variance"})  # for the other measures, higher is fairer


def average_variance(values: Values) -> float | None:
    """Return the average variance, AV = (1/K) Σ (F_i − F̄)² (5.8)."""
    present = drop_missing(to_vector(values))
    return float(present.var()) if len(present) else None


def cosine_similarity(values: Values) -> float | None:
    """Return the cosine similarity CS between the values and a vector of ones (5.10)."""
    scaled = _scaled(values)
    return None if scaled is None else float(scaled.mean() / np.sqrt(np.square(scaled).mean()))


def entropy(values: Values) -> float | None:
    """Return the entropy of the clients' shares in the sum, in nats (5.12); log K if all values are equal."""
    scaled = _scaled(values)
    if scaled is None:
        return None
    shares = scaled[scaled > 0] / scaled.sum()
    return float(-(shares * np.log(shares)).sum()) + 0.0


def jain(values: Values) -> float | None:
    """Return Jain's index, JI = (Σ F_i)² / (K Σ F_i²) (5.13): 1 if all values are equal, 1/K if only one is not 0."""
    scaled = _scaled(values)
    return None if scaled is None else float(scaled.sum() ** 2 / (len(scaled) * np.square(scaled).sum()))


def measures(values: Values) -> Measures:
    """Return all four measures by the name of their function."""
    return {one.__name__: one(values) for one in (average_variance, cosine_similarity, entropy, jain)}


def of_gains(gains: Values) -> dict[str, Measures]:
    """Return all four measures of "improved", the gains above zero `U⁺`, and of "decreased", the losses `|U⁻|`.

    `gains`, (M,), are one per client, for example from `improvement.quantum`.
    """
    vector = to_vector(gains, "gains")
    return {"improved": measures(improvements(vector)), "decreased": measures(decreases(vector))}


def _scaled(values: Values) -> Array | None:
    """Return the values divided by the largest, so that squares neither overflow nor underflow; None if all are 0."""
    present = drop_missing(to_vector(values))
    if (present < 0).any():
        raise InputError(f"fairness is of values >= 0, got {present.min():.6g}; of gains, use fairness.of_gains.")
    largest = present.max(initial=0.0)
    return present / largest if largest > 0 else None
