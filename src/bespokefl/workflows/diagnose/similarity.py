"""Variances and groups of clients, from two short fits per client, each on half of its data.

Both halves of a client come from the same distribution and share no example, so their noise is independent:
    ‖a_m − b_m‖² / 4           estimates the variance σ_m² of the client's own estimate (a_m + b_m) / 2, and
    Σ w_m ⟨a_m − ā, b_m − b̄⟩   the variance between clients σ_0², without the noise that ‖z_m − z̄‖² contains.
Both are traces, as in Self-FL. σ_m² is v_m² / n_m (Self-FL's (15), (16)); v_m² of a client with few examples is shrunk
towards the pooled v², because two examples say little about a variance.
"""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from bespokefl.core import rng
from bespokefl.core.rows import Rows
from bespokefl.metrics.client_values import Array

Groups = NDArray[np.int64]

PRIOR = 100  # weight of the pooled v² in a client's own, in examples
MIN_SHARE = 0.1  # of the variance between clients in all variance, for a difference worth reporting
MIN_DEVIATIONS = 4.0  # standard deviations by which the variance between clients must exceed noise
MIN_EXPLAINED = 0.75  # of the variance between clients, for groups to be the whole difference
MIN_SILHOUETTE = 0.3  # for groups that are a part of the difference
MAX_GROUPS = 12
NUM_SHUFFLES = 300

ALIKE, GROUPS, PARTLY_GROUPED, SINGLE = "alike", "groups", "partly", "single"


@dataclass(frozen=True)
class Similarity:
    """What the fits show, clients in the given order."""

    estimates: Array  # z_m, (M, r): coordinates with the same distances as the weights
    variances: Array  # σ_m², (M,)
    between: float  # σ_0², 0 if it is not distinguishable from noise
    within: float  # the same within groups
    share: float  # σ_0² / (σ_0² + mean σ_m²), also if it is not significant
    surety: float | None  # standard deviations that σ_0² is above noise; None for fewer than four clients
    kind: str  # ALIKE, GROUPS, PARTLY_GROUPED or SINGLE
    groups: Groups  # (M,): all 0 if alike, all different if single
    explained: float | None  # share of σ_0² that the groups explain
    silhouettes: list[float | None]  # of 1, 2, … groups

    @property
    def num_groups(self) -> int:
        """The number of groups."""
        return len(np.unique(self.groups))


def compare(first: Rows, second: Rows, sizes: NDArray[np.int64], seed: int) -> Similarity:
    """Compare clients by their fits on the first and second half of their data, relative to the initial weights."""
    points = coordinates(Rows.cat([first, second]))
    a, b = points[: len(first)], points[len(first) :]
    z = (a + b) / 2
    sigma = shrunken(np.square(a - b).sum(1) / 4, sizes)
    weights = sizes / sizes.sum()
    one_group = np.zeros(len(z), dtype=np.int64)
    raw = between(a, b, weights, one_group)
    share = max(raw, 0.0) / max(max(raw, 0.0) + float(weights @ sigma), 1e-300)
    surety = _deviations_above_noise(a, b, weights, seed)
    silhouettes: list[float | None] = [0.0]
    if share < MIN_SHARE or (surety is not None and surety < MIN_DEVIATIONS):
        return Similarity(z, sigma, 0.0, 0.0, share, surety, ALIKE, one_group, None, silhouettes)
    unit = z - weights @ z
    unit = unit / np.maximum(np.linalg.norm(unit, axis=1, keepdims=True), 1e-300)
    tried = {k: _cluster(unit, weights, k, seed) for k in range(2, min(MAX_GROUPS, len(z) // 2) + 1)}
    scores = {k: _silhouette(unit, weights, groups) for k, groups in tried.items()}
    silhouettes += [scores[k] for k in sorted(scores)]
    best = max(scores, key=lambda k: scores[k]) if scores else 1
    if best > 1:
        within = max(between(a, b, weights, tried[best]), 0.0)
        explained = min(1 - within / raw, 1.0)
        kind = GROUPS if explained >= MIN_EXPLAINED else PARTLY_GROUPED
        if kind == GROUPS or scores[best] >= MIN_SILHOUETTE:
            return Similarity(z, sigma, raw, within, share, surety, kind, tried[best], explained, silhouettes)
    return Similarity(z, sigma, raw, raw, share, surety, SINGLE, np.arange(len(z)), None, silhouettes)


def coordinates(rows: Rows) -> Array:
    """Return points with the inner products of the rows, in no more dimensions than there are rows."""
    gram = torch.zeros(len(rows), len(rows), dtype=torch.float64)
    for block in rows.blocks:
        flat = block.detach().cpu().reshape(len(block), -1).double()
        gram += flat @ flat.T
    values, vectors = np.linalg.eigh(gram.numpy())
    points: Array = vectors * np.sqrt(np.maximum(values, 0.0))
    return points


def shrunken(raw: Array, sizes: NDArray[np.int64]) -> Array:
    """Return σ_m² with v_m² shrunk towards the pooled v²; a client with one example has only the latter."""
    known = np.where(sizes >= 2, sizes, 0)
    spread = raw * sizes  # v_m²
    pooled = float((known * spread).sum() / max(known.sum(), 1))
    found: Array = (known * spread + PRIOR * pooled) / (known + PRIOR) / sizes
    return found


def between(a: Array, b: Array, weights: Array, groups: Groups) -> float:
    """Return the variance between clients of the same group, over all groups; 0 if every group is a single client."""
    total = left = 0.0
    for group in np.unique(groups):
        own = groups == group
        share = weights[own] / weights[own].sum()
        apart = (a[own] - share @ a[own]) * (b[own] - share @ b[own])
        total += weights[own].sum() * float(share @ apart.sum(1))
        left += weights[own].sum() * float(1 - share @ share)  # corrects for the estimated mean
    return total / left if left > 1e-12 else 0.0


def _deviations_above_noise(a: Array, b: Array, weights: Array, seed: int) -> float | None:
    """Return σ_0² in standard deviations of what noise alone gives.

    The difference of a client's halves contains only noise. Paired with that of other clients, at random and with
    random signs, it gives halves of clients that do not differ.
    """
    num = len(a)
    if num < 4:
        return None
    noise = (a - b) / np.sqrt(2)  # has the variance of the noise of one half
    pairs = noise @ noise.T
    scale = np.sqrt(np.maximum(np.diag(pairs), 1e-300))
    generator = rng.generator(seed, "diagnose", "noise")
    drawn = np.empty(NUM_SHUFFLES)
    for at in range(NUM_SHUFFLES):
        order = generator.permutation(num)  # every client is paired with its predecessor in a random circle
        other = np.empty(num, dtype=np.int64)
        other[order] = np.roll(order, 1)
        signs = generator.choice([-1.0, 1.0], num)
        # as in `between`, but without subtracting the mean, which is negligible for noise
        drawn[at] = (weights * signs * pairs[np.arange(num), other] * scale / scale[other]).sum()
    left = float(1 - weights @ weights)
    spread = float(drawn.std()) / max(left, 1e-300)
    return between(a, b, weights, np.zeros(num, dtype=np.int64)) / max(spread, 1e-300)


def _cluster(unit: Array, weights: Array, num: int, seed: int) -> Groups:
    """Group directions by k-means; groups are numbered in the order of their first members."""
    from sklearn.cluster import KMeans  # imported here because it takes a second

    draw = int(rng.generator(seed, "diagnose", "groups", num).integers(2**31))
    labels = KMeans(num, n_init=10, random_state=draw).fit(unit, sample_weight=weights).labels_
    order = np.argsort(np.unique(labels, return_index=True)[1])
    return np.asarray(np.argsort(order)[labels], dtype=np.int64)


def _silhouette(unit: Array, weights: Array, groups: Groups) -> float:
    """Return the mean silhouette of the clients in cosine distance, weighted by their examples."""
    from sklearn.metrics import silhouette_samples

    if not 1 < len(np.unique(groups)) < len(unit):
        return 0.0
    apart = np.maximum(1 - unit @ unit.T, 0.0)
    np.fill_diagonal(apart, 0.0)
    return float(weights @ silhouette_samples(apart, groups, metric="precomputed"))
