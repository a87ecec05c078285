"""What federating can gain, exactly, in the simplest federation: a mean per client, scattered around a common one.

Self-FL's two-level Gaussian model (Chen et al., NeurIPS 2022, section 2.1). Equation numbers are the paper's.
    θ_m | θ_0 ~ N(θ_0, σ_0²),   z_m | θ_m ~ N(θ_m, σ_m²),   m = 1..M        (1)

Everywhere: z is what each client measured (its local estimate), `var` its variance σ_m², `var0` the variance between
clients σ_0². Clients are the last axis, so that many repeats can be handled at once; `var0` is a number, or an array
of the other axes.
"""

import numpy as np
from numpy.typing import ArrayLike, NDArray

Array = NDArray[np.float64]


def global_optimum(z: ArrayLike, var0: ArrayLike, var: ArrayLike) -> Array:
    """The posterior mean of θ_0: every client's estimate, weighted by (σ_0² + σ_m²)⁻¹ (2)."""
    precision = _precision(var0, var)
    return np.asarray((precision * _array(z)).sum(-1) / precision.sum(-1))


def global_variance(var0: ArrayLike, var: ArrayLike) -> Array:
    """The posterior variance of θ_0 (2)."""
    return np.asarray(1 / _precision(var0, var).sum(-1))


def fl_optimum(z: ArrayLike, var0: ArrayLike, var: ArrayLike) -> Array:
    """The paper's FL-optimum of every client: its own estimate and the others', by precision (3).

    It is derived under θ_m = θ_0 for the client itself; `exact_bayes` is the estimator under (1).
    """
    own, others, weighted = _sums(z, var0, var)
    return np.asarray((own * _array(z) + weighted) / (own + others))


def fl_variance(var0: ArrayLike, var: ArrayLike) -> Array:
    """The FL-optimum's posterior variance (3)."""
    own, others, _ = _sums(var, var0, var)
    return np.asarray(1 / (own + others))


def gain(var0: ArrayLike, var: ArrayLike) -> Array:
    """The paper's GAIN_m = 1 + σ_m² S₋ₘ: how many times smaller (3)'s variance is than the client's own."""
    own, others, _ = _sums(var, var0, var)
    return np.asarray(1 + others / own)


def bayes_gain(var0: ArrayLike, var: ArrayLike) -> Array:
    """The honest gain 1 + σ_m² / (σ_0² + 1/S₋ₘ): variance alone over variance with the others, under (1)."""
    return np.asarray(1 + _array(var) * _prior_precision(var0, var))


def exact_bayes(z: ArrayLike, var0: ArrayLike, var: ArrayLike) -> Array:
    """The posterior mean of θ_m under (1): the others' weighted mean is a prior of variance σ_0² + 1/S₋ₘ."""
    own, others, weighted = _sums(z, var0, var)
    prior = _prior_precision(var0, var)
    with np.errstate(invalid="ignore", divide="ignore"):
        mean = np.where(others > 0, weighted / others, 0.0)  # nobody else: a prior of no weight
    return np.asarray((own * _array(z) + prior * mean) / (own + prior))


def initial_value(z: ArrayLike, var0: ArrayLike, var: ArrayLike) -> Array:
    """Where client m starts, the others' weighted mean (7); with (9), the same from the global optimum."""
    _, others, weighted = _sums(z, var0, var)
    return np.asarray(weighted / others)


def local_steps(var0: ArrayLike, var: ArrayLike, lr: float) -> Array:
    """How many gradient steps, as a real number, lead from (7) to (3): ℓ of (8).

    It takes lr < σ_m²: beyond, one step overshoots.
    """
    own, others, _ = _sums(var, var0, var)
    return np.asarray(np.log(others / (own + others)) / np.log1p(-lr * own))


def _array(values: ArrayLike) -> Array:
    return np.asarray(values, dtype=np.float64)


def _precision(var0: ArrayLike, var: ArrayLike) -> Array:
    """(σ_0² + σ_m²)⁻¹."""
    return np.asarray(1 / (_array(var0)[..., None] + _array(var)))


def _sums(z: ArrayLike, var0: ArrayLike, var: ArrayLike) -> tuple[Array, Array, Array]:
    """σ_m⁻², S₋ₘ = Σ_{k≠m} (σ_0² + σ_k²)⁻¹ and Σ_{k≠m} (σ_0² + σ_k²)⁻¹ z_k, for every m."""
    precision = _precision(var0, var)
    precision, z = np.broadcast_arrays(precision, _array(z))
    return 1 / _array(var), _others(precision), _others(precision * z)


def _others(values: Array) -> Array:
    """Σ_{k≠m} values_k by sums from both ends: total − own would cancel where one client dominates."""
    zeros = np.zeros((*values.shape[:-1], 1))
    before = np.concatenate([zeros, np.cumsum(values, -1)[..., :-1]], -1)
    after = np.concatenate([zeros, np.cumsum(values[..., ::-1], -1)[..., :-1]], -1)[..., ::-1]
    return np.asarray(before + after)


def _prior_precision(var0: ArrayLike, var: ArrayLike) -> Array:
    """1 / (σ_0² + 1/S₋ₘ): how sure the others make client m, before it has data of its own."""
    others = _others(_precision(var0, var))
    return np.asarray(others / (1 + _array(var0)[..., None] * others))
