"""FedPer: clients share the base of the model and keep their own heads.

Arivazhagan et al., arXiv:1912.00818, Algorithms 1 and 2.
    base ← Σ_k (n_k / n) base_k,   head_k stays at client k; both are trained together.
Differs from the paper: all heads start with the same weights, not each with its own; a sample of the clients may take
part, not only all. The head is the model's last linear layer unless another is named; the paper also tries deeper ones.
A newcomer, which the paper does not discuss, trains a new head on the shared base.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from bespokefl.core.local_sgd import local_sgd
from bespokefl.core.method import CohortData, Message, Method, Round, Rows, State, Task, Update, Uploads
from bespokefl.core.nn.heads import train_head
from bespokefl.core.uploads import Declarations, Weights


@dataclass(frozen=True, kw_only=True)
class FedPer(Method):
    """A shared base and a personal head per client, trained jointly."""

    name = "fedper"

    # No code of the authors was found. Learning rate and momentum are those with which github.com/adap/flower,
    # baselines/fedper, reproduces the paper's figures.
    lr: float = 0.01  # η_j, the same for all clients and rounds
    momentum: float = 0.0
    weight_decay: float = 0.0
    weights: str = "examples"  # γ_j = n_j / n, the paper's, or "equal"

    def start_server(self, start: Rows, round: Round) -> State:
        return {"base": start.block("base")}

    def start_clients(self, start: Rows, cohort: Sequence[str]) -> State:
        return {"head": start.block("head").expand(len(cohort))}

    def message(self, server: State, cohort: Sequence[int], round: Round) -> Message:
        return Message(shared={"base": server["base"]})

    def local_update(self, task: Task, message: Message, state: State, data: CohortData, round: Round) -> Update:
        trained = local_sgd(task.gradient, self.personal(task, message, state, data), data, self.lr, **self.sgd)
        return {"base": trained.block("base")}, {"head": trained.block("head")}

    def upload(self, message: Message) -> Declarations:
        return {"base": Weights("base")}

    def aggregate(self, server: State, uploads: Uploads, round: Round) -> State:
        return {"base": uploads.mean("base", by=self.weights)}

    def personal(self, task: Task, message: Message, state: State, data: CohortData) -> Rows:
        return task.start.with_block(message["base"]).with_block(state["head"])

    def newcomer(self, task: Task, server: State, data: CohortData) -> Rows:
        base, head, steps = server["base"], task.start.block("head"), data.num_steps() * data.expected_rounds
        head = train_head(task, base, head, data, self.lr, steps=steps, **self.sgd)
        return task.start.with_block(base).with_block(head)
