"""FedAvg: the server averages the models that clients train from the current global model.

McMahan et al., AISTATS 2017, arXiv:1602.05629, Algorithm 1.
    w^{t+1} = Σ_k (n_k / n) w_k^{t+1}
Differs from the paper: `weights="equal"` gives every client the same weight (the papers' FedAvg-e).
"""

from dataclasses import dataclass

from bespokefl.core.local_sgd import local_sgd
from bespokefl.core.method import CohortData, Message, Method, Round, Rows, State, Task, Update, Uploads
from bespokefl.core.uploads import Declarations, Weights


@dataclass(frozen=True, kw_only=True)
class FedAvg(Method):
    """One global model: the average of the models that clients train."""

    name = "fedavg"

    lr: float = 0.05  # η
    momentum: float = 0.0
    weight_decay: float = 0.0
    weights: str = "examples"  # n_k / n, or "equal"

    def local_update(self, task: Task, message: Message, state: State, data: CohortData, round: Round) -> Update:
        return {"weights": local_sgd(task.gradient, message["weights"], data, self.lr, **self.sgd)}, state

    def upload(self, message: Message) -> Declarations:
        return {"weights": Weights()}

    def aggregate(self, server: State, uploads: Uploads, round: Round) -> State:
        return {"weights": uploads.mean("weights", by=self.weights)}  # Σ n_k/n w_k

    def newcomer(self, task: Task, server: State, data: CohortData) -> Rows:
        return server["weights"]
