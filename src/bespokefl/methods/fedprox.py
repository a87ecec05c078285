"""FedProx: FedAvg with a proximal term that keeps clients close to the global model while they train.

Li et al., MLSys 2020, arXiv:1812.06127, Algorithm 2.
    min_w F_k(w) + (μ/2) ‖w − w^t‖²
Differs from the paper: the local problem is solved by the run's fixed number of SGD steps, not to a γ-inexact optimum;
`weights` chooses between the paper's n_k weights and equal ones.
"""

from dataclasses import dataclass

from bespokefl.core.local_sgd import Penalty, local_sgd
from bespokefl.core.method import CohortData, Message, Method, Round, Rows, State, Task, Update, Uploads
from bespokefl.core.uploads import Declarations, Weights
from bespokefl.core.user_input.hyper_parameters import at_least


@dataclass(frozen=True, kw_only=True)
class FedProx(Method):
    """FedAvg with a proximal term that keeps local training close to the global model."""

    name = "fedprox"
    limits = {"prox_weight": at_least(0, "μ")}
    former_names = {"pull": "prox_weight"}

    # The authors recommend no values for all problems (github.com/litian96/FedProx, README.md): tune the rate, and μ
    # among .001, .01, .1, .5 and 1. Here μ is the middle one and η is FedAvg's. See the docs for MNIST's.
    lr: float = 0.05  # η
    prox_weight: float = 0.1  # μ; 0 is FedAvg
    momentum: float = 0.0
    weight_decay: float = 0.0
    weights: str = "examples"  # n_k / n, or "equal"

    def local_update(self, task: Task, message: Message, state: State, data: CohortData, round: Round) -> Update:
        start: Rows = message["weights"]  # w^t
        proximal = Penalty(self.prox_weight, start)  # (μ/2) ‖w − w^t‖²
        return {"weights": local_sgd(task.gradient, start, data, self.lr, penalty=proximal, **self.sgd)}, state

    def upload(self, message: Message) -> Declarations:
        return {"weights": Weights()}

    def aggregate(self, server: State, uploads: Uploads, round: Round) -> State:
        return {"weights": uploads.mean("weights", by=self.weights)}

    def newcomer(self, task: Task, server: State, data: CohortData) -> Rows:
        return server["weights"]
