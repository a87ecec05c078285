"""Local: every client trains alone, with the same budget; what federating has to beat.

    min_{v_k} F_k(v_k)
Differs from the paper: there is none; every comparison needs it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from bespokefl.core.cohort_data import Work
from bespokefl.core.local_sgd import descend
from bespokefl.core.method import Message, Method, Round, State
from bespokefl.core.rows import Rows
from bespokefl.core.task import Task


@dataclass(frozen=True, kw_only=True)
class Local(Method):
    """Every client trains alone; nothing is shared."""

    name: ClassVar[str] = "local"

    lr: float = 0.05  # η
    momentum: float = 0.0
    weight_decay: float = 0.0

    def start_server(self, start: Rows, round: Round) -> State:
        return {"start": start}  # where a newcomer begins, as everybody did

    def start_clients(self, start: Rows, cohort: Sequence[str]) -> State:
        return {"personal": start.expand(len(cohort))}

    def message(self, server: State, cohort: Sequence[int], round: Round) -> Message:
        return Message()

    def local_update(self, task: Task, message: Message, state: State, work: Work, round: Round) -> tuple[State, State]:
        return {}, {"personal": self._train(task, state["personal"], work)}

    def upload(self, start: Rows, server: State, round: Round) -> State:
        return {}

    def personal(self, task: Task, message: Message, state: State, work: Work) -> Rows:
        rows: Rows = state["personal"]
        return rows

    def newcomer(self, task: Task, server: State, work: Work) -> Rows:
        return self._train(task, server["start"], work, steps=work.num_steps() * work.lifetime)

    def _train(self, task: Task, rows: Rows, work: Work, steps: Tensor | None = None) -> Rows:
        sgd: dict[str, Any] = {"momentum": self.momentum, "weight_decay": self.weight_decay}
        return descend(task.gradient, rows, work, self.lr, steps=steps, **sgd)
