"""FedFOMO: every client downloads a few others' models and moves towards those that do better on its validation data.

Zhang et al., ICLR 2021, arXiv:2012.08565, equations 3 and 4, Algorithm 1.
    w_n ∝ max(0, (L_i(θ_base) − L_i(θ_n)) / ‖θ_n − θ_base‖),   θ_i ← θ_base + Σ_n w_n (θ_n − θ_base)
θ_base is the client's model before its last local training, and its model after it is one of the θ_n.
Differs from the paper:
- A client mixes when its next round begins, then trains and uploads; what it uses is the trained model. The models that
  it can get are everybody's last uploads, also of clients that are not active in the round.
- No model better than θ_base, or no validation data: the client goes on with its own trained model.
- The server's affinities add up the values before max(0, ·), so that bad models sink, each time divided by the sum of
  their sizes. Ties are broken at random. Who never uploaded comes last, with the initial weights.
- Of the M models the client's own is not one: it needs no download.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from bespokefl.core import rng as chance
from bespokefl.core.cohort_data import CohortData
from bespokefl.core.errors import InputError
from bespokefl.core.local_sgd import local_sgd
from bespokefl.core.method import REAL, Message, Method, Round, State, Update, Uploads
from bespokefl.core.rows import Rows
from bespokefl.core.task import Task

TINY = 1e-300  # keeps 0/0 from being NaN


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

    # As in the first command for CIFAR-10 of github.com/NVlabs/FedFomo, without its decay of the rate, 1 % an epoch.
    lr: float = 0.1  # η
    downloads: int = 4  # M, others' models per client and round; with the client's own there are 5, as in that command
    explore: float = 0.3  # ε: the share of random choices
    decay: float = 0.05  # what ε loses in every round; there in every epoch
    momentum: float = 0.0

    def check(self) -> None:
        super().check()
        if self.downloads < 1:
            raise InputError(f"downloads must be >= 1, got {self.downloads} (FedFOMO's M).")
        if not 0 <= self.explore <= 1:
            raise InputError(f"explore must be in [0, 1], got {self.explore} (FedFOMO's ε).")
        if not self.decay >= 0:
            raise InputError(f"decay must be >= 0, got {self.decay} (what FedFOMO's ε loses in a round).")

    def start_server(self, start: Rows, round: Round) -> State:
        count = len(round.names)
        return {
            "models": start.expand(count),  # everybody's last upload
            "known": torch.zeros(count, dtype=torch.bool),
            "affinity": torch.zeros(count, count, dtype=torch.float64),  # P
        }

    def start_clients(self, start: Rows, cohort: Sequence[str]) -> State:
        return {"base": start.expand(len(cohort)), "personal": start.expand(len(cohort))}

    def message(self, server: State, cohort: Sequence[int], round: Round) -> Message:
        chosen = self._chosen(server, cohort, round)
        return Message(own={f"model {m}": server["models"][chosen[:, m]] for m in range(chosen.shape[1])})

    def _chosen(self, server: State, cohort: Sequence[int], round: Round) -> Tensor:
        """Whose models each client gets, (K, M)."""
        return torch.stack([self._choose(server, client, round) for client in cohort])

    def _choose(self, server: State, client: int, round: Round) -> Tensor:
        """ε-greedy: each is the one of highest affinity left, or a random one; who never uploaded comes last."""
        rng = chance.generator(round.seed, "fomo", round.number, round.names[client])
        known, affinity = server["known"].tolist(), server["affinity"][client].tolist()
        others = [j for j in rng.permutation(len(known)).tolist() if j != client]
        ranked = sorted(others, key=lambda j: (not known[j], -affinity[j]))
        num_known = sum(known[j] for j in others)
        chosen: list[int] = []
        while ranked and len(chosen) < self.downloads:
            random = rng.random() < self.explore - self.decay * (round.number - 1)
            left = max(1, num_known - len(chosen))
            chosen.append(ranked.pop(int(rng.integers(left)) if random else 0))
        return torch.tensor(chosen, dtype=torch.int64)

    def local_update(self, task: Task, message: Message, state: State, data: CohortData, round: Round) -> Update:
        models = [state["personal"], *(message[f"model {m}"] for m in range(len(message.own)))]
        value = worth(task, state["base"], models, data)
        mixed = mix(models, value)
        data.note(own_weight=weights(value)[:, 0])
        trained = local_sgd(task.gradient, mixed, data, self.lr, momentum=self.momentum)
        share = value / value.abs().sum(1, keepdim=True).clamp(min=TINY)
        return {"weights": trained, "worth": share[:, 1:]}, {"base": mixed, "personal": trained}

    def upload(self, start: Rows, server: State, round: Round) -> State:
        return {"weights": start, "worth": REAL.expand(1, min(self.downloads, len(round.names) - 1))}

    def origin(self, task: Task, message: Message, name: str) -> Rows | float | None:
        return task.start if name == "weights" else None  # the mixture that it begins at is the client's own

    def aggregate(self, server: State, uploads: Uploads, round: Round) -> State:
        clients = torch.tensor(uploads.clients)
        known, affinity = server["known"].clone(), server["affinity"].clone()
        known[clients] = True
        affinity[clients[:, None], self._chosen(server, uploads.clients, round)] += uploads["worth"]
        return {"models": server["models"].replace(clients, uploads["weights"]), "known": known, "affinity": affinity}

    def personal(self, task: Task, message: Message, state: State, data: CohortData) -> Rows:
        rows: Rows = state["personal"]
        return rows

    def global_model(self, server: State) -> Rows | None:
        return None

    def newcomer(self, task: Task, server: State, data: CohortData) -> Rows:
        """Starts as everybody did, looks at all models there are, and trains."""
        there = server["models"][server["known"]]
        models = [task.start.expand(len(data)), *(there[j : j + 1] for j in range(len(there)))]
        mixed = mix(models, worth(task, task.start, models, data))
        return local_sgd(
            task.gradient, mixed, data, self.lr, steps=data.num_steps() * data.expected_rounds, momentum=self.momentum
        )


def worth(task: Task, base: Rows, models: Sequence[Rows], data: CohortData) -> Tensor:
    """What each model gains on the validation data per step away from the base (3), (K, M); 0 where nobody can say."""
    plan = data.sweep("validation")
    before = task.score(base, plan)["loss"]
    values = []
    for rows in models:
        distance = (rows - base).square_norm().double().sqrt().cpu()
        value = (before - task.score(rows, plan)["loss"]) / distance
        values.append(torch.where(distance > 0, value, 0.0).nan_to_num(0.0))
    return torch.stack(values, 1)


def weights(value: Tensor) -> Tensor:
    """Positive values, to sum to one; all to the first model, the client's own, where none is positive."""
    positive = value.clamp(min=0)
    total = positive.sum(1, keepdim=True)
    own = torch.zeros_like(value)
    own[:, 0] = 1
    return torch.where(total > 0, positive / total, own)


def mix(models: Sequence[Rows], value: Tensor) -> Rows:
    """Σ w_n θ_n: as the weights sum to one, this is (4), θ_base + Σ w_n (θ_n − θ_base)."""
    shares = weights(value)
    total = models[0] * shares[:, 0]
    for m, rows in enumerate(models[1:], start=1):
        total = total + rows.expand(len(value)) * shares[:, m]
    return total
