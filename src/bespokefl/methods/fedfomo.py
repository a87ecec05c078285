"""FedFOMO: every client downloads a few others' models and moves towards those that do better on its validation data.

Zhang et al., ICLR 2021, arXiv:2012.08565, equations 3 and 4, Algorithm 1.
    w_n ∝ max(0, (L_i(θ_i) − L_i(θ_n)) / ‖θ_n − θ_i‖),   θ_i ← θ_i + Σ_n w_n (θ_n − θ_i),   then local training
Differs from the paper: nobody useful, or no validation data: the client keeps its own. Affinities are the running sums
of the weights that a client reported; ε stays the same over rounds.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from bespokefl.core import chance
from bespokefl.core.descend import descend
from bespokefl.core.errors import InputError
from bespokefl.core.method import Message, Method, Round, State, Uploads
from bespokefl.core.rows import Rows
from bespokefl.core.task import Task
from bespokefl.core.work import Work


@dataclass(frozen=True, kw_only=True)
class FedFOMO(Method):
    """Every client weighs others' models by what they are worth on its validation data."""

    name: ClassVar[str] = "fedfomo"
    citation: ClassVar[str] = """@inproceedings{zhang2021personalized,
  title={Personalized Federated Learning with First Order Model Optimization},
  author={Zhang, Michael and Sapra, Karan and Fidler, Sanja and Yeung, Serena and Alvarez, Jose M.},
  booktitle={ICLR},
  year={2021}
}"""

    lr: float = 0.05  # η
    downloads: int = 5  # M, models per client and round
    explore: float = 0.3  # ε: the share of random choices
    momentum: float = 0.0

    def check(self) -> None:
        super().check()
        if self.downloads < 1:
            raise InputError(f"downloads must be >= 1, got {self.downloads} (FedFOMO's M).")
        if not 0 <= self.explore <= 1:
            raise InputError(f"explore must be in [0, 1], got {self.explore} (FedFOMO's ε).")

    def start_server(self, start: Rows, round: Round) -> State:
        count = len(round.names)
        return {
            "models": start.expand(count),  # everybody's last upload
            "known": torch.zeros(count, dtype=torch.bool),
            "affinity": torch.zeros(count, count, dtype=torch.float64),  # P
        }

    def start_clients(self, start: Rows, cohort: Sequence[str]) -> State:
        return {"personal": start.expand(len(cohort))}

    def message(self, server: State, cohort: Sequence[int], round: Round) -> Message:
        chosen = torch.stack([self._choose(server, client, round) for client in cohort])  # (K, M)
        models: Tensor = server["models"][chosen.clamp(min=0).flatten()].matrix()
        return Message(own={"models": models.reshape(*chosen.shape, -1), "from": chosen})

    def _choose(self, server: State, client: int, round: Round) -> Tensor:
        """ε-greedy: each of the M is the one of highest affinity left, or a random one; −1 where there is nobody."""
        others = [j for j in server["known"].nonzero().flatten().tolist() if j != client]
        rng = chance.generator(round.seed, "fomo", round.number, round.names[client])
        ranked = sorted(others, key=lambda j: -float(server["affinity"][client, j]))
        chosen: list[int] = []
        while ranked and len(chosen) < self.downloads:
            at = int(rng.integers(len(ranked))) if rng.random() < self.explore else 0
            chosen.append(ranked.pop(at))
        return torch.tensor(chosen + [-1] * (self.downloads - len(chosen)))

    def local_update(self, task: Task, message: Message, state: State, work: Work, round: Round) -> tuple[State, State]:
        mixed, weights = self._mix(task, state["personal"], message["models"], message["from"], work)
        trained = descend(task.gradient, mixed, work, self.lr, momentum=self.momentum)
        return {"weights": trained, "from": message["from"], "worth": weights}, {"personal": trained}

    def _mix(self, task: Task, own: Rows, models: Tensor, source: Tensor, work: Work) -> tuple[Rows, Tensor]:
        count = models.shape[1]
        others = Rows.from_matrix(own.layout, models.flatten(0, 1))
        tried = work.repeat(count).sweep("validation")
        gain = task.score(own, work.sweep("validation"))["loss"].unsqueeze(1) - task.score(others, tried)[
            "loss"
        ].reshape(len(work), count)
        distance = (others - own.repeat(count)).square_norm().sqrt().reshape(len(work), count).double().cpu()
        worth = (gain / distance.clamp(min=1e-12)).clamp(min=0).nan_to_num(0.0) * (source >= 0) * (distance > 0)
        weights = worth / worth.sum(1, keepdim=True).clamp(min=1e-300)
        toward = (others - own.repeat(count)) * weights.flatten()
        summed = Rows(own.layout, [block.unflatten(0, (len(work), count)).sum(1) for block in toward.blocks])
        return own + summed, weights

    def aggregate(self, server: State, uploads: Uploads, round: Round) -> State:
        clients, source, worth = torch.tensor(uploads.clients), uploads["from"], uploads["worth"]
        models, known = server["models"].replace(clients, uploads["weights"]), server["known"].clone()
        known[clients] = True
        affinity = server["affinity"].clone()
        for client, ids, values in zip(clients.tolist(), source, worth, strict=True):
            there = ids >= 0
            affinity[client, ids[there]] += values[there]
        return {"models": models, "known": known, "affinity": affinity}

    def personal(self, task: Task, message: Message, state: State, work: Work) -> Rows:
        rows: Rows = state["personal"]
        return rows

    def global_model(self, server: State) -> Rows | None:
        return None

    def newcomer(self, task: Task, server: State, work: Work) -> Rows:
        """Starts as everybody did, and looks at all models there are."""
        known = server["known"].nonzero().flatten()
        own = task.start.expand(len(work))
        if len(known):
            models = server["models"][known].matrix().expand(len(work), -1, -1)
            own, _ = self._mix(task, own, models, known.expand(len(work), -1), work)
        sgd: dict[str, Any] = {"steps": work.num_steps() * work.lifetime, "momentum": self.momentum}
        return descend(task.gradient, own, work, self.lr, **sgd)
