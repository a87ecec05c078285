"""Small methods, each of which uses one part of the interface that the registered ones may not."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from bespokefl.core.cohort_data import Batch, CohortData
from bespokefl.core.local_sgd import local_sgd
from bespokefl.core.method import ALL, NONE, Message, Method, Phase, Round, State, Update, Uploads
from bespokefl.core.rows import Rows, RunningVariance
from bespokefl.core.task import Task
from bespokefl.core.uploads import Declarations, Reference, Weights


@dataclass(frozen=True, kw_only=True)
class _Averaging(Method):
    """One global model."""

    lr: float = 0.05

    def local_update(self, task: Task, message: Message, state: State, data: CohortData, round: Round) -> Update:
        return {"weights": local_sgd(task.gradient, message["weights"], data, self.lr)}, state

    def upload(self, message: Message) -> Declarations:
        return {"weights": Weights()}

    def aggregate(self, server: State, uploads: Uploads, round: Round) -> State:
        return server | {"weights": uploads.mean("weights")}

    def newcomer(self, task: Task, server: State, data: CohortData) -> Rows:
        rows: Rows = server["weights"]
        return rows


@dataclass(frozen=True, kw_only=True)
class Surveying(_Averaging):
    """A survey of all clients' gradients before training, then a personal model for each client."""

    name: ClassVar[str] = "surveying"

    def phases(self, rounds: int) -> list[Phase]:
        return [Phase("survey", 1, trains=ALL, reports=ALL), Phase("train", rounds)]

    def start_server(self, start: Rows, round: Round) -> State:
        count = len(round.names)
        return {"streams": start.expand(count), "closeness": torch.eye(count, dtype=torch.float64)}

    def message(self, server: State, cohort: Sequence[int], round: Round) -> Message:
        return Message(own={"weights": server["streams"][list(cohort)]})

    def local_update(self, task: Task, message: Message, state: State, data: CohortData, round: Round) -> Update:
        if round.phase == "survey":
            return {"gradient": task.sweep_gradient(message["weights"], data.sweep("train"))}, state
        return super().local_update(task, message, state, data, round)

    def upload(self, message: Message) -> Declarations:
        return {"gradient": Weights(reference=Reference.ZERO, phase="survey"), "weights": Weights(phase="train")}

    def aggregate(self, server: State, uploads: Uploads, round: Round) -> State:
        clients = torch.tensor(uploads.clients)
        if round.phase == "survey":
            apart = uploads["gradient"].square_distances().double()
            closeness = torch.zeros_like(server["closeness"])
            closeness[clients[:, None], clients] = torch.exp(-apart / apart.mean().clamp(min=1e-12))
            return server | {"closeness": closeness}
        closeness = server["closeness"][:, clients]
        return server | {"streams": (closeness / closeness.sum(1, keepdim=True)) @ uploads["weights"]}

    def personal(self, task: Task, message: Message, state: State, data: CohortData) -> Rows:
        rows: Rows = message["weights"]
        return rows

    def newcomer(self, task: Task, server: State, data: CohortData) -> Rows:
        rows: Rows = server["streams"].mean()
        return rows


@dataclass(frozen=True, kw_only=True)
class Listening(_Averaging):
    """Everybody trains, a sample reports."""

    name: ClassVar[str] = "listening"

    def phases(self, rounds: int) -> list[Phase]:
        return [Phase("train", rounds, trains=ALL)]

    def start_clients(self, start: Rows, cohort: Sequence[str]) -> State:
        return {"personal": start, "rounds": torch.zeros(len(cohort), dtype=torch.int64)}

    def local_update(self, task: Task, message: Message, state: State, data: CohortData, round: Round) -> Update:
        middle = (state["personal"] + message["weights"]) * 0.5
        trained = local_sgd(task.gradient, middle, data, self.lr)
        return {"weights": trained}, {"personal": trained, "rounds": state["rounds"] + 1}

    def personal(self, task: Task, message: Message, state: State, data: CohortData) -> Rows:
        rows: Rows = state["personal"]
        return rows


@dataclass(frozen=True, kw_only=True)
class Uneven(_Averaging):
    """Step counts and rates that differ from row to row, momentum, and a head that is trained apart."""

    name: ClassVar[str] = "uneven"

    def local_update(self, task: Task, message: Message, state: State, data: CohortData, round: Round) -> Update:
        steps = 1 + data.n % 4
        rates = self.lr * (1 + data.n % 3)
        w = local_sgd(task.gradient, message["weights"], data, rates, steps=steps, momentum=0.5, frozen="head")
        return {"weights": local_sgd(task.gradient, w, data, self.lr, epochs=2, frozen="base", purpose="head")}, state


@dataclass(frozen=True, kw_only=True)
class Trying(_Averaging):
    """Every client tries several pulls, each in a row of its own, and keeps the best on its validation data."""

    name: ClassVar[str] = "trying"
    pulls: tuple[float, ...] = (0.0, 0.5, 5.0)

    def start_clients(self, start: Rows, cohort: Sequence[str]) -> State:
        return {"personal": start, "prox_weight": torch.zeros(len(cohort), dtype=torch.float64)}

    def local_update(self, task: Task, message: Message, state: State, data: CohortData, round: Round) -> Update:
        times = len(self.pulls)
        many, w = data.repeat(times), message["weights"]
        pulls = torch.tensor(self.pulls, dtype=torch.float64).repeat(len(data))

        def pulled(v: Rows, batch: Batch, prox_weight: Tensor, w: Rows) -> Rows:
            return task.gradient(v, batch) + prox_weight * (v - w)

        per_row = [pulls, w.expand(len(data)).repeat(times)]
        tried = local_sgd(pulled, state["personal"].repeat(times), many, self.lr, per_row=per_row)
        losses = task.score(tried, many.sweep("validation"))["loss"].nan_to_num(0.0)
        best = torch.arange(len(data)) * times + losses.reshape(-1, times).argmin(1)
        upload = {"weights": local_sgd(task.gradient, w, data, self.lr)}
        return upload, {"personal": tried[best], "prox_weight": pulls[best]}

    def personal(self, task: Task, message: Message, state: State, data: CohortData) -> Rows:
        rows: Rows = state["personal"]
        return rows


@dataclass(frozen=True, kw_only=True)
class Ending(_Averaging):
    """Training in common, then an ending at home: everybody fits a head, nobody reports."""

    name: ClassVar[str] = "ending"

    def phases(self, rounds: int) -> list[Phase]:
        return [Phase("train", rounds), Phase("ending", 2, trains=ALL, reports=NONE)]

    def start_clients(self, start: Rows, cohort: Sequence[str]) -> State:
        return {"head": start.block("head").expand(len(cohort))}

    def local_update(self, task: Task, message: Message, state: State, data: CohortData, round: Round) -> Update:
        if round.phase == "train":
            return super().local_update(task, message, state, data, round)
        own = message["weights"].with_block(state["head"])
        return {}, {"head": local_sgd(task.gradient, own, data, self.lr, frozen="base").block("head")}

    def upload(self, message: Message) -> Declarations:
        return {"weights": Weights(phase="train")}

    def personal(self, task: Task, message: Message, state: State, data: CohortData) -> Rows:
        rows: Rows = message["weights"].with_block(state["head"])
        return rows

    def newcomer(self, task: Task, server: State, data: CohortData) -> Rows:
        steps = data.num_steps() * data.expected_rounds
        return local_sgd(task.gradient, server["weights"], data, self.lr, steps=steps, frozen="base")


@dataclass(frozen=True, kw_only=True)
class TwoPasses(_Averaging):
    """The server goes through the uploads twice: the far ones count less."""

    name: ClassVar[str] = "two-passes"

    def aggregate(self, server: State, uploads: Uploads, round: Round) -> State:
        mean = uploads.mean("weights", by="equal")
        far = torch.cat([(chunk["weights"] - mean).square_norm() for chunk in uploads])
        round.note(far=far.mean(), clients=len(uploads))
        return server | {"weights": uploads.mean("weights", by=1 / (1 + far)), "far": far.mean()}


@dataclass(frozen=True, kw_only=True)
class Adapting(_Averaging):
    """Trained so that one step at home helps (MAML); that step is taken when the model is used."""

    name: ClassVar[str] = "adapting"
    step: float = 0.1

    def local_update(self, task: Task, message: Message, state: State, data: CohortData, round: Round) -> Update:
        def gradient(w: Rows, batch: Batch) -> Rows:  # (I − α ∇²F(w)) ∇F(w − α ∇F(w))
            ahead = task.gradient(w - self.step * task.gradient(w, batch), batch)
            return ahead - self.step * task.hessian_product(w, batch, ahead)

        return {"weights": local_sgd(gradient, message["weights"], data, self.lr)}, state

    def personal(self, task: Task, message: Message, state: State, data: CohortData) -> Rows:
        return local_sgd(task.gradient, message["weights"], data, self.step, epochs=1)

    def newcomer(self, task: Task, server: State, data: CohortData) -> Rows:
        return local_sgd(task.gradient, server["weights"], data, self.step, epochs=1)


@dataclass(frozen=True, kw_only=True)
class Tossing(_Averaging):
    """Each client takes part with a probability, and the server draws too."""

    name: ClassVar[str] = "tossing"

    def phases(self, rounds: int) -> list[Phase]:
        return [Phase("train", rounds, sampling="bernoulli")]

    def aggregate(self, server: State, uploads: Uploads, round: Round) -> State:
        kept = round.generator("keep").random(len(uploads)) < 0.9
        weights = torch.from_numpy(kept).double() + 0.1
        return server | {"weights": uploads.mean("weights", by=weights)}


@dataclass(frozen=True, kw_only=True)
class Noting(_Averaging):
    """Notes for the run directory, noise from the client's own draws, and a running variance as state."""

    name: ClassVar[str] = "noting"

    def start_clients(self, start: Rows, cohort: Sequence[str]) -> State:
        empty = RunningVariance.empty(start.expand(len(cohort)))
        return {"count": empty.count, "mean": empty.mean, "squares": empty.squares}

    def local_update(self, task: Task, message: Message, state: State, data: CohortData, round: Round) -> Update:
        noise = data.normal(message["weights"], "noise") * 0.01
        trained = local_sgd(task.gradient, message["weights"] + noise, data, self.lr)
        spread = RunningVariance(state["count"], state["mean"], state["squares"]).add(trained)
        data.note(examples=data.n, moved=(trained - message["weights"]).square_norm())
        return {"weights": trained}, {"count": spread.count, "mean": spread.mean, "squares": spread.squares}

    def personal(self, task: Task, message: Message, state: State, data: CohortData) -> Rows:
        known = (state["count"] > 0).double()
        return state["mean"] * known + message["weights"].expand(len(data)) * (1 - known)


PROBES: dict[str, type[Method]] = {
    probe.name: probe
    for probe in (
        Surveying,
        Listening,
        Uneven,
        Trying,
        Ending,
        TwoPasses,
        Adapting,
        Tossing,
        Noting,
    )
}
