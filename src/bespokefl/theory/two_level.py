"""Self-FL's two-level Gaussian model: how much a client can gain from federating, in closed form.

Chen et al., NeurIPS 2022, section 2.1. Equation numbers are the paper's. Each client has a mean θ_m, drawn around a
global mean θ_0, and an estimate z_m of it::

    θ_m | θ_0 ~ N(θ_0, σ_0²),   z_m | θ_m ~ N(θ_m, σ_m²),   m = 1..M        (1)

Parameters that the functions share
-----------------------------------
z : array-like of shape (…, M)
    The estimate of each client. Clients are the last axis, so that many repetitions can be computed at once.
var0 : array-like of shape (…)
    The variance between clients σ_0², which may be infinite.
var : array-like of shape (…, M)
    The variance σ_m² of each estimate. A variance of zero stands for one that is very small and the same for all such
    clients: if σ_0² is zero as well, these clients share all the weight.

S₋ₘ stands for Σ_{k≠m} (σ_0² + σ_k²)⁻¹. Functions return one value per client, shape (…, M), unless stated otherwise.
"""

import numpy as np
from numpy.typing import ArrayLike, NDArray

Array = NDArray[np.float64]
MIN_VARIANCE = 1e-150  # replaces a variance of zero; sums of its inverse are still finite


# -- Estimates and gains


def global_optimum(z: ArrayLike, var0: ArrayLike, var: ArrayLike) -> Array:
    """Return the posterior mean of θ_0, shape (…): the estimates weighted by (σ_0² + σ_m²)⁻¹ (2)."""
    z, var = _aligned(z, var)
    weights = _weights(var0, var)
    return np.asarray((weights * z).sum(-1) / weights.sum(-1))


def global_variance(var0: ArrayLike, var: ArrayLike) -> Array:
    """Return the posterior variance of θ_0, shape (…) (2)."""
    with np.errstate(divide="ignore"):
        return np.asarray(1 / _precision(var0, var).sum(-1))


def fl_optimum(z: ArrayLike, var0: ArrayLike, var: ArrayLike) -> Array:
    """Return the paper's FL-optimum: the client's own estimate and those of the others, weighted by precision (3).

    It assumes θ_m = θ_0 for the client itself; `exact_bayes` is the estimator under (1).
    """
    z, var = _aligned(z, var)
    precision = _precision(var0, var)
    return np.asarray((z + var * _others(precision * z)) / (1 + var * _others(precision)))


def fl_variance(var0: ArrayLike, var: ArrayLike) -> Array:
    """Return the posterior variance of the FL-optimum, 1 / (σ_m⁻² + S₋ₘ) (3)."""
    return np.asarray(_variance(var) / gain(var0, var))


def gain(var0: ArrayLike, var: ArrayLike) -> Array:
    """Return the paper's GAIN_m = 1 + σ_m² S₋ₘ, the client's own variance divided by the variance of (3)."""
    return np.asarray(1 + _variance(var) * _others(_precision(var0, var)))


def exact_bayes(z: ArrayLike, var0: ArrayLike, var: ArrayLike) -> Array:
    """Return the posterior mean of θ_m under (1); the others' weighted mean is a prior of variance σ_0² + 1/S₋ₘ."""
    z, var = _aligned(z, var)
    prior = var * _prior_precision(var0, var)
    others = np.where(prior > 0, initial_value(z, var0, var), 0.0)  # without other clients there is no prior
    return np.asarray((z + prior * others) / (1 + prior))


def bayes_gain(var0: ArrayLike, var: ArrayLike) -> Array:
    """Return the exact gain under (1), 1 + σ_m² / (σ_0² + 1/S₋ₘ): variance alone over variance with the others."""
    return np.asarray(1 + _variance(var) * _prior_precision(var0, var))


# -- Gradient descent


def initial_value(z: ArrayLike, var0: ArrayLike, var: ArrayLike) -> Array:
    """Return the start of client m, the weighted mean of the others (7); NaN without others."""
    z, var = _aligned(z, var)
    weights = _weights(var0, var)
    with np.errstate(invalid="ignore"):
        return np.asarray(_others(weights * z) / _others(weights))


def start_from(common: ArrayLike, personal: ArrayLike, var0: ArrayLike, var: ArrayLike) -> Array:
    """Return the start of client m from the global model, with the client's own contribution removed.

    `common`, (…), is the global model and `personal`, (…, M), the personal ones: the global optimum and the estimates z
    for (9), which equals (7), or those of a round for (10).
    """
    personal, var = _aligned(personal, var)
    common, weights = _array(common)[..., None], _weights(var0, var)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray(common - weights / _others(weights) * (personal - common))


def local_steps(var0: ArrayLike, var: ArrayLike, lr: float) -> Array:
    """Return ℓ, the number of gradient steps, as a real number, that lead from (7) to (3) (8).

    It is NaN if the learning rate `lr` is >= σ_m², where one step reaches z_m or beyond, and infinite without others.
    """
    var = _variance(var)
    with np.errstate(divide="ignore", invalid="ignore"):
        steps = np.log1p(1 / (var * _others(_precision(var0, var)))) / -np.log1p(-lr / var)
    return np.asarray(np.where(lr < var, steps, np.nan))


def descended(start: ArrayLike, z: ArrayLike, var: ArrayLike, lr: float, steps: ArrayLike) -> Array:
    """Return the result of gradient descent on (θ − z_m)² / 2σ_m² in closed form (6).

    It starts at `start`, (…, M), and makes `steps`, (…, M), of learning rate `lr`; their number may be real. The result
    is NaN or infinite if undefined: σ_m² is zero, or lr > σ_m² and `steps` is not an integer.
    """
    with np.errstate(invalid="ignore", over="ignore"):
        left = (1 - lr / _variance(var)) ** _array(steps)
        return np.asarray((1 - left) * _array(z) + left * _array(start))


# -- Helpers


def _array(values: ArrayLike) -> Array:
    return np.asarray(values, dtype=np.float64)


def _aligned(z: ArrayLike, var: ArrayLike) -> tuple[Array, Array]:
    """Broadcast both to the same clients; one variance may stand for all."""
    z, var = np.broadcast_arrays(_array(z), _variance(var))
    return z, var


def _variance(var: ArrayLike) -> Array:
    return np.asarray(np.maximum(_array(var), MIN_VARIANCE))


def _precision(var0: ArrayLike, var: ArrayLike) -> Array:
    """Return (σ_0² + σ_m²)⁻¹."""
    return np.asarray(1 / (_array(var0)[..., None] + _variance(var)))


def _weights(var0: ArrayLike, var: ArrayLike) -> Array:
    """Return (σ_0² + σ_m²)⁻¹ up to a factor: all equal, not zero, if σ_0² is infinite."""
    precision = _precision(var0, var)
    return np.where((precision > 0).any(-1, keepdims=True), precision, 1.0)


def _others(values: Array) -> Array:
    """Return Σ_{k≠m} values_k by sums from both ends; total − own would cancel if one client dominates."""
    zeros = np.zeros((*values.shape[:-1], 1))
    before = np.concatenate([zeros, np.cumsum(values, -1)[..., :-1]], -1)
    after = np.concatenate([zeros, np.cumsum(values[..., ::-1], -1)[..., :-1]], -1)[..., ::-1]
    return np.asarray(before + after)


def _prior_precision(var0: ArrayLike, var: ArrayLike) -> Array:
    """Return 1 / (σ_0² + 1/S₋ₘ), the precision of the prior that the other clients give client m."""
    with np.errstate(divide="ignore"):
        return np.asarray(1 / (_array(var0)[..., None] + 1 / _others(_precision(var0, var))))
