"""A map of the weights that clients give to each other's models, with similar clients next to each other."""

from typing import Any

import numpy as np

from bespokefl.report.figures import Figure, make_figure

MAX_CLIENTS = 400  # more are unreadable on a map and make the page large


def collaboration_map(
    key: str, weights: np.ndarray, groups: np.ndarray, true_groups: Any, *, text: str = "heat", frames: str
) -> Figure:
    """Return the figure; row i of `weights`, (clients, clients), belongs to client i, and frames mark `groups`."""
    num = len(weights)
    missing = f"{num} clients are too many for a map." if num > MAX_CLIENTS else ""
    data: dict[str, Any] = {}
    if not missing:
        order = _order(weights, groups)
        ordered = groups[order]
        data = {
            "order": order.tolist(),
            "weights": (weights[np.ix_(order, order)] * 1e4).round().astype(int).tolist(),
            "bounds": [k for k in range(1, num) if ordered[k] != ordered[k - 1]] if any_shared(groups) else [],
            "streams": ordered.tolist(),
            "groups": true_groups,
        }
    return make_figure("heat", key, {"num": str(num), "frames": frames}, text=text, data=data, missing=missing)


def any_shared(groups: np.ndarray) -> bool:
    """Return whether any two clients are in the same group."""
    return len(np.unique(groups)) < len(groups)


def _order(weights: np.ndarray, groups: np.ndarray) -> np.ndarray:
    """Return the clients ordered by group, and by similarity within a group."""
    order = np.arange(len(weights))
    if len(weights) > 2:
        from scipy.cluster.hierarchy import leaves_list, linkage  # imported here because it is slow

        order = np.array(leaves_list(linkage(np.sqrt(np.nan_to_num(weights)), "average")))
    return order[np.argsort(groups[order], kind="stable")] if any_shared(groups) else order
