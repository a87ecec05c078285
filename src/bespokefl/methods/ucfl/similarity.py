"""The collaboration matrix of UCFL: how much each client uses of the others' models, from gradient similarity (9)."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.spatial.distance import cdist
from torch import Tensor

from bespokefl.core.errors import InputError
from bespokefl.core.rows import Rows

Array = NDArray[Any]
Matrix = Rows | Tensor | Array | Sequence[Any]
NEGLIGIBLE = float(np.finfo(np.float64).eps)  # a weight that is lost in the rounding of a row's sum


def collaboration(gradients: Matrix, variances: Matrix, sizes: Matrix) -> Array:
    """W (9), an (m, m) matrix whose rows sum to one.

    Parameters
    ----------
    gradients : matrix
        g_i, (m, D).
    variances : array
        σ_i², (m,), NaN where undefined.
    sizes : array
        n_i, (m,).
    """
    return collaboration_rows(gradients, variances, gradients, variances, sizes)


def collaboration_rows(
    own_gradients: Matrix, own_variances: Matrix, gradients: Matrix, variances: Matrix, sizes: Matrix
) -> Array:
    """Rows of W for some clients, with columns for all; a row without similar clients is zero."""
    own_g, g = as_array(own_gradients), as_array(gradients)
    if not (np.isfinite(own_g).all() and np.isfinite(g).all()):
        raise InputError("gradients must be finite, got NaN or infinity; leave such clients out.")
    if (as_array(variances) < 0).any() or (as_array(own_variances) < 0).any():
        raise InputError("variances must be >= 0, or NaN where they are undefined, got a negative one.")
    distance = cdist(own_g, g, "sqeuclidean")  # Δ, from differences: a Gram matrix would cancel
    own, noise, n = np.sqrt(as_array(own_variances)), np.sqrt(as_array(variances)), as_array(sizes)
    if not distance.shape == (len(own), len(noise)) == (len(own), len(n)):
        raise InputError(
            f"expected one variance and one size for each of {len(g)} gradients, got {len(noise)} and {len(n)}."
        )
    known = noise[~np.isnan(noise)]
    if not len(known):
        return np.tile(n / n.sum(), (len(own), 1))
    own, noise = (np.where(np.isnan(sigma), np.median(known), sigma) for sigma in (own, noise))
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        exponent = np.where(distance > 0, -distance / (2 * np.outer(own, noise)), 0.0)
        logits = np.log(n) + exponent
    peak = logits.max(1, keepdims=True)
    weights = np.exp(logits - np.where(np.isfinite(peak), peak, 0.0))
    return np.asarray(weights / np.maximum(weights.sum(1, keepdims=True), NEGLIGIBLE))


def renormalized(W: Tensor, present: Tensor) -> tuple[Tensor, Tensor]:
    """W's columns of the clients that are present, with rows that sum to one, and which rows are not empty."""
    left = W[:, present]
    total = left.sum(1, keepdim=True)
    return left / total.clamp(min=NEGLIGIBLE), total[:, 0] > NEGLIGIBLE


def as_array(values: Any) -> Array:
    """Rows, tensors and lists as a float64 array."""
    if isinstance(values, Rows):
        values = values.matrix()
    return np.asarray(values.detach().cpu() if isinstance(values, Tensor) else values, dtype=np.float64)
