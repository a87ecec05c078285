"""FedAvg with fine-tuning: every client trains the global model on its own data before it uses it.

McMahan et al., AISTATS 2017, for the global model w; Wang et al., arXiv:1910.10252, for the fine-tuning.
    w ← Σ_k (n_k / n) w_k,   v_k = SGD(w, F_k) on the training data of client k
Differs from the paper: learning rate and epochs of the fine-tuning are hyper-parameters, to be tuned as the paper does;
batch size, momentum and weight decay are those of the training. A client always uses the fine-tuned model.
"""

from dataclasses import dataclass

from bespokefl.core.local_sgd import local_sgd
from bespokefl.core.method import CohortData, Message, Method, Round, Rows, State, Task, Update, Uploads
from bespokefl.core.uploads import Declarations, Weights
from bespokefl.core.user_input.hyper_parameters import at_least


@dataclass(frozen=True, kw_only=True)
class FedAvgFT(Method):
    """FedAvg, then each client fine-tunes the global model on its own data."""

    name = "fedavg-ft"
    limits = {"tune_epochs": at_least(1)}

    lr: float = 0.05  # η
    tune_lr: float = 0.05  # of the fine-tuning
    tune_epochs: int = 5  # of the fine-tuning
    momentum: float = 0.0
    weight_decay: float = 0.0
    weights: str = "examples"  # n_k / n, or "equal"

    def local_update(self, task: Task, message: Message, state: State, data: CohortData, round: Round) -> Update:
        return {"weights": local_sgd(task.gradient, message["weights"], data, self.lr, **self.sgd)}, state

    def upload(self, message: Message) -> Declarations:
        return {"weights": Weights()}

    def aggregate(self, server: State, uploads: Uploads, round: Round) -> State:
        return {"weights": uploads.mean("weights", by=self.weights)}  # Σ n_k/n w_k

    def personal(self, task: Task, message: Message, state: State, data: CohortData) -> Rows:
        return self._tuned(task, message["weights"], data)

    def newcomer(self, task: Task, server: State, data: CohortData) -> Rows:
        return self._tuned(task, server["weights"], data)

    def _tuned(self, task: Task, w: Rows, data: CohortData) -> Rows:
        return local_sgd(task.gradient, w, data, self.tune_lr, epochs=self.tune_epochs, purpose="tune", **self.sgd)
