"""CFL: a cluster whose clients pull apart is split in two, until those of a cluster agree.

Sattler et al., IEEE TNNLS 2021, arXiv:1910.01991, Algorithm 3.
    split a cluster if ‖mean Δ‖ < ε₁ and max ‖Δ‖ > ε₂, into the two parts whose largest cosine across is least,
    and only if that is below 1 − 2γ²
Differs from the paper:
- ε₁ and ε₂ are shares of the clients' mean ‖Δ‖ in the first round, so that they fit any rate, budget and model; with
  `relative=False` they are lengths, as in the paper, to be found for each problem (.4 and 1.6 in the authors' code).
- γ bounds the noise of the clients' updates, which nobody knows: 1 − 2γ² is a parameter, `across`. As in the authors'
  code no cluster of fewer than three is split, nor any in the first rounds.
- In the round of a split both parts still move by their common mean.
- With partial participation a cluster is judged, and split, by its clients of the round; who is absent stays with the
  part of the client that comes first in the federation.
- A newcomer gets the model that fits its training data best; the paper asks for an update and its cosines.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from scipy.cluster.hierarchy import cut_tree, linkage
from torch import Tensor

from bespokefl.core.cohort_data import CohortData
from bespokefl.core.errors import InputError
from bespokefl.core.local_sgd import local_sgd
from bespokefl.core.method import Message, Method, Round, State, Update, Uploads
from bespokefl.core.rows import Rows
from bespokefl.core.task import Task


@dataclass(frozen=True, kw_only=True)
class CFL(Method):
    """Clusters of clients, split where their updates disagree."""

    name: ClassVar[str] = "cfl"
    citation: ClassVar[str] = """@article{sattler2020clustered,
  title={Clustered Federated Learning: Model-Agnostic Distributed Multitask Optimization Under Privacy Constraints},
  author={Sattler, Felix and M{\\"u}ller, Klaus-Robert and Samek, Wojciech},
  journal={IEEE Transactions on Neural Networks and Learning Systems},
  volume={32},
  number={8},
  pages={3710--3722},
  year={2021}
}"""

    # The rate is that of the authors' notebook (github.com/felisat/clustered-federated-learning, in others' copies).
    # Its thresholds are not here, nor its momentum of .9, with which planted groups are not told apart: see the docs.
    lr: float = 0.1  # η
    small: float = 0.5  # ε₁: the mean update is small, the cluster has converged
    large: float = 1.2  # ε₂: yet some client's update is large
    across: float = 0.1  # 1 − 2γ²: a split in which clients of the two parts agree more than this is none; 1: any is
    relative: bool = True  # whether ε₁ and ε₂ are shares of a client's mean ‖Δ‖ in the first round, or lengths
    patience: int = 5  # rounds without a split; 20 in the authors' code: a run of 20 rounds would never split
    linkage: str = "single"  # the paper's bipartition; "complete" as in the authors' code
    momentum: float = 0.0
    weights: str = "equal"  # the paper's mean of a cluster; "examples": n_k / n

    def check(self) -> None:
        super().check()
        if self.linkage not in ("single", "complete"):
            raise InputError(f"linkage must be 'single' or 'complete', got {self.linkage!r}.")
        for name in ("small", "large"):
            if not getattr(self, name) > 0:
                raise InputError(f"{name} must be > 0, got {getattr(self, name)} (a threshold of CFL).")
        if not -1 <= self.across <= 1:
            raise InputError(f"across must be in [-1, 1], got {self.across} (CFL's 1 − 2γ², a cosine).")
        if self.patience < 0:
            raise InputError(f"patience must be >= 0, got {self.patience} (rounds without a split of CFL).")

    def start_server(self, start: Rows, round: Round) -> State:
        return {
            "models": start,
            "cluster": torch.zeros(len(round.names), dtype=torch.int64),  # of every client, by its place in round.names
            "unit": torch.tensor(0.0 if self.relative else 1.0, dtype=torch.float64),  # of ε₁ and ε₂; 0: not known yet
        }

    def message(self, server: State, cohort: Sequence[int], round: Round) -> Message:
        cluster = server["cluster"][list(cohort)]
        return Message(own={"weights": server["models"][cluster]}, stream=cluster)

    def local_update(self, task: Task, message: Message, state: State, data: CohortData, round: Round) -> Update:
        start = message["weights"]
        trained = local_sgd(task.gradient, start, data, self.lr, momentum=self.momentum)
        return {"change": trained - start}, state

    def upload(self, start: Rows, server: State, round: Round) -> State:
        return {"change": start}

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
            still = float(mean.square_norm().sqrt()) < self.small * unit
            if round.number > self.patience and len(inside) > 2 and still and length[inside].max() > self.large * unit:
                cosine = similarity(change[inside])
                apart = bipartition(cosine, self.linkage)
                if cosine[apart][:, ~apart].max() < self.across:
                    cluster[clients[inside[apart]]] = len(models)
                    models = Rows.cat([models, models[c : c + 1]])
        round.note(clusters=len(models))
        round.note_clients(cluster=cluster)
        return {"models": models, "cluster": cluster, "unit": unit}

    def global_model(self, server: State) -> Rows | None:
        return None

    def newcomer(self, task: Task, server: State, data: CohortData) -> Rows:
        models: Rows = server["models"]
        return models[task.best_fit([models[j : j + 1] for j in range(len(models))], data.sweep("train"))]


def similarity(change: Rows) -> Tensor:
    """Cosines between the clients' updates, (K, K)."""
    flat = change.matrix().double()
    unit = flat / flat.norm(dim=1, keepdim=True).clamp(min=1e-12)
    cosine: Tensor = unit @ unit.T
    return cosine


def bipartition(cosine: Tensor, method: str = "single") -> Tensor:
    """Two parts, as a mask of the one without the first: those whose largest cosine across is the least.

    Single linkage joins the most similar first, so the two parts that are left before the last join are just these.
    """
    distance = 1 - cosine.cpu().numpy()
    joined = linkage(distance[np.triu_indices(len(distance), 1)], method)
    part: Any = cut_tree(joined, n_clusters=2)[:, 0]  # fcluster would give one part where the last joins tie
    return torch.from_numpy(part != part[0])
