"""Streams of UCFL: groups of clients that share one model, by k-means on the rows of W (§IV-B, Algorithm 2)."""

import numpy as np
from scipy.cluster.hierarchy import cut_tree, linkage
from scipy.spatial.distance import pdist, squareform

from bespokefl.methods.ucfl.similarity import Array, Matrix, as_array

TRY_EACH_UP_TO = 100  # numbers of streams; larger numbers are tried in steps of 5 %


def choose_streams(W: Matrix, penalty: float = 0.0, streams: int | None = None) -> tuple[int, Array, Array]:
    """Choose the number of streams: k = argmax s_k − penalty · k (12), the smallest on a tie.

    Parameters
    ----------
    W : matrix
        The collaboration matrix, (m, m).
    penalty : float
        λ of (12).
    streams : int or None
        The number of streams, to use instead of the best.

    Returns
    -------
    k : int
        The number of streams.
    labels : array
        The stream of each client, (m,).
    curve : array
        The silhouettes s_k of k = 1..m; NaN where k was not tried.
    """
    from sklearn.cluster import KMeans  # here, because it takes a second to import
    from sklearn.metrics import silhouette_samples

    rows = as_array(W)
    m = len(rows)
    offset = rows - rows.mean(0)
    scale = np.abs(offset).max()
    points = np.round(offset / scale, 6) if scale > 1e-9 else 0 * rows  # so that rounding errors decide nothing
    distinct = len(np.unique(points, axis=0))
    tree = linkage(pdist(points), "ward") if m > 1 else None
    distances = squareform(pdist(rows))

    def labels(k: int) -> Array:
        if k == m:
            return np.arange(m)
        k = min(k, distinct)
        ward = cut_tree(tree, k)[:, 0]
        centres = np.stack([points[ward == c].mean(0) for c in range(k)])
        found = KMeans(k, init=centres, n_init=1).fit(points).labels_
        order = np.argsort(np.unique(found, return_index=True)[1])  # number streams by their first client
        return np.asarray(np.argsort(order)[found])

    def silhouette(labels: Array) -> float:
        return float(silhouette_samples(distances, labels, metric="precomputed").mean())

    curve = np.full(m, np.nan)
    curve[[0, m - 1]] = 0.0
    k = 2
    while k < m:
        curve[k - 1] = silhouette(labels(k)) if k <= distinct else 0.0
        k += k // 20 if k > TRY_EACH_UP_TO else 1
    best = int(np.nanargmax(curve - penalty * np.arange(1, m + 1))) + 1 if streams is None else streams
    return best, labels(best), curve
