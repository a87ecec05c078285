"""Per-FedAvg: meta-learning of a global model that each client adapts with one gradient step on its own data.

Fallah et al., NeurIPS 2020, arXiv:2002.07948, Algorithm 1.
    min_w (1/N) Σ_k F_k(w − α ∇F_k(w))
    g = ∇F(w − α ∇F(w; b₁); b₂),   w ← w − β (g − α ∇²F(w; b₃) g)
`order="first"` drops the second term (FO); "free" computes the Hessian product from a difference of gradients (HF);
"exact" by a second backward pass.
Differs from the paper: a client's model is w after one step of size α along the gradient of *all* its training data,
never of test data. HF's difference is taken at distance δ from w, independent of the length of g (the paper: δ g). b₁,
b₂, b₃ come from three orders of the same data; a client with at most one batch uses it for all three.
"""

from dataclasses import dataclass

from bespokefl.core.cohort_data import Batch
from bespokefl.core.local_sgd import local_sgd
from bespokefl.core.method import CohortData, Message, Method, Round, Rows, State, Task, Update, Uploads
from bespokefl.core.uploads import Declarations, Weights
from bespokefl.core.user_input.hyper_parameters import above, at_least, one_of


@dataclass(frozen=True, kw_only=True)
class PerFedAvg(Method):
    """A global model, meta-learned so that one gradient step on a client's data adapts it."""

    name = "perfedavg"
    limits = {"inner_rate": at_least(0, "α"), "order": one_of("first", "free", "exact"), "difference": above(0, "δ")}

    # No code of the authors was found. Others (github.com/KarhouTam/Per-FedAvg and FL-bench, WwZzz/easyFL) use these α
    # and δ, and β = .001.
    lr: float = 0.05  # β: FedAvg's here; with .001 a run of 20 rounds does not train
    inner_rate: float = 0.01  # α; 0 is FedAvg
    order: str = "first"  # FO; "free": HF; "exact": exact Hessian products
    difference: float = 1e-3  # δ of HF
    weights: str = "equal"  # the paper's mean, or "examples": n_k / n

    def local_update(self, task: Task, message: Message, state: State, data: CohortData, round: Round) -> Update:
        # With as many steps per client as local_sgd takes, these schedules have the clients in the same order.
        first, third = data.plan(purpose="first"), data.plan(purpose="third")

        def meta(w: Rows, batch: Batch) -> Rows:
            adapted = w - self.inner_rate * task.gradient(w, first.batch(batch.step)) if self.inner_rate else w
            found = task.gradient(adapted, batch)  # b₂ is FedAvg's batch
            if self.order == "first" or not self.inner_rate:
                return found
            return found - self.inner_rate * self._curvature(task, w, third.batch(batch.step), found)

        return {"weights": local_sgd(meta, message["weights"], data, self.lr)}, state

    def _curvature(self, task: Task, w: Rows, batch: Batch, direction: Rows) -> Rows:
        """∇²F(w; b₃) · direction."""
        if self.order == "exact":
            return task.hessian_product(w, batch, direction)
        step = self.difference / direction.square_norm().sqrt().clamp(min=1e-12)  # δ along the unit direction
        ahead, behind = w + direction * step, w - direction * step
        return (task.gradient(ahead, batch) - task.gradient(behind, batch)) / (2 * step)

    def upload(self, message: Message) -> Declarations:
        return {"weights": Weights()}

    def aggregate(self, server: State, uploads: Uploads, round: Round) -> State:
        return {"weights": uploads.mean("weights", by=self.weights)}

    def personal(self, task: Task, message: Message, state: State, data: CohortData) -> Rows:
        return self._adapted(task, message["weights"], data)

    def newcomer(self, task: Task, server: State, data: CohortData) -> Rows:
        return self._adapted(task, server["weights"], data)

    def _adapted(self, task: Task, w: Rows, data: CohortData) -> Rows:
        return w.expand(len(data)) - self.inner_rate * task.sweep_gradient(w, data.sweep("train"))
