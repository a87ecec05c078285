"""pFedMe: each personal model is the proximal point of the global model, which moves towards these points.

Dinh et al., NeurIPS 2020, arXiv:2006.08848, Algorithm 1.
    θ_i(w) = argmin_θ F_i(θ) + (λ/2) ‖θ − w‖²,   ∇ of the envelope: λ (w − θ_i(w))
    R times: K steps of θ ← θ − η_p (∇F(θ; b) + λ (θ − w)),   then w ← w − η λ (w − θ)
    server: w ← (1 − β) w + β mean(w_i)
Differs from the paper: R is the run's number of local steps, and K a number of steps instead of an accuracy ν. θ starts
each round at the received w and continues from step to step, as in the authors' code, but without its weight decay.
Running statistics of batch norm are those of the clients' batches, for w and θ, and are averaged whatever β is.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from bespokefl.core.cohort_data import Batch
from bespokefl.core.local_sgd import iterate
from bespokefl.core.method import ALL, CohortData, Message, Method, Phase, Round, Rows, State, Task, Update, Uploads
from bespokefl.core.uploads import Declarations, Weights
from bespokefl.core.user_input.hyper_parameters import above, at_least


@dataclass(frozen=True, kw_only=True)
class PFedMe(Method):
    """Each personal model is the proximal point of the global model (Moreau envelopes)."""

    name = "pfedme"
    limits = {"prox_weight": above(0, "λ"), "inner_steps": at_least(1, "K"), "mix": above(0, "β")}
    former_names = {"pull": "prox_weight"}

    # As in github.com/CharlieDinh/pFedMe, README.md, MNIST, neural network: 800 rounds of 20 steps on batches of 20.

    lr: float = 0.005  # η, for w
    personal_lr: float = 0.09  # η_p, for θ; .1 for logistic regression; η_p (λ + curvature) must stay below 2
    prox_weight: float = 15.0  # λ
    inner_steps: int = 5  # K
    mix: float = 1.0  # β; 2 when tuned
    weights: str = "equal"  # the paper's mean, or "examples"

    def phases(self, rounds: int) -> list[Phase]:
        return [Phase("train", rounds, trains=ALL)]  # all train, a sample reports

    def start_clients(self, start: Rows, cohort: Sequence[str]) -> State:
        return {"personal": start.expand(len(cohort))}

    def local_update(self, task: Task, message: Message, state: State, data: CohortData, round: Round) -> Update:
        w, theta = self._train(task, message["weights"], data)
        return {"weights": w}, {"personal": theta}

    def upload(self, message: Message) -> Declarations:
        return {"weights": Weights()}

    def aggregate(self, server: State, uploads: Uploads, round: Round) -> State:
        mean = uploads.mean("weights", by=self.weights)
        mixed = server["weights"] * (1 - self.mix) + mean * self.mix
        return {"weights": mixed.with_statistics(mean)}

    def personal(self, task: Task, message: Message, state: State, data: CohortData) -> Rows:
        return state["personal"]  # θ_i, not w_i

    def newcomer(self, task: Task, server: State, data: CohortData) -> Rows:
        return self._train(task, server["weights"], data)[1]  # every round starts at w again, so one is enough

    def _train(self, task: Task, w: Rows, data: CohortData) -> tuple[Rows, Rows]:
        """w and θ after a client's local steps."""

        def step(w: Rows, theta: Rows, batch: Batch) -> tuple[Rows, Rows]:
            for _ in range(self.inner_steps):
                slope = task.gradient(theta, batch)  # of F; θ − η_p (∇F + λ (θ − w)):
                theta = theta.toward(w, self.personal_lr * self.prox_weight).plus(slope, -self.personal_lr)
            return w.toward(theta, self.lr * self.prox_weight), theta

        return iterate(step, (w, w), data)
