"""Who resembles whom, and how sure each client is of itself: from two short fits per client, each on half of its data.

Both halves of a client see the same distribution and share no example, so their noise is independent:
    ‖a_m − b_m‖² / 4           is the variance σ_m² of the client's own estimate (a_m + b_m) / 2, and
    Σ w_m ⟨a_m − ā, b_m − b̄⟩   is the variance between clients σ_0², without the noise that ‖z_m − z̄‖² would count.
Both are traces, as in Self-FL. σ_m² is v_m² / n_m (Self-FL's (15), (16)), and v_m² of a client with few examples is
drawn towards that of all: two examples say little about a variance.
"""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from bespokefl.core import rng as chance
from bespokefl.core.rows import Rows

Array = NDArray[np.float64]

PRIOR = 100  # examples that everybody's v² counts for in a client's own
SHARE = 0.1  # of all variance: less between clients is no difference worth a word
SURE = 4.0  # standard deviations that the variance between clients must be above noise
CLEAR = 0.75  # of the variance between clients: groups that explain as much are all the difference there is
PARTLY = 0.3  # silhouette from which on groups are there, among other differences
MOST = 12  # groups that are looked for
SHUFFLES = 300

ALIKE, GROUPS, PARTLY_GROUPED, SINGLE = "alike", "groups", "partly", "single"


@dataclass(frozen=True)
class Likeness:
    """What the fits say; clients in the order that they were given in."""

    estimates: Array  # z_m, (M, r): coordinates in which distances are those of the weights
    variances: Array  # σ_m², (M,)
    between: float  # σ_0², 0 where it cannot be told from chance
    within: float  # the same within groups
    share: float  # σ_0² / (σ_0² + mean σ_m²), before it is judged
    surety: float | None  # how many standard deviations that is above chance; None for fewer than four clients
    kind: str  # ALIKE, GROUPS, PARTLY_GROUPED or SINGLE
    groups: NDArray[np.int64]  # (M,): all 0 if alike, all different if single
    explained: float | None  # the groups' part of σ_0²
    silhouettes: list[float | None]  # of 1, 2, … groups

    @property
    def num_groups(self) -> int:
        return len(np.unique(self.groups))


def compare(first: Rows, second: Rows, sizes: NDArray[np.int64], seed: int) -> Likeness:
    """From everybody's fits on the first and on the second half of its data, as differences from the common start."""
    points = coordinates(Rows.cat([first, second]))
    a, b = points[: len(first)], points[len(first) :]
    z = (a + b) / 2
    sigma = shrunken(np.square(a - b).sum(1) / 4, sizes)
    weights = sizes / sizes.sum()
    everybody = np.zeros(len(z), dtype=np.int64)
    raw = between(a, b, weights, everybody)
    share = max(raw, 0.0) / max(max(raw, 0.0) + float(weights @ sigma), 1e-300)
    surety = _surety(a, b, weights, seed)
    curve: list[float | None] = [0.0]
    found = (sigma, share, surety)
    if share < SHARE or (surety is not None and surety < SURE):
        return Likeness(z, sigma, 0.0, 0.0, share, surety, ALIKE, everybody, None, curve)
    unit = z - weights @ z
    unit = unit / np.maximum(np.linalg.norm(unit, axis=1, keepdims=True), 1e-300)
    tried = {k: _grouped(unit, weights, k, seed) for k in range(2, min(MOST, len(z) // 2) + 1)}
    scores = {k: _silhouette(unit, weights, labels) for k, labels in tried.items()}
    curve += [scores[k] for k in sorted(scores)]
    best = max(scores, key=lambda k: scores[k]) if scores else 1
    if best > 1:
        within = max(between(a, b, weights, tried[best]), 0.0)
        explained = min(1 - within / raw, 1.0)
        kind = GROUPS if explained >= CLEAR else PARTLY_GROUPED if scores[best] >= PARTLY else SINGLE
        if kind != SINGLE:
            return Likeness(z, sigma, raw, within, *found[1:], kind, tried[best], explained, curve)
    return Likeness(z, sigma, raw, raw, *found[1:], SINGLE, np.arange(len(z)), None, curve)


def coordinates(rows: Rows) -> Array:
    """Points with the rows' distances and inner products, but no more coordinates than there are rows."""
    gram = torch.zeros(len(rows), len(rows), dtype=torch.float64)
    for block in rows.blocks:
        flat = block.detach().cpu().reshape(len(block), -1).double()
        gram += flat @ flat.T
    values, vectors = np.linalg.eigh(gram.numpy())
    points: Array = vectors * np.sqrt(np.maximum(values, 0.0))
    return points


def shrunken(raw: Array, sizes: NDArray[np.int64]) -> Array:
    """σ_m² from v_m² n_m and everybody's v²; a client with one example has only the latter."""
    known = np.where(sizes >= 2, sizes, 0)
    spread = raw * sizes  # v_m²
    pooled = float((known * spread).sum() / max(known.sum(), 1))
    found: Array = (known * spread + PRIOR * pooled) / (known + PRIOR) / sizes
    return found


def between(a: Array, b: Array, weights: Array, groups: NDArray[np.int64]) -> float:
    """The variance between clients of a group, all groups together; 0 where every client is its own group."""
    total = left = 0.0
    for group in np.unique(groups):
        own = groups == group
        share = weights[own] / weights[own].sum()
        apart = (a[own] - share @ a[own]) * (b[own] - share @ b[own])
        total += weights[own].sum() * float(share @ apart.sum(1))
        left += weights[own].sum() * float(1 - share @ share)  # what the mean itself takes away
    return total / left if left > 1e-12 else 0.0


def _surety(a: Array, b: Array, weights: Array, seed: int) -> float | None:
    """How far σ_0² is above what noise alone would make of it, in standard deviations of the latter.

    Noise alone: what a client's halves differ by has no trace of the client, only noise. Paired with that of others, at
    random and with random signs, it makes halves of clients that do not differ.
    """
    num = len(a)
    if num < 4:
        return None
    noise = (a - b) / np.sqrt(2)  # with the variance of a half's own
    pairs = noise @ noise.T
    scale = np.sqrt(np.maximum(np.diag(pairs), 1e-300))
    rng = chance.generator(seed, "diagnose", "noise")
    drawn = np.empty(SHUFFLES)
    for at in range(SHUFFLES):
        first = rng.permutation(num)  # client first[k] lends its noise to the one that follows it in a circle
        other = np.empty(num, dtype=np.int64)
        other[first] = np.roll(first, 1)
        signs = rng.choice([-1.0, 1.0], num)
        # as in `between`, but for the mean that it takes away: of noise it is next to nothing
        drawn[at] = (weights * signs * pairs[np.arange(num), other] * scale / scale[other]).sum()
    left = float(1 - weights @ weights)
    spread = float(drawn.std()) / max(left, 1e-300)
    return between(a, b, weights, np.zeros(num, dtype=np.int64)) / max(spread, 1e-300)


def _grouped(unit: Array, weights: Array, num: int, seed: int) -> NDArray[np.int64]:
    """K-means of directions; groups are numbered as they first come."""
    from sklearn.cluster import KMeans  # here, because it takes a second to import

    draw = int(chance.generator(seed, "diagnose", "groups", num).integers(2**31))
    labels = KMeans(num, n_init=10, random_state=draw).fit(unit, sample_weight=weights).labels_
    order = np.argsort(np.unique(labels, return_index=True)[1])
    return np.asarray(np.argsort(order)[labels], dtype=np.int64)


def _silhouette(unit: Array, weights: Array, groups: NDArray[np.int64]) -> float:
    """Mean over clients, by their examples, of the silhouette in cosine distance."""
    from sklearn.metrics import silhouette_samples

    if not 1 < len(np.unique(groups)) < len(unit):
        return 0.0
    apart = np.maximum(1 - unit @ unit.T, 0.0)
    np.fill_diagonal(apart, 0.0)
    return float(weights @ silhouette_samples(apart, groups, metric="precomputed"))
