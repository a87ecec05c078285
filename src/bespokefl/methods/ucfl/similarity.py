"""What UCFL computes before training: gradients and their noise, the collaboration matrix W, and streams of clients."""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bespokefl.core.client_index import ClientIndex
from bespokefl.core.cohort_data import BatchSchedule
from bespokefl.core.errors import InputError
from bespokefl.core.method import CohortData, Rows, Task

Array = NDArray[Any]
Matrix = Rows | Tensor | Array | Sequence[Any]
NEGLIGIBLE = float(np.finfo(np.float64).eps)  # a weight that is lost in the rounding of a row's sum
SURVEY_DRAWS = "survey"  # the purpose of random draws
TOLERANCE, MOST_STEPS = 1e-4, 300  # of k-means; of the points' variance
TRY_EACH_UP_TO = 100  # numbers of streams; larger numbers are tried in steps of 5 %


def survey(task: Task, start: Rows, data: CohortData, num_batches: int, size: int | None) -> tuple[Rows, Tensor]:
    """Each client's g_i over all its data, and σ_i² over a random partition into batches."""
    g = task.sweep_gradient(start, data.sweep("train"))
    partitions = [_partition(data, row, num_batches, size) for row in range(len(data))]
    counts = [len(batches) for batches in partitions]
    tag = [data.tag(row, SURVEY_DRAWS) for row in range(len(data))]

    def batch_gradients(k: int) -> Rows:
        own = ClientIndex.of_lists([batches[k] if k < len(batches) else np.zeros(0) for batches in partitions])
        return task.sweep_gradient(start, BatchSchedule.sweep(data.x, data.y, own, tag=tag))

    return g, torch.from_numpy(gradient_noise((batch_gradients(k) for k in range(max(counts))), g, counts))


def gradient_noise(batches: Matrix | Iterable[Matrix], mean: Matrix, counts: Matrix | None = None) -> Array:
    """σ² = (1/K) Σ_k ‖g^k − g‖² (10); NaN (undefined) for fewer than two batches.

    `batches` is a (K, D) matrix for one client, or K matrices (C, D) for C clients; `counts` says how many of the
    batches each client has, if not all of them. `mean` is the gradient over all data: (D,), or (C, D).
    """
    g = as_array(mean)
    each = as_array(batches) if isinstance(batches, Rows) else batches
    gaps = (as_array(batch) - g for batch in each)
    squares = np.array([np.einsum("...d,...d->...", gap, gap) for gap in gaps]).reshape(-1, *g.shape[:-1])
    num = np.broadcast_to(len(squares) if counts is None else as_array(counts), g.shape[:-1])
    inside = np.arange(len(squares)).reshape(-1, *[1] * num.ndim) < num
    return np.where(num < 2, np.nan, (squares * inside).sum(0) / np.maximum(num, 1))[()]


def _partition(data: CohortData, row: int, num_batches: int, size: int | None) -> Array:
    """A random partition of a client's training examples, (K, n_k); the remainder is dropped."""
    own = data.train.of(row).numpy()
    size = size or max(1, len(own) // num_batches)  # n_k
    if len(own) < size:
        raise InputError(
            f"client {data.names[row]!r} has {len(own)} training examples, fewer than the {size} of a survey batch: "
            "use a smaller survey_size, or none."
        )
    num = len(own) // size  # K
    return data.generator(SURVEY_DRAWS, row).permutation(own)[: num * size].reshape(num, size)


def collaboration(gradients: Matrix, variances: Matrix, sizes: Matrix) -> Array:
    """W (9), an (m, m) matrix whose rows sum to one, from g_i (m, D), σ_i² (m,), NaN where undefined, and n_i (m,)."""
    return collaboration_rows(gradients, variances, gradients, variances, sizes)


def collaboration_rows(
    own_gradients: Matrix, own_variances: Matrix, gradients: Matrix, variances: Matrix, sizes: Matrix
) -> Array:
    """Rows of W for some clients, with columns for all; a row without similar clients is zero."""
    from scipy.spatial.distance import cdist, pdist, squareform  # imported here because these are slow

    same, g = own_gradients is gradients, as_array(gradients)
    own_g = g if same else as_array(own_gradients)
    if not (np.isfinite(own_g).all() and np.isfinite(g).all()):
        raise InputError("gradients must be finite, got NaN or infinity; leave such clients out.")
    if (as_array(variances) < 0).any() or (as_array(own_variances) < 0).any():
        raise InputError("variances must be >= 0, or NaN where they are undefined, got a negative one.")
    # Δ, from differences: a Gram matrix would cancel. Between the same clients, each pair once.
    distance = squareform(pdist(g, "sqeuclidean")) if same else cdist(own_g, g, "sqeuclidean")
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
        values = values.measured().matrix()
    return np.asarray(values.detach().cpu() if isinstance(values, Tensor) else values, dtype=np.float64)


def choose_streams(W: Matrix, penalty: float = 0.0, streams: int | None = None) -> tuple[int, Array, Array]:
    """K-means on the rows of W (Algorithm 2), with k = argmax s_k − penalty · k (12), the smallest on a tie.

    `penalty` is λ of (12); `streams` a number to use instead of the best. Returns the number of streams, the stream of
    each client, (m,), and the silhouettes s_k of k = 1..m, NaN where k was not tried.
    """
    from scipy.cluster.hierarchy import cut_tree, linkage  # imported here because these are slow
    from scipy.spatial.distance import pdist, squareform

    rows = as_array(W)
    m = len(rows)
    offset = rows - rows.mean(0)
    scale = np.abs(offset).max()
    points = np.round(offset / scale, 6) if scale > 1e-9 else 0 * rows  # so that rounding errors decide nothing
    distinct = len(np.unique(points, axis=0))
    cuts = cut_tree(linkage(pdist(points), "ward")) if m > 1 else None  # column j has m − j clusters
    distances = squareform(pdist(rows))

    def labels(k: int) -> Array:
        if k == m:
            return np.arange(m)
        k = min(k, distinct)
        assert cuts is not None
        found = k_means(points, cuts[:, m - k], k)
        order = np.argsort(np.unique(found, return_index=True)[1])  # number streams by their first client
        return np.asarray(np.argsort(order)[found])

    curve = np.full(m, np.nan)
    curve[[0, m - 1]] = 0.0
    k = 2
    while k < m:
        curve[k - 1] = silhouette(distances, labels(k)) if k <= distinct else 0.0
        k += k // 20 if k > TRY_EACH_UP_TO else 1
    best = int(np.nanargmax(curve - penalty * np.arange(1, m + 1))) + 1 if streams is None else streams
    return best, labels(best), curve


def k_means(points: Array, labels: Array, k: int) -> Array:
    """Lloyd's algorithm from these k clusters, until they stay or their centres hardly move, as scikit-learn's."""

    def centres(labels: Array) -> Array:
        member = np.eye(k)[labels]
        return (member.T @ points) / member.sum(0)[:, None]

    now, before, least = centres(labels), labels, TOLERANCE * points.var(0).mean()
    for _ in range(MOST_STEPS):
        squares = np.square(now).sum(1) - 2 * points @ now.T  # without ‖x‖², which is the same for all centres
        found = squares.argmin(1)
        for empty in np.setdiff1d(np.arange(k), found):  # gets the point that is farthest from its centre
            alone = np.bincount(found, minlength=k)[found] == 1
            found[np.where(alone, -1.0, np.square(points - now[found]).sum(1)).argmax()] = empty
        if (found == before).all():
            break
        last, now, before = now, centres(found), found
        if np.square(now - last).sum() <= least:
            return np.asarray((np.square(now).sum(1) - 2 * points @ now.T).argmin(1))
    return found


def silhouette(distances: Array, labels: Array) -> float:
    """The mean of (b − a) / max(a, b): a point's mean distances within its cluster and to the nearest other one.

    0 for a point that is alone. `distances` is (m, m), `labels` are 0 to k − 1, k > 1.
    """
    each = np.arange(len(labels))
    sizes = np.bincount(labels)
    starts = sizes.cumsum() - sizes
    sums = np.add.reduceat(distances[:, np.argsort(labels, kind="stable")], starts, axis=1)
    own = sizes[labels]
    inside = sums[each, labels] / np.maximum(own - 1, 1)
    means = sums / sizes
    means[each, labels] = np.inf
    outside = means.min(1)
    larger = np.maximum(inside, outside)
    found = np.where((own > 1) & (larger > 0), (outside - inside) / np.where(larger > 0, larger, 1), 0.0)
    return float(found.mean())
