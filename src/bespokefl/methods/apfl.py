"""APFL: the personal model is a mixture of a local and the global model, and the mixing weight is learned.

Deng et al., arXiv:2003.13461, Algorithm 1.
    v̄ = α v + (1 − α) w,   w ← w − η ∇F(w; b),   v ← v − η ∇_v F(v̄; b),   α ← α − η_α ⟨∇F(v̄; b), v − w⟩
Differs from the paper: α is updated once a round, at its first batch, as in the authors' code (without its decay of
.02 α), and kept in [0, 1]. A client is evaluated with the latest w; if it never trained, v is the initial weights.
Running statistics of batch norm in v are those of v̄'s batches.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from bespokefl.core.cohort_data import Batch
from bespokefl.core.local_sgd import iterate
from bespokefl.core.method import CohortData, Message, Method, Round, Rows, State, Task, Update, Uploads
from bespokefl.core.uploads import Declarations, Weights
from bespokefl.core.user_input.hyper_parameters import at_least, interval


@dataclass(frozen=True, kw_only=True)
class APFL(Method):
    """Each client learns how to mix a local model with the global model."""

    name = "apfl"
    limits = {"alpha": interval("[0, 1]", "α"), "alpha_rate": at_least(0, "η_α")}

    # η and α are those of the authors' example for MNIST (github.com/MLOPTPSU/FedTorch, README.md).
    lr: float = 0.1  # η, for w and v
    alpha: float = 0.5  # α at the start; 0 is FedAvg, 1 is Local; v hardly changes if α is near 0
    alpha_rate: float = 0.1  # η_α, η in that code; 0 keeps α
    weights: str = "equal"  # the paper's mean, or "examples": n_k / n

    def start_clients(self, start: Rows, cohort: Sequence[str]) -> State:
        return {"own": start.expand(len(cohort)), "alpha": torch.full((len(cohort),), self.alpha, dtype=torch.float64)}

    def local_update(self, task: Task, message: Message, state: State, data: CohortData, round: Round) -> Update:
        def step(w: Rows, v: Rows, alpha: Tensor, batch: Batch) -> tuple[Rows, Rows, Tensor]:
            first = torch.full((len(w),), batch.step == 0)
            return w - self.lr * task.gradient(w, batch), *self._own(task, w, v, alpha, batch, first)

        w, v, alpha = iterate(step, (message["weights"], state["own"], state["alpha"]), data)
        data.note(alpha=alpha)
        return {"weights": w}, {"own": v, "alpha": alpha}

    def upload(self, message: Message) -> Declarations:
        return {"weights": Weights()}

    def aggregate(self, server: State, uploads: Uploads, round: Round) -> State:
        return {"weights": uploads.mean("weights", by=self.weights)}

    def personal(self, task: Task, message: Message, state: State, data: CohortData) -> Rows:
        return mixed(state["own"], message["weights"], state["alpha"])

    def newcomer(self, task: Task, server: State, data: CohortData) -> Rows:
        w, budget = server["weights"], data.num_steps()  # w stays fixed: a newcomer does not average

        def step(w: Rows, v: Rows, alpha: Tensor, budget: Tensor, batch: Batch) -> tuple[Rows, Rows, Tensor, Tensor]:
            return w, *self._own(task, w, v, alpha, batch, batch.step % budget == 0), budget

        alpha = torch.full((len(data),), self.alpha, dtype=torch.float64)
        _, v, alpha, _ = iterate(step, (w, w, alpha, budget), data, steps=budget * data.expected_rounds)
        return mixed(v, w, alpha)

    def _own(self, task: Task, w: Rows, v: Rows, alpha: Tensor, batch: Batch, first: Tensor) -> tuple[Rows, Tensor]:
        """v after a step, and α, which is updated in rows for which this is the first step of a round."""
        found = task.gradient(mixed(v, w, alpha), batch)  # ∇F(v̄)
        new = v.plus(found, alpha * -self.lr)
        if not first.any():
            return new, alpha
        slope = found.dot(v - w).double().cpu()
        updated = (alpha - self.alpha_rate * slope).clamp(0, 1)
        return new, torch.where(first, updated, alpha)


def mixed(v: Rows, w: Rows, alpha: Tensor) -> Rows:
    """v̄ = α v + (1 − α) w."""
    return w.toward(v, alpha)
