"""CFL: a cluster whose clients pull apart is split in two, until those of a cluster agree.

Sattler et al., IEEE TNNLS 2020, arXiv:1910.01991, Algorithm 3.
    split a cluster if ‖mean Δ‖ < ε₁ and max ‖Δ‖ > ε₂, into the two parts whose largest cosine across is least
Differs from the paper: with partial participation a cluster is judged, and split, by its clients of the round; those
who are absent stay where they are. Updates are averaged without weights, as in the paper.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from scipy.cluster.hierarchy import fcluster, linkage
from torch import Tensor

from bespokefl.core.descend import descend
from bespokefl.core.errors import InputError
from bespokefl.core.method import Message, Method, Round, State, Uploads
from bespokefl.core.rows import Rows
from bespokefl.core.task import Task
from bespokefl.core.work import Work


@dataclass(frozen=True, kw_only=True)
class CFL(Method):
    """Clusters of clients, split where their updates disagree."""

    name: ClassVar[str] = "cfl"
    citation: ClassVar[str] = """@article{sattler2020clustered,
  title={Clustered Federated Learning: Model-Agnostic Distributed Multitask Optimization Under Privacy Constraints},
  author={Sattler, Felix and M{\\"u}ller, Klaus-Robert and Samek, Wojciech},
  journal={IEEE Transactions on Neural Networks and Learning Systems},
  year={2020}
}"""

    lr: float = 0.05  # η
    small: float = 0.4  # ε₁: the mean update is small, the cluster has converged
    large: float = 0.6  # ε₂: yet some client's update is large
    patience: int = 5  # rounds before the first split
    linkage: str = "single"  # the paper's bipartition; "complete" as in the authors' code
    momentum: float = 0.0

    def check(self) -> None:
        super().check()
        if self.linkage not in ("single", "complete"):
            raise InputError(f"linkage must be 'single' or 'complete', got {self.linkage!r}.")
        for name in ("small", "large"):
            if not getattr(self, name) > 0:
                raise InputError(f"{name} must be > 0, got {getattr(self, name)} (a threshold of CFL).")

    def start_server(self, start: Rows, round: Round) -> State:
        return {"models": start, "cluster": torch.zeros(len(round.names), dtype=torch.int64)}

    def message(self, server: State, cohort: Sequence[int], round: Round) -> Message:
        return Message(own={"weights": server["models"][server["cluster"][list(cohort)]]})

    def local_update(self, task: Task, message: Message, state: State, work: Work, round: Round) -> tuple[State, State]:
        start = message["weights"]
        trained = descend(task.gradient, start, work, self.lr, momentum=self.momentum)
        return {"change": trained - start}, state

    def aggregate(self, server: State, uploads: Uploads, round: Round) -> State:
        models, cluster, change = server["models"], server["cluster"].clone(), uploads["change"]
        clients = torch.tensor(uploads.clients)
        for c in range(len(server["models"])):
            inside = (cluster[clients] == c).nonzero().flatten()
            if not len(inside):
                continue
            own = change[inside]
            mean = own.mean()
            models = models.replace([c], models[c : c + 1] + mean)
            far = float(mean.square_norm().sqrt()) < self.small and float(own.square_norm().max().sqrt()) > self.large
            if round.number > self.patience and len(inside) > 2 and far:
                apart = bipartition(similarity(own), self.linkage)
                cluster[clients[inside[apart]]] = len(models)
                models = Rows.cat([models, models[c : c + 1]])
        round.note(cluster=cluster, clusters=len(models))
        return {"models": models, "cluster": cluster}

    def global_model(self, server: State) -> Rows | None:
        return None

    def newcomer(self, task: Task, server: State, work: Work) -> Rows:
        models: Rows = server["models"]
        tried = work.repeat(len(models))
        losses = task.score(Rows.cat([models] * len(work)), tried.sweep("train"))["loss"]
        return models[losses.reshape(len(work), len(models)).argmin(1)]


def similarity(change: Rows) -> Tensor:
    """Cosines between the clients' updates, (K, K)."""
    flat = change.matrix().double()
    unit = flat / flat.norm(dim=1, keepdim=True).clamp(min=1e-12)
    cosine: Tensor = unit @ unit.T
    return cosine


def bipartition(cosine: Tensor, method: str = "single") -> Tensor:
    """Two parts, as a mask of the second: those whose largest cosine across is the least (single linkage on −cos)."""
    distance = 1 - cosine.cpu().numpy()
    pairs = distance[np.triu_indices(len(distance), 1)]
    part: Any = fcluster(linkage(pairs, method), 2, criterion="maxclust")
    return torch.from_numpy(part != part[0])
