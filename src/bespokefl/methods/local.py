"""Local: every client trains alone, for as many steps as with the other methods; the baseline of federated training.

    min_{v_k} F_k(v_k)
Differs from the paper: there is no paper.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from bespokefl.core.local_sgd import local_sgd
from bespokefl.core.method import CohortData, Message, Method, Round, Rows, State, Task, Update
from bespokefl.core.uploads import Declarations


@dataclass(frozen=True, kw_only=True)
class Local(Method):
    """Each client trains alone on its own data; nothing is shared."""

    name = "local"

    lr: float = 0.05  # η
    momentum: float = 0.0
    weight_decay: float = 0.0

    def start_server(self, start: Rows, round: Round) -> State:
        return {"start": start}  # where a newcomer starts, too

    def start_clients(self, start: Rows, cohort: Sequence[str]) -> State:
        return {"personal": start.expand(len(cohort))}

    def message(self, server: State, cohort: Sequence[int], round: Round) -> Message:
        return Message()

    def local_update(self, task: Task, message: Message, state: State, data: CohortData, round: Round) -> Update:
        return {}, {"personal": local_sgd(task.gradient, state["personal"], data, self.lr, **self.sgd)}

    def upload(self, message: Message) -> Declarations:
        return {}

    def personal(self, task: Task, message: Message, state: State, data: CohortData) -> Rows:
        return state["personal"]

    def newcomer(self, task: Task, server: State, data: CohortData) -> Rows:
        steps = data.num_steps() * data.expected_rounds
        return local_sgd(task.gradient, server["start"], data, self.lr, steps=steps, **self.sgd)
