"""FedBN: FedAvg in which normalization layers, with their running statistics, stay with each client.

Li et al., ICLR 2021, arXiv:2102.07623, Algorithm 1.
    shared ← (1/K) Σ_k shared_k,   norm_k stays at client k; both are trained together.
Differs from the paper: a sample of the clients may take part, not only all. Group and layer norm stay local, too; the
paper has batch norm only. Without normalization layers this is FedAvg, with a warning. All clients' layers start with
the same weights. A newcomer trains its normalization layers alone, under the shared rest.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass

from bespokefl.core.local_sgd import local_sgd
from bespokefl.core.method import CohortData, Message, Method, Round, Rows, State, Task, Update, Uploads
from bespokefl.core.rows import Layout
from bespokefl.core.uploads import Declarations, Weights

log = logging.getLogger("bespokefl")


@dataclass(frozen=True, kw_only=True)
class FedBN(Method):
    """A shared model whose normalization layers, with their statistics, stay with each client."""

    name = "fedbn"

    # As in github.com/med-air/FedBN, federated/fed_digits.py, where a round is one epoch with batches of 32.
    lr: float = 0.01  # η
    momentum: float = 0.0
    weight_decay: float = 0.0
    weights: str = "equal"  # the paper's mean, or "examples": n_k / n

    def start_server(self, start: Rows, round: Round) -> State:
        if not start.layout.norm:
            log.warning("the model has no normalization layers, so that fedbn is fedavg")
        return {"shared": start.block(shared)}

    def start_clients(self, start: Rows, cohort: Sequence[str]) -> State:
        return {"norm": start.block(start.layout.norm).expand(len(cohort))}

    def message(self, server: State, cohort: Sequence[int], round: Round) -> Message:
        return Message(shared={"shared": server["shared"]})

    def local_update(self, task: Task, message: Message, state: State, data: CohortData, round: Round) -> Update:
        trained = local_sgd(task.gradient, self.personal(task, message, state, data), data, self.lr, **self.sgd)
        return {"shared": trained.block(shared)}, {"norm": trained.block(task.layout.norm)}

    def upload(self, message: Message) -> Declarations:
        return {"shared": Weights(shared)}

    def aggregate(self, server: State, uploads: Uploads, round: Round) -> State:
        return {"shared": uploads.mean("shared", by=self.weights)}

    def personal(self, task: Task, message: Message, state: State, data: CohortData) -> Rows:
        return task.start.with_block(message["shared"]).with_block(state["norm"])

    def newcomer(self, task: Task, server: State, data: CohortData) -> Rows:
        rows, steps = task.start.with_block(server["shared"]), data.num_steps() * data.expected_rounds
        return local_sgd(task.gradient, rows, data, self.lr, steps=steps, frozen=shared, **self.sgd)


def shared(layout: Layout) -> tuple[str, ...]:
    """The columns that belong to no normalization layer."""
    return tuple(name for name in layout.names if name not in layout.norm)
