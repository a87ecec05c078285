"""The bounds behind User-Centric FL: the excess risk of a client that learns from a weighted mixture of all data.

Mestoukirdi et al., IEEE TMLCN 2023, arXiv:2304.12930, Theorems 1 and 2. Client i minimises the loss over all clients'
data, weighted by w. Both theorems bound its excess risk on its own distribution P_i, with probability 1 − δ::

    B √(Σ_j w_j²/n_j) (√(2d/n · log(e n/d)) + √log(2/δ))  +  a distance between P_i and the other P_j,   n = Σ_j n_j

The first part shrinks as more examples of others are used, the second grows with the clients that differ.

The right-hand sides are those of the theorems as printed. The proof in the appendix carries more: a factor 2 on the
second and 4 on the first of the two roots, and Massart's lemma does not give the division by n under the first.

Weights, example counts and distances have the clients as their last axis, so `w` can be a whole collaboration matrix.
"""

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import rel_entr

from bespokefl.core.errors import InputError
from bespokefl.theory.two_level import Array


def theorem1(
    w: ArrayLike, n: ArrayLike, d: float, B: float, delta: float, gamma: ArrayLike, discrepancies: ArrayLike
) -> Array:
    """Return the bound of Theorem 1, shape (…), whose second part is 2 Σ_j w_j d_F(P_i, P_j) + 2γ.

    Parameters
    ----------
    w, n : array-like of shape (…, M)
        The weights of the clients, which sum to one, and their numbers of examples.
    d, B, delta : float
        The VC dimension, the range of the loss, and the probability δ with which the bound may fail.
    gamma : array-like of shape (…)
        γ, the smallest sum of the risks on P_i and on the mixture.
    discrepancies : array-like of shape (…, M)
        The discrepancies d_F(P_i, P_j).
    """
    return np.asarray(_estimation(w, n, d, B, delta) + 2 * _mean(w, discrepancies) + 2 * _array(gamma))


def theorem2(w: ArrayLike, n: ArrayLike, d: float, B: float, delta: float, divergences: ArrayLike) -> Array:
    """Return the bound of Theorem 2, whose second part is B √(2 Σ_j w_j D_JS(P_i ‖ P_j)).

    `divergences`, of shape (…, M), are the D_JS(P_i ‖ P_j) as `jensen_shannon` computes them; the other parameters are
    those of `theorem1`.
    """
    return np.asarray(_estimation(w, n, d, B, delta) + B * np.sqrt(2 * _mean(w, divergences)))


def jensen_shannon(p: ArrayLike, q: ArrayLike) -> Array:
    """Return the Jensen-Shannon divergence D_JS(P ‖ Q) = ½ KL(P ‖ M) + ½ KL(Q ‖ M), M = (P + Q)/2, in nats.

    `p` and `q`, (…, K), are discrete distributions along the last axis. The divergence is at most log 2. The factor ½
    is that of the appendix, which (7) leaves out.
    """
    p, q = _array(p), _array(q)
    middle = (p + q) / 2
    return np.asarray((rel_entr(p, middle) + rel_entr(q, middle)).sum(-1) / 2)


def _estimation(w: ArrayLike, n: ArrayLike, d: float, B: float, delta: float) -> Array:
    """Return the first part of both bounds, the error of learning from finitely many examples."""
    sizes = _array(n)
    total = sizes.sum(-1)
    if not (0 < d <= np.min(total) and 0 < delta < 1):
        raise InputError(
            f"expected a VC dimension d in (0, {np.min(total):g}], the number of examples, and delta in (0, 1), got "
            f"{d} and {delta}."
        )
    spread = np.sqrt((_array(w) ** 2 / sizes).sum(-1))
    return np.asarray(B * spread * (np.sqrt(2 * d / total * np.log(np.e * total / d)) + np.sqrt(np.log(2 / delta))))


def _mean(w: ArrayLike, distances: ArrayLike) -> Array:
    return np.asarray((_array(w) * _array(distances)).sum(-1))


def _array(values: ArrayLike) -> Array:
    return np.asarray(values, dtype=np.float64)
