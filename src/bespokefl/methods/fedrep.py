"""FedRep: first the own head on the common base, then the base under that head; only the base is shared.

Collins et al., ICML 2021, arXiv:2102.07078, Algorithm 1.
    head_k ← τ epochs on F_k(base, ·),   base_k ← epochs on F_k(·, head_k),   base ← (1/|S|) Σ_k base_k
Differs from the paper: the base is trained for the run's local epochs or steps (the paper: one to five epochs, by data
set). The run ends with `finish_epochs` epochs of the head alone on the final base, for everybody, as the authors' code
evaluates; Algorithm 1 ends before. All heads begin with the same weights. Momentum begins anew with each half.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from bespokefl.core.cohort_data import CohortData
from bespokefl.core.errors import InputError
from bespokefl.core.local_sgd import local_sgd
from bespokefl.core.method import ALL, NONE, Message, Method, Phase, Round, State, Update, Uploads
from bespokefl.core.rows import Rows
from bespokefl.core.task import Task


@dataclass(frozen=True, kw_only=True)
class FedRep(Method):
    """A common base under heads of one's own, trained in turn."""

    name: ClassVar[str] = "fedrep"
    citation: ClassVar[str] = """@inproceedings{collins2021exploiting,
  title={Exploiting Shared Representations for Personalized Federated Learning},
  author={Collins, Liam and Hassani, Hamed and Mokhtari, Aryan and Shakkottai, Sanjay},
  booktitle={ICML},
  year={2021}
}"""

    # As in the authors' code (github.com/lgcollins/FedRep, in others' copies: --lr 0.01 --local_ep 11 --local_rep_ep 1
    # --local_bs 10, momentum .5), but for a weight decay of .0001.
    lr: float = 0.01  # α, for head and base
    head_epochs: int = 10  # τ
    finish_epochs: int = 10  # of the head alone, at the end
    momentum: float = 0.5
    weights: str = "equal"  # Algorithm 1's mean, or "examples", as in the authors' code: n_k / n

    def check(self) -> None:
        super().check()
        for name in ("head_epochs", "finish_epochs"):
            if getattr(self, name) < 1:
                raise InputError(f"{name} must be >= 1, got {getattr(self, name)} (FedRep).")

    def phases(self, rounds: int) -> list[Phase]:
        return [Phase("train", rounds), Phase("finish", 1, trains=ALL, reports=NONE)]

    def start_server(self, start: Rows, round: Round) -> State:
        return {"base": start.block("base")}

    def start_clients(self, start: Rows, cohort: Sequence[str]) -> State:
        return {"head": start.block("head").expand(len(cohort))}

    def message(self, server: State, cohort: Sequence[int], round: Round) -> Message:
        return Message(shared={"base": server["base"]})

    def local_update(self, task: Task, message: Message, state: State, data: CohortData, round: Round) -> Update:
        rows = self.personal(task, message, state, data)
        if round.phase == "finish":
            return {}, {"head": self._head(task, rows, data, self.finish_epochs).block("head")}
        rows = self._head(task, rows, data, self.head_epochs)
        rows = local_sgd(task.gradient, rows, data, self.lr, frozen="head", momentum=self.momentum)
        return {"base": rows.block("base")}, {"head": rows.block("head")}

    def upload(self, start: Rows, server: State, round: Round) -> State:
        return {"base": start.block("base")} if round.phase == "train" else {}

    def aggregate(self, server: State, uploads: Uploads, round: Round) -> State:
        return {"base": uploads.mean("base", by=self.weights)}

    def personal(self, task: Task, message: Message, state: State, data: CohortData) -> Rows:
        return task.start.with_block(message["base"]).with_block(state["head"])

    def global_model(self, server: State) -> Rows | None:
        return None

    def newcomer(self, task: Task, server: State, data: CohortData) -> Rows:
        begin = task.start.with_block(server["base"])
        return self._head(task, begin, data, self.head_epochs * data.expected_rounds)

    def _head(self, task: Task, rows: Rows, data: CohortData, epochs: int) -> Rows:
        sgd: dict[str, Any] = {"epochs": epochs, "frozen": "base", "purpose": "head", "momentum": self.momentum}
        return local_sgd(task.gradient, rows, data, self.lr, **sgd)
