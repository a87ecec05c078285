"""FedAvg with fine-tuning: the common model, trained on by every client on its own data before use.

McMahan et al., AISTATS 2017, for the common model w; Wang et al., arXiv:1910.10252, for what clients do with it.
    w ← Σ_k (n_k / n) w_k,   v_k = SGD(w, F_k) on the training data of client k
Differs from the paper: rate and epochs of the fine-tuning are hyper-parameters, to be searched for as the paper does;
batch size, momentum and weight decay are those of the training. A client uses the tuned model, better or not.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

from bespokefl.core.cohort_data import CohortData
from bespokefl.core.errors import InputError
from bespokefl.core.local_sgd import local_sgd
from bespokefl.core.method import Message, Method, Round, State, Update, Uploads
from bespokefl.core.rows import Rows
from bespokefl.core.task import Task


@dataclass(frozen=True, kw_only=True)
class FedAvgFT(Method):
    """FedAvg, then every client fine-tunes the common model on its own data."""

    name: ClassVar[str] = "fedavg-ft"
    citation: ClassVar[str] = """@article{wang2019federated,
  title={Federated Evaluation of On-device Personalization},
  author={Wang, Kangkang and Mathews, Rajiv and Kiddon, Chlo{\\'e} and Eichner, Hubert and Beaufays, Fran{\\c{c}}oise
    and Ramage, Daniel},
  journal={arXiv:1910.10252},
  year={2019}
}"""

    lr: float = 0.05  # η
    tune_lr: float = 0.05  # of the fine-tuning
    tune_epochs: int = 5  # passes over its data before a client uses the model
    momentum: float = 0.0
    weight_decay: float = 0.0
    weights: str = "examples"  # n_k / n, or "equal"

    def check(self) -> None:
        super().check()
        if self.tune_epochs < 1:
            raise InputError(f"tune_epochs must be >= 1, got {self.tune_epochs}; without fine-tuning it is fedavg.")

    def local_update(self, task: Task, message: Message, state: State, data: CohortData, round: Round) -> Update:
        trained = local_sgd(task.gradient, message["weights"], data, self.lr, **self._sgd())
        return {"weights": trained}, state

    def upload(self, start: Rows, server: State, round: Round) -> State:
        return {"weights": start}

    def aggregate(self, server: State, uploads: Uploads, round: Round) -> State:
        return {"weights": uploads.mean("weights", by=self.weights)}  # Σ n_k/n w_k

    def personal(self, task: Task, message: Message, state: State, data: CohortData) -> Rows:
        return self._tuned(task, message["weights"], data)

    def newcomer(self, task: Task, server: State, data: CohortData) -> Rows:
        return self._tuned(task, server["weights"], data)

    def _tuned(self, task: Task, w: Rows, data: CohortData) -> Rows:
        return local_sgd(task.gradient, w, data, self.tune_lr, epochs=self.tune_epochs, purpose="tune", **self._sgd())

    def _sgd(self) -> dict[str, Any]:
        return {"momentum": self.momentum, "weight_decay": self.weight_decay}
