"""What federating can gain, exactly, in the simplest federation: a mean per client, scattered around a common one.

Self-FL's two-level Gaussian model (Chen et al., NeurIPS 2022, section 2.1). Equation numbers are the paper's.
    θ_m | θ_0 ~ N(θ_0, σ_0²),   z_m | θ_m ~ N(θ_m, σ_m²),   m = 1..M        (1)

Everywhere: z is what each client measured (its local estimate), `var` its variance σ_m², `var0` the variance between
clients σ_0². Clients are the last axis, so that many repeats can be handled at once; `var0` is a number, or an array
of the other axes, and may be infinite. S₋ₘ stands for Σ_{k≠m} (σ_0² + σ_k²)⁻¹. A σ_m² of zero stands for one that is
very small, the same for all clients that have it: where σ_0² is zero, too, those share all the weight.
"""

import numpy as np
from numpy.typing import ArrayLike, NDArray

Array = NDArray[np.float64]
LEAST = 1e-150  # what a variance of zero stands for: its inverse, and sums of them, are still numbers


# -- what can be known


def global_optimum(z: ArrayLike, var0: ArrayLike, var: ArrayLike) -> Array:
    """The posterior mean of θ_0: every client's estimate, weighted by (σ_0² + σ_m²)⁻¹ (2)."""
    z, var = _aligned(z, var)
    weights = _weights(var0, var)
    return np.asarray((weights * z).sum(-1) / weights.sum(-1))


def global_variance(var0: ArrayLike, var: ArrayLike) -> Array:
    """The posterior variance of θ_0 (2)."""
    with np.errstate(divide="ignore"):
        return np.asarray(1 / _precision(var0, var).sum(-1))


def fl_optimum(z: ArrayLike, var0: ArrayLike, var: ArrayLike) -> Array:
    """The paper's FL-optimum of every client: its own estimate and the others', by precision (3).

    It is derived under θ_m = θ_0 for the client itself; `exact_bayes` is the estimator under (1).
    """
    z, var = _aligned(z, var)
    precision = _precision(var0, var)
    return np.asarray((z + var * _others(precision * z)) / (1 + var * _others(precision)))


def fl_variance(var0: ArrayLike, var: ArrayLike) -> Array:
    """The FL-optimum's posterior variance, 1 / (σ_m⁻² + S₋ₘ) (3)."""
    return np.asarray(_variance(var) / gain(var0, var))


def gain(var0: ArrayLike, var: ArrayLike) -> Array:
    """The paper's GAIN_m = 1 + σ_m² S₋ₘ: how many times smaller (3)'s variance is than the client's own."""
    return np.asarray(1 + _variance(var) * _others(_precision(var0, var)))


def exact_bayes(z: ArrayLike, var0: ArrayLike, var: ArrayLike) -> Array:
    """The posterior mean of θ_m under (1): the others' weighted mean is a prior of variance σ_0² + 1/S₋ₘ."""
    z, var = _aligned(z, var)
    prior = var * _prior_precision(var0, var)
    others = np.where(prior > 0, initial_value(z, var0, var), 0.0)  # without others there is no mean, and no prior
    return np.asarray((z + prior * others) / (1 + prior))


def bayes_gain(var0: ArrayLike, var: ArrayLike) -> Array:
    """The honest gain 1 + σ_m² / (σ_0² + 1/S₋ₘ): variance alone over variance with the others, under (1)."""
    return np.asarray(1 + _variance(var) * _prior_precision(var0, var))


# -- how gradient descent gets there


def initial_value(z: ArrayLike, var0: ArrayLike, var: ArrayLike) -> Array:
    """Where client m starts: the others' weighted mean (7). NaN for a client without others."""
    z, var = _aligned(z, var)
    weights = _weights(var0, var)
    with np.errstate(invalid="ignore"):
        return np.asarray(_others(weights * z) / _others(weights))


def start_from(common: ArrayLike, personal: ArrayLike, var0: ArrayLike, var: ArrayLike) -> Array:
    """Where client m starts, without knowing the others' models: the common one, its own part taken out.

    (9), which is (7), if `common` is the global optimum and `personal` are the z; (10) if they are a round's models.
    """
    personal, var = _aligned(personal, var)
    common, weights = _array(common)[..., None], _weights(var0, var)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray(common - weights / _others(weights) * (personal - common))


def local_steps(var0: ArrayLike, var: ArrayLike, lr: float) -> Array:
    """How many gradient steps, as a real number, lead from (7) to (3): ℓ of (8).

    NaN where lr >= σ_m²: one step goes all the way to z_m or beyond. Infinite for a client without others.
    """
    var = _variance(var)
    with np.errstate(divide="ignore", invalid="ignore"):
        steps = np.log1p(1 / (var * _others(_precision(var0, var)))) / -np.log1p(-lr / var)
    return np.asarray(np.where(lr < var, steps, np.nan))


def descended(start: ArrayLike, z: ArrayLike, var: ArrayLike, lr: float, steps: ArrayLike) -> Array:
    """Where so many steps of gradient descent on (θ − z_m)² / 2σ_m² lead from `start` (6); steps may be real.

    NaN or infinite where they lead nowhere: σ_m² is zero, or lr > σ_m² and the steps are no whole number.
    """
    with np.errstate(invalid="ignore", over="ignore"):
        left = (1 - lr / _variance(var)) ** _array(steps)
        return np.asarray((1 - left) * _array(z) + left * _array(start))


# -- inside


def _array(values: ArrayLike) -> Array:
    return np.asarray(values, dtype=np.float64)


def _aligned(z: ArrayLike, var: ArrayLike) -> tuple[Array, Array]:
    """Both with the same clients: one variance may stand for all."""
    z, var = np.broadcast_arrays(_array(z), _variance(var))
    return z, var


def _variance(var: ArrayLike) -> Array:
    return np.asarray(np.maximum(_array(var), LEAST))


def _precision(var0: ArrayLike, var: ArrayLike) -> Array:
    """(σ_0² + σ_m²)⁻¹."""
    return np.asarray(1 / (_array(var0)[..., None] + _variance(var)))


def _weights(var0: ArrayLike, var: ArrayLike) -> Array:
    """(σ_0² + σ_m²)⁻¹ where only their ratios count: all equal, not zero, where σ_0² is infinite."""
    precision = _precision(var0, var)
    return np.where((precision > 0).any(-1, keepdims=True), precision, 1.0)


def _others(values: Array) -> Array:
    """Σ_{k≠m} values_k by sums from both ends: total − own would cancel where one client dominates."""
    zeros = np.zeros((*values.shape[:-1], 1))
    before = np.concatenate([zeros, np.cumsum(values, -1)[..., :-1]], -1)
    after = np.concatenate([zeros, np.cumsum(values[..., ::-1], -1)[..., :-1]], -1)[..., ::-1]
    return np.asarray(before + after)


def _prior_precision(var0: ArrayLike, var: ArrayLike) -> Array:
    """1 / (σ_0² + 1/S₋ₘ): how sure the others make client m, before it has data of its own."""
    with np.errstate(divide="ignore"):
        return np.asarray(1 / (_array(var0)[..., None] + 1 / _others(_precision(var0, var))))
