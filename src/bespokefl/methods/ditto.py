"""Ditto: each client trains a personal model that a proximal term keeps close to the global one.

Li et al., ICML 2021, arXiv:2012.04221, Algorithm 1.
    min_v F_k(v) + (λ/2) ‖v − w*‖²
Differs from the paper: both models see the same batches; a client that never trained uses the initial weights.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from bespokefl.core.local_sgd import Penalty, local_sgd
from bespokefl.core.method import CohortData, Message, Method, Round, Rows, State, Task, Update, Uploads
from bespokefl.core.uploads import Declarations, Weights
from bespokefl.core.user_input.hyper_parameters import at_least


@dataclass(frozen=True, kw_only=True)
class Ditto(Method):
    """Each client trains a personal model that is regularized towards the global model."""

    name = "ditto"
    limits = {"prox_weight": at_least(0, "λ")}
    former_names = {"pull": "prox_weight"}

    # Learning rate and λ are those of github.com/litian96/ditto for Fashion MNIST, run_fashion_clean_ditto_lam1.sh,
    # which uses one rate for both models. In the paper clients choose λ among .1, 1 and 2 on validation data, or use 1
    # if they have few of them.
    lr: float = 0.05  # η_g, for the global model
    personal_lr: float = 0.05  # η
    prox_weight: float = 1.0  # λ; 0 is Local
    momentum: float = 0.0
    weight_decay: float = 0.0
    weights: str = "examples"  # n_k / n, or "equal"

    def start_clients(self, start: Rows, cohort: Sequence[str]) -> State:
        return {"personal": start.expand(len(cohort))}

    def local_update(self, task: Task, message: Message, state: State, data: CohortData, round: Round) -> Update:
        w: Rows = message["weights"]  # w^t
        trained = local_sgd(task.gradient, w, data, self.lr, **self.sgd)
        return {"weights": trained}, {"personal": self._personalize(task, state["personal"], w, data)}

    def upload(self, message: Message) -> Declarations:
        return {"weights": Weights()}

    def aggregate(self, server: State, uploads: Uploads, round: Round) -> State:
        return {"weights": uploads.mean("weights", by=self.weights)}  # Σ n_k/n w_k

    def personal(self, task: Task, message: Message, state: State, data: CohortData) -> Rows:
        return state["personal"]

    def newcomer(self, task: Task, server: State, data: CohortData) -> Rows:
        w = server["weights"]
        return self._personalize(task, w, w, data, steps=data.num_steps() * data.expected_rounds)

    def _personalize(self, task: Task, start: Rows, w: Rows, data: CohortData, steps: Tensor | None = None) -> Rows:
        proximal = Penalty(self.prox_weight, w)  # (λ/2) ‖v − w^t‖²
        return local_sgd(task.gradient, start, data, self.personal_lr, steps=steps, penalty=proximal, **self.sgd)
