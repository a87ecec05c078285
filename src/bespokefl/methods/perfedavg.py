"""Per-FedAvg: a common start from which one step on one's own data goes a long way.

Fallah et al., NeurIPS 2020, arXiv:2002.07948, Algorithm 1.
    min_w (1/N) Σ_k F_k(w − α ∇F_k(w))
    g = ∇F(w − α ∇F(w; b₁); b₂),   w ← w − β (g − α ∇²F(w; b₃) g)
`order="first"` drops the second term (FO); "free" takes the Hessian product by a difference of gradients (HF); "exact"
by a second backward pass.
Differs from the paper: a client's model is w after one α step on the gradient of *all* its training data, never on test
data. HF's difference is taken δ away from w whatever the length of g (the paper goes δ g). b₁, b₂, b₃ come from three
orders of the same data; a client with no more than one batch uses it for all three.
"""

from dataclasses import dataclass
from typing import ClassVar

from bespokefl.core.cohort_data import Batch, CohortData
from bespokefl.core.errors import InputError
from bespokefl.core.local_sgd import local_sgd
from bespokefl.core.method import Message, Method, Round, State, Update, Uploads
from bespokefl.core.rows import Rows
from bespokefl.core.task import Task


@dataclass(frozen=True, kw_only=True)
class PerFedAvg(Method):
    """A common start, meta-learnt so that one step on one's own data adapts it."""

    name: ClassVar[str] = "perfedavg"
    citation: ClassVar[str] = """@inproceedings{fallah2020personalized,
  title={Personalized Federated Learning with Theoretical Guarantees: A Model-Agnostic Meta-Learning Approach},
  author={Fallah, Alireza and Mokhtari, Aryan and Ozdaglar, Asuman},
  booktitle={NeurIPS},
  year={2020}
}"""

    # No code of the authors was found. Others (github.com/KarhouTam/Per-FedAvg and FL-bench, WwZzz/easyFL) have these α
    # and δ, and β = .001.
    lr: float = 0.05  # β: FedAvg's here; with .001 a run of 20 rounds does not train
    inner_rate: float = 0.01  # α; 0 is FedAvg
    order: str = "first"  # FO; "free": HF; "exact": with the Hessian itself
    difference: float = 1e-3  # δ of HF
    weights: str = "equal"  # the paper's mean, or "examples": n_k / n

    def check(self) -> None:
        super().check()
        if not self.inner_rate >= 0:
            raise InputError(f"inner_rate must be >= 0, got {self.inner_rate} (Per-FedAvg's α).")
        if self.order not in ("first", "free", "exact"):
            raise InputError(f"order must be 'first', 'free' or 'exact', got {self.order!r}.")
        if not self.difference > 0:
            raise InputError(f"difference must be > 0, got {self.difference} (Per-FedAvg's δ).")

    def local_update(self, task: Task, message: Message, state: State, data: CohortData, round: Round) -> Update:
        # As many steps for each client as in the descent, so these plans have the cohort in the same order.
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

    def upload(self, start: Rows, server: State, round: Round) -> State:
        return {"weights": start}

    def aggregate(self, server: State, uploads: Uploads, round: Round) -> State:
        return {"weights": uploads.mean("weights", by=self.weights)}

    def personal(self, task: Task, message: Message, state: State, data: CohortData) -> Rows:
        return self._adapted(task, message["weights"], data)

    def newcomer(self, task: Task, server: State, data: CohortData) -> Rows:
        return self._adapted(task, server["weights"], data)

    def _adapted(self, task: Task, w: Rows, data: CohortData) -> Rows:
        return w.expand(len(data)) - self.inner_rate * task.sweep_gradient(w, data.sweep("train"))
