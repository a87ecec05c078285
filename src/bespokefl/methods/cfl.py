"""CFL: a cluster of clients is split in two whenever the updates of its clients disagree.

Sattler et al., IEEE TNNLS 2021, arXiv:1910.01991, Algorithm 3.
    split a cluster if ‖mean Δ‖ < ε₁ and max ‖Δ‖ > ε₂, into the two parts with the smallest maximal cosine between
    them, and only if that is below 1 − 2γ²
Differs from the paper:
- ε₁ and ε₂ are relative to the clients' mean ‖Δ‖ in the first round, so that they do not depend on learning rate,
  number of steps and model; with `relative=False` they are absolute, as in the paper (.4 and 1.6 in the authors' code).
- γ bounds the noise of the clients' updates, which is unknown: 1 − 2γ² is a parameter, `across`. As in the authors'
  code clusters of fewer than three clients are not split, and there are no splits in the first rounds.
- In the round of a split both parts still use the mean update of the whole cluster.
- With partial participation only the active clients decide about a split; inactive clients stay in the part of the
  active client that comes first in the federation.
- A newcomer gets the model that fits its training data best; the paper compares cosines of its update.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bespokefl.core.local_sgd import local_sgd
from bespokefl.core.method import CohortData, Message, Method, Round, Rows, State, Task, Update, Uploads
from bespokefl.core.uploads import Declarations, Reference, Weights
from bespokefl.core.user_input.hyper_parameters import above, at_least, interval, one_of


@dataclass(frozen=True, kw_only=True)
class CFL(Method):
    """Clusters of clients, each with its own model; a cluster splits when its updates disagree."""

    name = "cfl"
    limits = {
        "small": above(0, "ε₁"),
        "large": above(0, "ε₂"),
        "across": interval("[-1, 1]", "1 − 2γ²"),
        "patience": at_least(0),
        "linkage": one_of("single", "complete"),
    }

    # The learning rate is that of the authors' notebook (github.com/felisat/clustered-federated-learning, in others'
    # copies). Its thresholds are not used, nor its momentum of .9, with which planted groups are not found (see docs).
    lr: float = 0.1  # η
    small: float = 0.5  # ε₁: the cluster has converged if its mean update is smaller
    large: float = 1.2  # ε₂: and its clients disagree if some update is larger
    across: float = 0.1  # 1 − 2γ²: the largest cosine between the two parts of a split; 1 allows any split
    relative: bool = True  # whether ε₁ and ε₂ are relative to the mean ‖Δ‖ of the first round
    patience: int = 5  # first rounds without a split; 20 in the authors' code: a run of 20 rounds would never split
    linkage: str = "single"  # the paper's bipartition; "complete" as in the authors' code
    momentum: float = 0.0
    weights: str = "equal"  # the paper's mean of a cluster; "examples": n_k / n

    def start_server(self, start: Rows, round: Round) -> State:
        return {
            "models": start,
            "cluster": torch.zeros(len(round.names), dtype=torch.int64),  # of each client
            # The unit of ε₁ and ε₂; 0 before the first round.
            "unit": torch.tensor(0.0 if self.relative else 1.0, dtype=torch.float64),
        }

    def message(self, server: State, cohort: Sequence[int], round: Round) -> Message:
        cluster = server["cluster"][list(cohort)]
        return Message(own={"weights": server["models"][cluster]}, stream=cluster)

    def local_update(self, task: Task, message: Message, state: State, data: CohortData, round: Round) -> Update:
        start = message["weights"]
        return {"change": local_sgd(task.gradient, start, data, self.lr, **self.sgd) - start}, state

    def upload(self, message: Message) -> Declarations:
        return {"change": Weights(reference=Reference.ZERO, change_of="weights")}

    def aggregate(self, server: State, uploads: Uploads, round: Round) -> State:
        models, cluster, unit = server["models"], server["cluster"].clone(), server["unit"]
        change, clients, shares = uploads["change"], torch.tensor(uploads.clients), uploads.shares(self.weights)
        length = change.square_norm().double().sqrt().cpu()  # ‖Δ‖
        unit = length.mean() if unit == 0 else unit
        for c in range(len(server["models"])):
            inside = torch.tensor([at for at in clients.argsort().tolist() if server["cluster"][clients[at]] == c])
            if not len(inside):
                continue
            mean = change[inside].mean(shares[inside])
            models = models.replace([c], models[c : c + 1] + mean)
            converged = float(mean.square_norm().sqrt()) < self.small * unit
            if (
                round.number > self.patience
                and len(inside) > 2
                and converged
                and length[inside].max() > self.large * unit
            ):
                cosine = similarity(change[inside])
                apart = bipartition(cosine, self.linkage)
                if cosine[apart][:, ~apart].max() < self.across:
                    cluster[clients[inside[apart]]] = len(models)
                    models = Rows.cat([models, models[c : c + 1]])
        round.note(clusters=len(models))
        round.note_clients(cluster=cluster)
        return {"models": models, "cluster": cluster, "unit": unit}

    def newcomer(self, task: Task, server: State, data: CohortData) -> Rows:
        models: Rows = server["models"]
        return models[task.best_fit([models[j : j + 1] for j in range(len(models))], data.sweep("train"))]


def similarity(change: Rows) -> Tensor:
    """Cosines between the clients' updates, (K, K)."""
    flat = change.measured().matrix().double()
    unit = flat / flat.norm(dim=1, keepdim=True).clamp(min=1e-12)
    return (unit @ unit.T).cpu()


def bipartition(cosine: Tensor, method: str = "single") -> Tensor:
    """The two parts with the smallest maximal cosine between them, as a mask of the part without the first client.

    Single linkage merges the most similar clients first, so these are the two parts before the last merge.
    """
    from scipy.cluster.hierarchy import cut_tree, linkage  # imported here because it is slow

    distance = 1 - cosine.cpu().numpy()
    joined = linkage(distance[np.triu_indices(len(distance), 1)], method)
    part: Any = cut_tree(joined, n_clusters=2)[:, 0]  # fcluster would return one part if the last merges tie
    return torch.from_numpy(part != part[0])
