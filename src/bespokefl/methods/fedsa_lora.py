"""FedSA-LoRA: of low-rank adapters W + (α/r) B A, the matrices A are averaged and the matrices B stay with each client.

Guo et al., ICLR 2025, arXiv:2410.01463, "Selective Aggregation for Low-Rank Adaptation in Federated Learning".
    A ← (1/K) Σ_k A_k,   B_k stays at client k; both are trained together.
Differs from the paper: a sample of the clients may take part, not only all. The head, if it is trained, stays local,
as the classifier in the authors' configuration for GLUE; other trained columns are averaged. Adapters have no dropout
(the authors': .05). A newcomer trains its B and head under the shared rest. A model without adapters is trained with a
local head, with a warning.
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
class FedSALoRA(Method):
    """Low-rank adapters: the matrices A are shared, the matrices B and the head stay with each client."""

    name = "fedsa-lora"

    # As in github.com/Pengxin-Guo/FedSA-LoRA, glue/yamls/fedsa-lora.yaml: 10 local steps on batches of 128.
    lr: float = 0.02  # η
    momentum: float = 0.0
    weight_decay: float = 0.0
    weights: str = "equal"  # the paper's mean, or "examples": n_k / n

    def start_server(self, start: Rows, round: Round) -> State:
        if not any(name.endswith("lora_B") for name in start.layout.names):
            log.warning("the model has no adapters, so that fedsa-lora is fedper")
        return {"shared": start.block(shared)}

    def start_clients(self, start: Rows, cohort: Sequence[str]) -> State:
        return {"own": start.block(own).expand(len(cohort))}

    def message(self, server: State, cohort: Sequence[int], round: Round) -> Message:
        return Message(shared={"shared": server["shared"]})

    def local_update(self, task: Task, message: Message, state: State, data: CohortData, round: Round) -> Update:
        trained = local_sgd(task.gradient, self.personal(task, message, state, data), data, self.lr, **self.sgd)
        return {"shared": trained.block(shared)}, {"own": trained.block(own)}

    def upload(self, message: Message) -> Declarations:
        return {"shared": Weights(shared)}

    def aggregate(self, server: State, uploads: Uploads, round: Round) -> State:
        return {"shared": uploads.mean("shared", by=self.weights)}

    def personal(self, task: Task, message: Message, state: State, data: CohortData) -> Rows:
        return task.start.with_block(message["shared"]).with_block(state["own"])

    def newcomer(self, task: Task, server: State, data: CohortData) -> Rows:
        rows, steps = task.start.with_block(server["shared"]), data.num_steps() * data.expected_rounds
        return local_sgd(task.gradient, rows, data, self.lr, steps=steps, frozen=shared, **self.sgd)


def own(layout: Layout) -> tuple[str, ...]:
    """The columns of B and of the head."""
    return tuple(name for name in layout.names if name.endswith("lora_B") or name in layout.head)


def shared(layout: Layout) -> tuple[str, ...]:
    """All other columns."""
    return tuple(name for name in layout.names if name not in own(layout))
