"""Who learns from whom, as a map: clients that share a model, or resemble each other, stand together."""

from typing import Any

import numpy as np

from bespokefl.report.figures import Figure

TITLE = "Who learns from whom"
MOST_MAPPED = 400  # clients on a map: more cannot be told apart, and make the page large


def collaboration_map(key: str, weights: np.ndarray, groups: np.ndarray, true_groups: Any, words: str) -> Figure:
    """Weights, (clients, clients), row i of client i; clients of a group in one frame."""
    num = len(weights)
    if num > MOST_MAPPED:
        return Figure("heat", key, TITLE, "", "", missing=f"{num} clients are too many for a map.")
    order = _ordered(weights, groups)
    data = {
        "order": order.tolist(),
        "weights": (weights[np.ix_(order, order)] * 1e4).round().astype(int).tolist(),
        "bounds": [k for k in range(1, num) if groups[order[k]] != groups[order[k - 1]]] if shared(groups) else [],
        "streams": groups[order].tolist(),
        "groups": true_groups,
    }
    label = f"Map of the weights that {num} clients give to each other."
    return Figure("heat", key, TITLE, words, label, data=data, half=True)


def shared(groups: np.ndarray) -> bool:
    """Whether any two clients are in one group."""
    return len(np.unique(groups)) < len(groups)


def _ordered(weights: np.ndarray, groups: np.ndarray) -> np.ndarray:
    """Clients of a group together, and within it those that resemble each other."""
    order = np.arange(len(weights))
    if len(weights) > 2:
        from scipy.cluster.hierarchy import leaves_list, linkage  # here, because it takes a while to import

        order = np.array(leaves_list(linkage(np.sqrt(np.nan_to_num(weights)), "average")))
    return order[np.argsort(groups[order], kind="stable")] if shared(groups) else order
