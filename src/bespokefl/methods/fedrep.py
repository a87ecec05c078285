"""FedRep: each client first trains its head on the shared base, then the base under that head.

Collins et al., ICML 2021, arXiv:2102.07078, Algorithm 1.
    head_k ← τ epochs on F_k(base, ·),   base_k ← epochs on F_k(·, head_k),   base ← (1/|S|) Σ_k base_k
Differs from the paper: the base is trained for the run's local epochs or steps (the paper: one to five epochs, by
data set). At the end of the run all clients train the head alone on the final base for `finish_epochs` epochs, as
the authors' code does for evaluation; Algorithm 1 ends before. All heads start with the same weights. Momentum is reset
between head and base.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from bespokefl.core.local_sgd import local_sgd
from bespokefl.core.method import ALL, NONE, CohortData, Message, Method, Phase, Round, State, Task, Update, Uploads
from bespokefl.core.nn.heads import train_head
from bespokefl.core.rows import Rows
from bespokefl.core.uploads import Declarations, Weights
from bespokefl.core.user_input.hyper_parameters import at_least


@dataclass(frozen=True, kw_only=True)
class FedRep(Method):
    """A shared base and a personal head per client, trained in turn."""

    name = "fedrep"
    limits = {"head_epochs": at_least(1, "τ"), "finish_epochs": at_least(1)}

    # As in the authors' code (github.com/lgcollins/FedRep, in others' copies: --lr 0.01 --local_ep 11 --local_rep_ep 1
    # --local_bs 10, momentum .5), but without its weight decay of .0001.
    lr: float = 0.01  # α, for head and base
    head_epochs: int = 10  # τ
    finish_epochs: int = 10  # of the head alone, at the end
    momentum: float = 0.5
    weights: str = "equal"  # Algorithm 1's mean, or "examples", as in the authors' code: n_k / n

    def phases(self, rounds: int) -> list[Phase]:
        return [Phase("train", rounds), Phase("finish", 1, trains=ALL, reports=NONE)]

    def start_server(self, start: Rows, round: Round) -> State:
        return {"base": start.block("base")}

    def start_clients(self, start: Rows, cohort: Sequence[str]) -> State:
        return {"head": start.block("head").expand(len(cohort))}

    def message(self, server: State, cohort: Sequence[int], round: Round) -> Message:
        return Message(shared={"base": server["base"]})

    def local_update(self, task: Task, message: Message, state: State, data: CohortData, round: Round) -> Update:
        base: Rows = message["base"]
        epochs = self.finish_epochs if round.phase == "finish" else self.head_epochs
        head = self._train_head(task, base, state["head"], data, epochs)
        if round.phase == "finish":
            return {}, {"head": head}
        rows = task.start.with_block(base).with_block(head)
        trained = local_sgd(task.gradient, rows, data, self.lr, frozen="head", **self.sgd)
        return {"base": trained.block("base")}, {"head": head}

    def upload(self, message: Message) -> Declarations:
        return {"base": Weights("base", phase="train")}

    def aggregate(self, server: State, uploads: Uploads, round: Round) -> State:
        return {"base": uploads.mean("base", by=self.weights)}

    def personal(self, task: Task, message: Message, state: State, data: CohortData) -> Rows:
        return task.start.with_block(message["base"]).with_block(state["head"])

    def newcomer(self, task: Task, server: State, data: CohortData) -> Rows:
        base: Rows = server["base"]
        head = self._train_head(task, base, task.start.block("head"), data, self.head_epochs * data.expected_rounds)
        return task.start.with_block(base).with_block(head)

    def _train_head(self, task: Task, base: Rows, head: Rows, data: CohortData, epochs: int) -> Rows:
        return train_head(task, base, head, data, self.lr, epochs=epochs, purpose="head", **self.sgd)
