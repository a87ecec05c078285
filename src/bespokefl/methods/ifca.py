"""IFCA: several common models; every client trains, and uses, the one that fits its training data best.

Ghosh et al., NeurIPS 2020, arXiv:2006.04088, Algorithm 1, model averaging.
    j_k = argmin_j F_k(θ_j),   θ_j ← mean of the models of the clients that chose j
Differs from the paper: the first model starts at the run's initial weights, the others at the same with noise of the
same size added; a cluster that nobody chose keeps its model.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from bespokefl.core.descend import descend
from bespokefl.core.errors import InputError
from bespokefl.core.method import Message, Method, Round, State, Uploads
from bespokefl.core.rows import Rows
from bespokefl.core.task import Task
from bespokefl.core.work import Work


@dataclass(frozen=True, kw_only=True)
class IFCA(Method):
    """Several common models; every client joins the one with the least training loss."""

    name: ClassVar[str] = "ifca"
    citation: ClassVar[str] = """@inproceedings{ghosh2020efficient,
  title={An Efficient Framework for Clustered Federated Learning},
  author={Ghosh, Avishek and Chung, Jichan and Yin, Dong and Ramchandran, Kannan},
  booktitle={NeurIPS},
  year={2020}
}"""

    lr: float = 0.05  # γ
    clusters: int = 4  # p; 1 is FedAvg
    momentum: float = 0.0
    weight_decay: float = 0.0
    weights: str = "examples"  # within a cluster: n_k / n, or "equal"

    def check(self) -> None:
        super().check()
        if self.clusters < 1:
            raise InputError(f"clusters must be >= 1, got {self.clusters} (IFCA's number of models).")

    def start_server(self, start: Rows, round: Round) -> State:
        rng = round.generator("ifca")
        models = [start]
        for _ in range(1, self.clusters):
            scale = start.map(lambda block: torch.full_like(block, float(block.std(correction=0))))
            noise = torch.from_numpy(rng.standard_normal((1, start.layout.width))).to(start.dtype).to(start.device)
            models.append(start + scale * Rows.from_matrix(start.layout, noise))
        return {"models": Rows.cat(models)}

    def message(self, server: State, cohort: Sequence[int], round: Round) -> Message:
        return Message(shared={"models": server["models"]})

    def local_update(self, task: Task, message: Message, state: State, work: Work, round: Round) -> tuple[State, State]:
        models = message["models"]
        cluster = best_fit(task, models, work)  # j_k
        work.note(cluster=cluster)
        sgd: dict[str, Any] = {"momentum": self.momentum, "weight_decay": self.weight_decay}
        return {"weights": descend(task.gradient, models[cluster], work, self.lr, **sgd), "cluster": cluster}, state

    def aggregate(self, server: State, uploads: Uploads, round: Round) -> State:
        models, cluster = server["models"], uploads["cluster"]
        for j in cluster.unique().tolist():
            inside = uploads.shares(self.weights) * (cluster == j)
            models = models.replace([j], uploads.mean("weights", by=inside))
        return {"models": models}

    def personal(self, task: Task, message: Message, state: State, work: Work) -> Rows:
        models: Rows = message["models"]
        return models[best_fit(task, models, work)]

    def global_model(self, server: State) -> Rows | None:
        return None

    def newcomer(self, task: Task, server: State, work: Work) -> Rows:
        models: Rows = server["models"]
        return models[best_fit(task, models, work)]


def best_fit(task: Task, models: Rows, work: Work) -> Tensor:
    """Which of the models has the least loss on each client's training data, (K,)."""
    tried = work.repeat(len(models))
    losses = task.score(Rows.cat([models] * len(work)), tried.sweep("train"))["loss"]
    return losses.reshape(len(work), len(models)).argmin(1)
