"""Oracle: FedAvg within the true groups of clients, an upper bound for methods that have to find them.

A baseline of Mestoukirdi et al. (User-Centric FL). It needs a split that knows the groups.
    θ_g ← Σ_{k in g} (n_k / n_g) θ_k
Differs from the paper: nothing known. A group without active clients keeps its model. A newcomer, whose group is
unknown, gets the group model that fits its training data best.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from bespokefl.core.errors import InputError
from bespokefl.core.local_sgd import local_sgd
from bespokefl.core.method import CohortData, Message, Method, Round, Rows, State, Task, Update, Uploads
from bespokefl.core.uploads import Declarations, Weights


@dataclass(frozen=True, kw_only=True)
class Oracle(Method):
    """FedAvg within the true groups of clients; needs a split that knows them."""

    name = "oracle"

    lr: float = 0.05  # η
    momentum: float = 0.0
    weight_decay: float = 0.0
    weights: str = "examples"  # within a group: n_k / n, or "equal"

    @property
    def needs_groups(self) -> bool:
        return True

    def start_server(self, start: Rows, round: Round) -> State:
        return {"models": start.expand(int(labels(round).max()) + 1)}

    def message(self, server: State, cohort: Sequence[int], round: Round) -> Message:
        group = labels(round)[list(cohort)]
        return Message(own={"weights": server["models"][group]}, stream=group)

    def local_update(self, task: Task, message: Message, state: State, data: CohortData, round: Round) -> Update:
        return {"weights": local_sgd(task.gradient, message["weights"], data, self.lr, **self.sgd)}, state

    def upload(self, message: Message) -> Declarations:
        return {"weights": Weights()}

    def aggregate(self, server: State, uploads: Uploads, round: Round) -> State:
        models, group = server["models"].clone(), labels(round)[list(uploads.clients)]
        for g in group.unique().tolist():
            models = models.replace([g], uploads.mean("weights", by=uploads.shares(self.weights) * (group == g)))
        return {"models": models}

    def newcomer(self, task: Task, server: State, data: CohortData) -> Rows:
        models: Rows = server["models"]
        return models[task.best_fit([models[g : g + 1] for g in range(len(models))], data.sweep("train"))]


def labels(round: Round) -> Tensor:
    """The group of each client, numbered from 0."""
    if round.groups is None:
        raise InputError("oracle needs a split that knows the clients' true groups; this one does not.")
    return torch.tensor(round.groups).unique(return_inverse=True)[1]
