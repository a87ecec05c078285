"""Clusters of clients in Self-FL (G.4): the server keeps the latest model and the variance of each cluster."""

import math

import torch
from torch import Tensor

from bespokefl.core.method import Round, Rows, State, Uploads
from bespokefl.methods.selffl.uncertainty import filled, shares


def start_clusters(start: Rows, num: int) -> State:
    """The server's entries for this many clusters before the first round."""
    return {
        "cluster_weights": start.expand(num),  # the latest model of each
        "cluster_variances": torch.full((num,), math.nan, dtype=torch.float64),
        "cluster_seen": torch.zeros(num, dtype=torch.bool),
    }


def aggregate_clusters(server: State, uploads: Uploads, name: str, num: int, round: Round) -> State:
    """(11) within each cluster: the new models and variances of the clusters of active clients."""
    known, variance = server["variances"], uploads["variance"]
    labels = ranked(known, num) if round.groups is None else torch.tensor(round.groups).unique(return_inverse=True)[1]
    labels = labels[list(uploads.clients)]
    rows, variances, seen = (server[f"cluster_{what}"].clone() for what in ("weights", "variances", "seen"))
    for cluster in labels.unique().tolist():
        inside = shares(variance, known, server["between"]) * (labels == cluster)
        rows = rows.replace([cluster], uploads.mean(name, by=inside))
        variances[cluster] = (inside * filled(variance, known)).sum() / inside.sum()
        seen[cluster] = True
    return {"cluster_weights": rows, "cluster_variances": variances, "cluster_seen": seen}


def mean_of_clusters(server: State) -> Rows:
    """(11) across the clusters that have a model."""
    seen, variance = server["cluster_seen"], server["cluster_variances"]
    mean: Rows = server["cluster_weights"][seen].mean(shares(variance, variance, server["between"])[seen])
    return mean


def ranked(variance: Tensor, num: int) -> Tensor:
    """A cluster for each client: equal shares of the ranks of known variances, undefined ones in the middle."""
    known = variance[~variance.isnan()].sort()[0]
    ranks = torch.searchsorted(known, filled(variance, variance))
    return (ranks * num // max(1, len(known))).clamp(max=num - 1)
