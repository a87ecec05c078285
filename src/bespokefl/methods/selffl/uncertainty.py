"""Local steps, aggregation weights and clusters of Self-FL, from the variances within and between clients."""

import math
from numbers import Real
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bespokefl.core.errors import InputError
from bespokefl.core.method import Round, Rows, State, Uploads

LEAST_VARIANCE = 1e-12  # of σ_0² + σ_m²


def local_steps(variance: Any, inverse_sum_others: Any, lr: float, batch_size: Any, max_steps: int) -> Tensor:
    """Local steps for σ_m² (NaN: undefined) and S₋ₘ (0: no known peers): (8), rounded, within 1..max_steps."""
    if max_steps < 1:
        raise InputError(f"max_steps must be >= 1, got {max_steps} (ℓ_max of Self-FL).")
    return rounded_steps(wanted_steps(variance, inverse_sum_others, lr, batch_size), max_steps)


def wanted_steps(variance: Any, inverse_sum_others: Any, lr: float, batch_size: Any) -> Tensor:
    """ℓ of (8), unrounded: NaN if σ_m² is undefined, infinite without known peers, 0 if one step overshoots."""
    own, others, size = (torch.as_tensor(v, dtype=torch.float64) for v in (variance, inverse_sum_others, batch_size))
    rate = lr / (size * own)
    steps = torch.where(rate < 1, torch.log1p(1 / (own * others)) / -torch.log1p(-rate), 0.0)
    return torch.where(own.isnan(), math.nan, torch.where(others > 0, steps, math.inf))


def rounded_steps(wanted: Tensor, max_steps: int) -> Tensor:
    """Steps as integers from 1 to `max_steps`, which undefined ones get."""
    return wanted.nan_to_num(nan=math.inf).round().clamp(1, max_steps).long()


def precision(variance: Tensor, between: Tensor) -> Tensor:
    """(σ_0² + σ_m²)⁻¹."""
    return 1 / (between + variance).clamp(min=LEAST_VARIANCE)


def sums_of_others(values: Tensor) -> Tensor:
    """Σ_{k≠m} values_k."""
    everybody = torch.arange(len(values))
    return sums_without(values, everybody, everybody)


def sums_without(values: Tensor, owners: Tensor, clients: Tensor) -> Tensor:
    """Σ_{k≠m} values_k for each of these clients m; `owners` are the clients of the values, ascending.

    They are summed from both ends: total − own would cancel if one client dominates.
    """
    own, k, m = values.numpy(), owners.numpy(), clients.numpy()  # numpy has less overhead
    before, after = (np.concatenate([np.zeros(1), np.cumsum(ends)]) for ends in (own, own[::-1]))
    return torch.from_numpy(before[np.searchsorted(k, m)] + after[len(k) - np.searchsorted(k, m, side="right")])


def filled(variance: Tensor, known: Tensor) -> Tensor:
    """Undefined variances replaced by the median of the known ones; NaN if there are none."""
    undefined = variance.isnan()
    if not undefined.any():
        return variance
    values = known[~known.isnan()]  # of many clients, few may have reported
    return torch.where(undefined, values.quantile(0.5) if len(values) else torch.nan, variance)


def shares(variance: Tensor, known: Tensor, between: Tensor) -> Tensor:
    """The weights of (11), up to a factor: equal if no variance is known."""
    return precision(filled(variance, known), between).nan_to_num(1.0)


def are_variances(pairs: Any) -> bool:
    """Whether these are pairs of a client's name and a variance."""
    try:
        found = [(name, value) for name, value in pairs]
    except (TypeError, ValueError):  # not pairs
        return False
    numbers = all(isinstance(value, Real) and not isinstance(value, bool) for _, value in found)
    return numbers and all(isinstance(name, str) and 0 <= value < math.inf for name, value in found)


def start_clusters(start: Rows, num: int) -> State:
    """The server's entries for this many clusters (G.4) before the first round."""
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
    return server["cluster_weights"][seen].mean(shares(variance, variance, server["between"])[seen])


def ranked(variance: Tensor, num: int) -> Tensor:
    """A cluster for each client: equal shares of the ranks of known variances, undefined ones in the middle."""
    known = variance[~variance.isnan()].sort()[0]
    ranks = torch.searchsorted(known, filled(variance, variance))
    return (ranks * num // max(1, len(known))).clamp(max=num - 1)
