"""How far a mixture of everybody's data can lead one client astray: the bounds behind User-Centric FL.

Mestoukirdi et al., IEEE TMLCN 2023, arXiv:2304.12930, Theorems 1 and 2. Client i minimises the loss over all clients'
data, weighted by w; both theorems bound its excess risk on its own distribution P_i, with probability 1 − δ:
    B √(Σ_j w_j²/n_j) (√(2d/n · log(e n/d)) + √log(2/δ))  +  what P_i and the others' P_j are apart,   n = Σ_j n_j
The first part shrinks as others' examples are used, the second grows with those that differ.

The right-hand sides are the theorems' as printed. The proof in the appendix carries more: a factor 2 on the second and
4 on the first of the two roots, and Massart's lemma does not give the division by n under the first.

Everywhere: w (weights that sum to one), n (examples) and the distances to P_i have the clients as their last axis, so
that w can be a whole collaboration matrix; d is the VC dimension, B the range of the loss.
"""

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import rel_entr

from bespokefl.core.errors import InputError

Array = NDArray[np.float64]


def theorem1(
    w: ArrayLike, n: ArrayLike, d: float, B: float, delta: float, gamma: ArrayLike, discrepancies: ArrayLike
) -> Array:
    """Theorem 1: … + 2 Σ_j w_j d_F(P_i, P_j) + 2γ, γ the least sum of the risks on P_i and on the mixture."""
    return np.asarray(_estimation(w, n, d, B, delta) + 2 * _mean(w, discrepancies) + 2 * _array(gamma))


def theorem2(w: ArrayLike, n: ArrayLike, d: float, B: float, delta: float, divergences: ArrayLike) -> Array:
    """Theorem 2: … + B √(2 Σ_j w_j D_JS(P_i ‖ P_j)), D_JS as `jensen_shannon` has it."""
    return np.asarray(_estimation(w, n, d, B, delta) + B * np.sqrt(2 * _mean(w, divergences)))


def jensen_shannon(p: ArrayLike, q: ArrayLike) -> Array:
    """D_JS(P ‖ Q) = ½ KL(P ‖ M) + ½ KL(Q ‖ M), M = (P + Q)/2, of discrete distributions along the last axis.

    In nats, at most log 2: with the factor ½ of the appendix, which (7) leaves out.
    """
    p, q = _array(p), _array(q)
    middle = (p + q) / 2
    return np.asarray((rel_entr(p, middle) + rel_entr(q, middle)).sum(-1) / 2)


def _estimation(w: ArrayLike, n: ArrayLike, d: float, B: float, delta: float) -> Array:
    """What both theorems have in common: the error of learning from finitely many examples."""
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
