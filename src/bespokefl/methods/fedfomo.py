"""FedFOMO: each client downloads a few other models and moves towards those that are better on its validation data.

Zhang et al., ICLR 2021, arXiv:2012.08565, equations 3 and 4, Algorithm 1.
    w_n ∝ max(0, (L_i(θ_base) − L_i(θ_n)) / ‖θ_n − θ_base‖),   θ_i ← θ_base + Σ_n w_n (θ_n − θ_base)
θ_base is the client's model before its last local training, and the model after that training is one of the θ_n.
Differs from the paper:
- A client mixes at the beginning of its next round, then trains and uploads; it uses the trained model. It can download
  the last uploads of all clients, also of those that are not active in the round.
- If no model is better than θ_base, or without validation data, the client continues with its own trained model.
- The server adds up the values before max(0, ·), divided by the sum of their absolute values, so that the affinity of
  bad models decreases. Ties are broken at random. Clients that never uploaded come last, with the initial weights.
- The M models do not include the client's own, which needs no download.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from bespokefl.core import rng
from bespokefl.core.local_sgd import local_sgd
from bespokefl.core.method import CohortData, Message, Method, Round, Rows, State, Task, Update, Uploads
from bespokefl.core.uploads import Declarations, Reference, Scalar, Weights
from bespokefl.core.user_input.hyper_parameters import at_least, interval

SMALLEST_SUM = 1e-300  # avoids 0/0
_GENERATOR = rng.Reusable()  # is given a new key before each use


@dataclass(frozen=True, kw_only=True)
class FedFOMO(Method):
    """Each client mixes in other clients' models that improve its validation loss."""

    name = "fedfomo"
    limits = {"downloads": at_least(1, "M"), "explore": interval("[0, 1]", "ε"), "decay": at_least(0)}

    # As in the first command for CIFAR-10 of github.com/NVlabs/FedFomo, without its decay of η by 1 % per epoch.
    lr: float = 0.1  # η
    downloads: int = 4  # M, other models per client and round; 5 with the client's own, as in that command
    explore: float = 0.3  # ε: the share of random choices
    decay: float = 0.05  # by how much ε decreases per round; in that command per epoch
    momentum: float = 0.0

    def start_server(self, start: Rows, round: Round) -> State:
        count = len(round.names)
        return {
            "models": start.expand(count),  # the last upload of each client
            "known": torch.zeros(count, dtype=torch.bool),
            "affinity": torch.zeros(count, count, dtype=torch.float64),  # P
        }

    def start_clients(self, start: Rows, cohort: Sequence[str]) -> State:
        return {"base": start.expand(len(cohort)), "personal": start.expand(len(cohort))}

    def message(self, server: State, cohort: Sequence[int], round: Round) -> Message:
        chosen = self._chosen(server, cohort, round)
        return Message(own={f"model {m}": server["models"][chosen[:, m]] for m in range(chosen.shape[1])})

    def _chosen(self, server: State, cohort: Sequence[int], round: Round) -> Tensor:
        """Positions of the clients whose models each client downloads, (K, M).

        ε-greedy: each choice is the remaining client of highest affinity, or a random one.
        """
        num, known, rows = len(round.names), server["known"].numpy(), np.asarray(cohort, dtype=np.int64)
        others = np.empty((len(rows), num - 1), dtype=np.int64)
        picks = np.zeros(
            (len(rows), min(self.downloads, num - 1)), dtype=np.int64
        )  # places in what is left of a ranking
        explore = self.explore - self.decay * (round.number - 1)
        for client, own, picked in zip(rows.tolist(), others, picks, strict=True):
            draws = _GENERATOR.at(round.seed, "fomo", round.number, round.names[client])
            shuffled = draws.permutation(num)
            own[:] = shuffled[shuffled != client]
            num_known = int(known.sum()) - int(known[client])
            for m in range(len(picked)):
                if draws.random() < explore:
                    picked[m] = draws.integers(max(1, num_known - m))
        affinity = server["affinity"].numpy()[rows[:, None], others]
        ranked = np.take_along_axis(others, np.lexsort((-affinity, ~known[others])), 1).tolist()
        chosen = [[left.pop(place) for place in places] for left, places in zip(ranked, picks.tolist(), strict=True)]
        return torch.tensor(chosen, dtype=torch.int64).reshape(picks.shape)

    def local_update(self, task: Task, message: Message, state: State, data: CohortData, round: Round) -> Update:
        models = [state["personal"], *(message[f"model {m}"] for m in range(len(message.own)))]
        value = worth(task, state["base"], models, data)
        mixed = mix(models, value)
        data.note(own_weight=weights(value)[:, 0])
        trained = local_sgd(task.gradient, mixed, data, self.lr, **self.sgd)
        share = value / value.abs().sum(1, keepdim=True).clamp(min=SMALLEST_SUM)
        return {"weights": trained, "worth": share[:, 1:]}, {"base": mixed, "personal": trained}

    def upload(self, message: Message) -> Declarations:
        # The mixture at which training starts is known to the client alone.
        weights = Weights(reference=Reference.INITIAL_WEIGHTS)
        return {"weights": weights, "worth": Scalar(shape=(len(message.own),))}

    def aggregate(self, server: State, uploads: Uploads, round: Round) -> State:
        clients = torch.tensor(uploads.clients)
        known, affinity = server["known"].clone(), server["affinity"].clone()
        known[clients] = True
        affinity[clients[:, None], self._chosen(server, uploads.clients, round)] += uploads["worth"]
        return {"models": server["models"].replace(clients, uploads["weights"]), "known": known, "affinity": affinity}

    def personal(self, task: Task, message: Message, state: State, data: CohortData) -> Rows:
        return state["personal"]

    def newcomer(self, task: Task, server: State, data: CohortData) -> Rows:
        """Mix all models that were ever uploaded with the initial weights, then train."""
        uploaded = server["models"][server["known"]]
        models = [task.start.expand(len(data)), *(uploaded[j : j + 1] for j in range(len(uploaded)))]
        mixed = mix(models, worth(task, task.start, models, data))
        steps = data.num_steps() * data.expected_rounds
        return local_sgd(task.gradient, mixed, data, self.lr, steps=steps, **self.sgd)


def worth(task: Task, base: Rows, models: Sequence[Rows], data: CohortData) -> Tensor:
    """The decrease of the validation loss per distance from the base (3), (K, M); 0 where it is undefined."""
    losses = task.sweep_losses([base, *models], data.sweep("validation"))
    distances = [length(rows - base) for rows in models]
    distance = torch.stack(torch.broadcast_tensors(*distances), 1)
    value = (losses[:, :1] - losses[:, 1:]) / distance
    return torch.where(distance > 0, value, 0.0).nan_to_num(0.0)


def length(rows: Rows) -> Tensor:
    """‖row‖, (K,), in one pass over the weights; `Rows.square_norm` needs two."""
    parts = [torch.linalg.vector_norm(block.reshape(len(rows), -1), dim=1) for block in rows.measured().blocks]
    return torch.stack([torch.zeros(len(rows)).to(rows.device), *parts]).double().square().sum(0).sqrt().cpu()


def weights(value: Tensor) -> Tensor:
    """Positive values, normalized; if there are none, the first model (the client's own) gets all the weight."""
    positive = value.clamp(min=0)
    total = positive.sum(1, keepdim=True)
    own = torch.zeros_like(value)
    own[:, 0] = 1
    return torch.where(total > 0, positive / total, own)


def mix(models: Sequence[Rows], value: Tensor) -> Rows:
    """Σ w_n θ_n, which is (4), θ_base + Σ w_n (θ_n − θ_base), as the weights sum to one."""
    shares = weights(value)
    total = models[0] * shares[:, 0]
    for m, rows in enumerate(models[1:], start=1):
        factors = [shares[:, m].to(block).reshape(-1, *[1] * (block.dim() - 1)) for block in total.blocks]
        torch._foreach_addcmul_(total.blocks, rows.expand(len(value)).blocks, factors)
    return total
