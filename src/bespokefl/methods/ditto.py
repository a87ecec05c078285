"""Ditto: a personal model pulled towards the global one.

Li et al., ICML 2021, arXiv:2012.04221, Algorithm 1.
    min_v F_k(v) + (λ/2) ‖v − w*‖²
Differs from the paper: both models see the same batches; a client that never trained keeps the start as its own.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from bespokefl.core.cohort_data import Batch, CohortData
from bespokefl.core.errors import InputError
from bespokefl.core.local_sgd import local_sgd
from bespokefl.core.method import Message, Method, Round, State, Update, Uploads
from bespokefl.core.rows import Rows
from bespokefl.core.task import Task


@dataclass(frozen=True, kw_only=True)
class Ditto(Method):
    """A personal model pulled towards the global one."""

    name: ClassVar[str] = "ditto"
    citation: ClassVar[str] = """@inproceedings{li2021ditto,
  title={Ditto: Fair and Robust Federated Learning Through Personalization},
  author={Li, Tian and Hu, Shengyuan and Beirami, Ahmad and Smith, Virginia},
  booktitle={ICML},
  year={2021}
}"""

    # Rate and λ are those of github.com/litian96/ditto for Fashion MNIST, run_fashion_clean_ditto_lam1.sh, one rate for
    # both models. In the paper clients choose λ among .1, 1 and 2 on validation data; those with few take 1.
    lr: float = 0.05  # η_g, for the global model
    personal_lr: float = 0.05  # η
    prox_weight: float = 1.0  # λ; 0 is Local
    momentum: float = 0.0
    weight_decay: float = 0.0
    weights: str = "examples"  # n_k / n, or "equal"

    def check(self) -> None:
        super().check()
        if not self.prox_weight >= 0:
            raise InputError(f"prox_weight must be >= 0, got {self.prox_weight} (Ditto's λ).")

    def start_clients(self, start: Rows, cohort: Sequence[str]) -> State:
        return {"personal": start.expand(len(cohort))}

    def local_update(self, task: Task, message: Message, state: State, data: CohortData, round: Round) -> Update:
        w: Rows = message["weights"]  # w^t
        trained = local_sgd(task.gradient, w, data, self.lr, momentum=self.momentum, weight_decay=self.weight_decay)
        return {"weights": trained}, {"personal": self._personalize(task, state["personal"], w, data)}

    def upload(self, start: Rows, server: State, round: Round) -> State:
        return {"weights": start}

    def aggregate(self, server: State, uploads: Uploads, round: Round) -> State:
        return {"weights": uploads.mean("weights", by=self.weights)}  # Σ n_k/n w_k

    def personal(self, task: Task, message: Message, state: State, data: CohortData) -> Rows:
        rows: Rows = state["personal"]
        return rows

    def newcomer(self, task: Task, server: State, data: CohortData) -> Rows:
        w = server["weights"]
        return self._personalize(task, w, w, data, steps=data.num_steps() * data.expected_rounds)

    def _personalize(self, task: Task, start: Rows, w: Rows, data: CohortData, steps: Tensor | None = None) -> Rows:
        def pulled(v: Rows, batch: Batch, w: Rows) -> Rows:  # ∇F_k(v) + λ (v − w^t)
            return task.gradient(v, batch) + self.prox_weight * (v - w)

        sgd: dict[str, Any] = {"momentum": self.momentum, "weight_decay": self.weight_decay}
        return local_sgd(pulled, start, data, self.personal_lr, steps=steps, per_row=(w,), **sgd)
