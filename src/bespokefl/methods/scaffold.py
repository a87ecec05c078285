"""SCAFFOLD: control variates correct the difference between a client's gradients and the average gradient.

Karimireddy et al., ICML 2020, arXiv:1910.06378, Algorithm 1, option II.
    y ← y − η (∇F_i(y) − c_i + c)
    c_i⁺ = c_i − c + (x − y_i) / (K η)
    x ← x + η_g mean(y_i − x),   c ← c + (|S|/N) mean(c_i⁺ − c_i)
Differs from the paper: K is each client's own number of steps. `weights="examples"` weights both means by n_k and
replaces 1/N by n_k/n: c is Σ_k (n_k / n) c_k, as x would converge to the unweighted optimum otherwise. Until all have
reported, n is estimated as N times the mean n_k of those that have. Running statistics of batch norm have no control
variates, and are averaged whatever η_g is.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from bespokefl.core.local_sgd import Penalty, local_sgd
from bespokefl.core.method import CohortData, Message, Method, Round, Rows, State, Task, Update, Uploads
from bespokefl.core.uploads import Declarations, Reference, Weights


@dataclass(frozen=True, kw_only=True)
class Scaffold(Method):
    """One global model; control variates correct the drift of local training."""

    name = "scaffold"

    lr: float = 0.05  # η, the clients' rate: FedAvg's here, as the paper tunes it for each algorithm
    server_lr: float = 1.0  # η_g, the paper's, in all its experiments
    weights: str = "equal"  # the paper's mean, or "examples": n_k / n

    def start_server(self, start: Rows, round: Round) -> State:
        unknown = torch.zeros(len(round.names), dtype=torch.float64)
        return {"weights": start, "control": start * 0.0, "counts": unknown}  # x, c, each client's weight

    def start_clients(self, start: Rows, cohort: Sequence[str]) -> State:
        return {"control": (start * 0.0).expand(len(cohort))}  # c_i

    def message(self, server: State, cohort: Sequence[int], round: Round) -> Message:
        return Message(shared={"weights": server["weights"], "control": server["control"]})

    def local_update(self, task: Task, message: Message, state: State, data: CohortData, round: Round) -> Update:
        x, c, own = message["weights"], message["control"], state["control"]
        y = local_sgd(task.gradient, x, data, self.lr, penalty=Penalty(slope=c - own))  # ∇F_i(y) − c_i + c
        control = own - c + (x - y) / (data.num_steps().double() * self.lr)  # option II
        control = control.with_statistics(own)
        return {"change": y - x, "control": control - own}, {"control": control}

    def upload(self, message: Message) -> Declarations:
        change = Weights(reference=Reference.ZERO, change_of="weights")
        return {"change": change, "control": Weights(reference=Reference.ZERO)}

    def aggregate(self, server: State, uploads: Uploads, round: Round) -> State:
        counts, clients = server["counts"], list(uploads.clients)
        own = uploads.examples.double() if self.weights == "examples" else torch.ones(len(uploads)).double()
        replaced = counts[clients]
        known, weights = counts.count_nonzero(), counts.sum()
        before = _total(weights, known, len(counts))  # N, or an estimate of n that may change
        total = _total(weights + (own - replaced).sum(), known + (replaced == 0).sum(), len(counts))
        x, change = server["weights"], uploads.mean("change", by=self.weights)
        return {
            "weights": (x + change * self.server_lr).with_statistics(x + change),
            "control": server["control"] * (before / total)
            + uploads.mean("control", by=self.weights) * (own.sum() / total),  # |S| / N
            "counts": counts.index_copy(0, torch.tensor(clients), own),
        }

    def newcomer(self, task: Task, server: State, data: CohortData) -> Rows:
        return server["weights"]


def _total(weights: Tensor, known: Tensor, clients: int) -> Tensor:
    """The sum of all clients' weights; unknown ones (0) are estimated by the mean of the known."""
    return weights / known.clamp(min=1) * clients
