"""IFCA: there are several cluster models, and each client trains and uses the one that fits its training data best.

Ghosh et al., NeurIPS 2020, arXiv:2006.04088, Algorithm 1, option II (model averaging).
    j_k = argmin_j F_k(θ_j),   θ_j ← mean of the models of the clients that chose j
Differs from the paper:
- The first model starts at the run's initial weights, the others at the same numbers shuffled within every layer, which
  is equivalent to a new draw. With a warm start they start at the given weights plus noise of a tenth of their size.
- There is one initialization; the paper tries several and keeps the best. A model that no client chose is unchanged.
- F_k is the loss over all of a client's training data. Clients are weighted by examples, or equally (`weights`).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from bespokefl.core.local_sgd import local_sgd
from bespokefl.core.method import CohortData, Message, Method, Round, Rows, State, Task, Update, Uploads
from bespokefl.core.uploads import Choice, Declarations, Weights
from bespokefl.core.user_input.hyper_parameters import at_least

NOISE_SCALE = 0.1  # in units of a layer's standard deviation; separates models that start at given weights


@dataclass(frozen=True, kw_only=True)
class IFCA(Method):
    """Several cluster models; each client trains the one with the lowest loss on its training data."""

    name = "ifca"
    limits = {"clusters": at_least(1, "p")}

    # lr and clusters are those of github.com/jichan3751/ifca, mnist/config.json, where a round is 10 full-batch steps.
    lr: float = 0.1  # γ
    clusters: int = 4  # p; 1 is FedAvg
    momentum: float = 0.0
    weight_decay: float = 0.0
    weights: str = "examples"  # within a cluster: n_k / n, or "equal"

    def start_server(self, start: Rows, round: Round) -> State:
        rng = round.generator("ifca")
        other = nearby if round.warm else shuffled
        return {"models": Rows.cat([start, *(other(start, rng) for _ in range(1, self.clusters))])}

    def message(self, server: State, cohort: Sequence[int], round: Round) -> Message:
        models: Rows = server["models"]  # sent one by one, as a shared value is a single row
        return Message(shared={f"model {j}": models[j : j + 1] for j in range(len(models))})

    def local_update(self, task: Task, message: Message, state: State, data: CohortData, round: Round) -> Update:
        start, cluster = self._best(task, message, data)  # θ_{j_k}, j_k
        data.note(cluster=cluster)
        trained = local_sgd(task.gradient, start, data, self.lr, **self.sgd)
        return {"weights": trained, "cluster": cluster}, state

    def upload(self, message: Message) -> Declarations:
        return {"weights": Weights(), "cluster": Choice(self.clusters)}

    def aggregate(self, server: State, uploads: Uploads, round: Round) -> State:
        models, cluster = server["models"], uploads["cluster"]
        for j in cluster.unique().tolist():
            inside = uploads.shares(self.weights) * (cluster == j)
            models = models.replace([j], uploads.mean("weights", by=inside))
        round.note(sizes=cluster.bincount(minlength=len(models)))
        return {"models": models}

    def personal(self, task: Task, message: Message, state: State, data: CohortData) -> Rows:
        return self._best(task, message, data)[0]

    def newcomer(self, task: Task, server: State, data: CohortData) -> Rows:
        models: Rows = server["models"]
        return models[task.best_fit([models[j : j + 1] for j in range(len(models))], data.sweep("train"))]

    def _best(self, task: Task, message: Message, data: CohortData) -> tuple[Rows, Tensor]:
        """Each client's best model, and its number."""
        models: list[Rows] = [message[f"model {j}"] for j in range(self.clusters)]
        cluster = task.best_fit(models, data.sweep("train"))
        found = models[0].expand(len(data))
        for j, model in enumerate(models):
            found = found.replace(cluster == j, model.expand(len(data))[cluster == j])
        return found, cluster


def shuffled(start: Rows, rng: np.random.Generator) -> Rows:
    """The same weights, shuffled within each layer."""
    orders = [torch.from_numpy(rng.permutation(size)).to(start.device) for size in start.layout.sizes]
    blocks = [block.flatten()[order].reshape(block.shape) for block, order in zip(start.blocks, orders, strict=True)]
    return Rows(start.layout, blocks).with_statistics(start)


def nearby(start: Rows, rng: np.random.Generator) -> Rows:
    """The same weights plus noise in proportion to each layer's standard deviation."""
    noise = torch.from_numpy(rng.standard_normal((1, start.layout.width))).to(device=start.device, dtype=start.dtype)
    scale = start.map(lambda block: torch.full_like(block, NOISE_SCALE * float(block.std(correction=0))))
    return (start + scale * Rows.from_matrix(start.layout, noise)).with_statistics(start)
