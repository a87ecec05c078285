"""pFedBayes: every weight has a Gaussian distribution, and personal distributions are kept close to a global one.

Zhang et al., ICML 2022, arXiv:2206.07977, Algorithm 1.
    client:  min over q_i = N(μ, σ²)  E_q[mean loss] + (ζ/n_i) KL(q_i ‖ w_i),   then w_i follows q_i by the same KL
    server:  w ← (1 − β) w + β mean(w_i), in (μ, ρ);   σ = softplus(ρ)
Differs from the paper: both objectives are divided by n_i, so that learning rates are those of a mean loss. Each batch
uses one draw of noise (K = 1) with standard deviation 1 (a common implementation: .001). q_i is kept between rounds, as
in that implementation. Steps are plain gradient steps divided by 1 + η · the curvature of the KL: they have the same
fixed point and do not diverge if ζ/(n_i σ²) is large. `optimizer="adam"` takes Adam's instead, as that implementation
does, with moments that start at zero in every round. Predictions are those of the mean weights. Running statistics of
batch norm have no distribution: they are averaged with the means, and their columns of ρ have no meaning.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from bespokefl.core.local_sgd import iterate
from bespokefl.core.method import ALL, CohortData, Message, Method, Phase, Round, Rows, State, Task, Update, Uploads
from bespokefl.core.uploads import Declarations, Weights
from bespokefl.core.user_input.hyper_parameters import above, one_of

DECAY, SQUARES_DECAY, TINY = 0.9, 0.999, 1e-8  # β₁, β₂ and ε of Adam


@dataclass(frozen=True, kw_only=True)
class PFedBayes(Method):
    """Each client learns Gaussian weights that are regularized towards a global Gaussian."""

    name = "pfedbayes"
    limits = {
        "weight": above(0, "ζ"),
        "deviation": above(0, "initial σ"),
        "mix": above(0, "β"),
        "optimizer": one_of("sgd", "adam"),
    }

    # No code of the authors was found. github.com/AllenBeau/pFedBayes, by another author, names as the paper's setting
    # for MNIST: ρ = −2.5, ζ = 10, η = .001.
    lr: float = 0.05  # η₁, for the personal distribution: FedAvg's here, as .001 is Adam's
    common_lr: float = 0.05  # η₂, for the global one
    weight: float = 10.0  # ζ of the KL
    deviation: float = 0.08  # σ of every weight at the start: softplus(−2.5)
    mix: float = 1.0  # β: plain averaging
    weights: str = "equal"  # the paper's mean, or "examples"
    optimizer: str = "sgd"  # or "adam", for which .001 is a usual rate

    def phases(self, rounds: int) -> list[Phase]:
        return [Phase("train", rounds, trains=ALL)]  # all train, a sample reports

    def start_server(self, start: Rows, round: Round) -> State:
        return {"mean": start, "rho": self._rho(start)}

    def start_clients(self, start: Rows, cohort: Sequence[str]) -> State:
        return {"mean": start.expand(len(cohort)), "rho": self._rho(start).expand(len(cohort))}

    def message(self, server: State, cohort: Sequence[int], round: Round) -> Message:
        return Message(shared={"mean": server["mean"], "rho": server["rho"]})

    def local_update(self, task: Task, message: Message, state: State, data: CohortData, round: Round) -> Update:
        start = (state["mean"], state["rho"], message["mean"], message["rho"])
        mean, rho, global_mean, global_rho = self._train(task, start, data)
        return {"mean": global_mean, "rho": global_rho}, {"mean": mean, "rho": rho}

    def upload(self, message: Message) -> Declarations:
        return {"mean": Weights(), "rho": Weights()}

    def aggregate(self, server: State, uploads: Uploads, round: Round) -> State:
        means = {name: uploads.mean(name, by=self.weights) for name in ("mean", "rho")}
        mixed = {name: server[name] * (1 - self.mix) + mean * self.mix for name, mean in means.items()}
        return {name: rows.with_statistics(means[name]) for name, rows in mixed.items()}

    def personal(self, task: Task, message: Message, state: State, data: CohortData) -> Rows:
        return state["mean"]

    def global_model(self, server: State) -> Rows | None:
        return server["mean"]

    def newcomer(self, task: Task, server: State, data: CohortData) -> Rows:
        start = (server["mean"], server["rho"], server["mean"], server["rho"])
        return self._train(task, start, data, newcomer=True)[0]

    def _train(
        self, task: Task, start: tuple[Rows, Rows, Rows, Rows], data: CohortData, *, newcomer: bool = False
    ) -> tuple[Rows, Rows, Rows, Rows]:
        """q_i and w_i after a round; for a newcomer, q_i after all its rounds while w_i stays fixed."""
        kl_weight = self.weight / data.n.double()  # ζ / n
        steps = data.num_steps() * data.expected_rounds if newcomer else None

        def step(
            mean: Rows, rho: Rows, prior: Rows, prior_rho: Rows, kl_weight: Tensor, which: Tensor, *rest: Any
        ) -> tuple[Any, ...]:
            *moments, batch = rest
            descent = _Descent(moments, batch.step + 1)
            noise = data.take(which.tolist()).normal(mean, "weights", batch.step)  # ε ~ N(0, 1)
            std, prior_std = rho.map(F.softplus), prior_rho.map(F.softplus)
            # The curvature of the KL in a mean; in ρ it is about 2 ζ/n.
            curvature = prior_std.map(torch.square).map(torch.reciprocal) * kl_weight
            found = task.gradient(mean + std * noise, batch)
            by_std = found * noise + std * curvature - std.map(torch.reciprocal) * kl_weight
            by_rho = by_std * rho.map(torch.sigmoid)
            mean = descent(mean, found + (mean - prior) * curvature, self.lr, curvature)
            rho = descent(rho, by_rho, self.lr, 2 * kl_weight)
            if newcomer:
                return mean, rho, prior, prior_rho, kl_weight, which, *descent.new
            gap, std = mean - prior, rho.map(F.softplus)  # w_i follows the new q_i
            by_prior = prior_std.map(torch.reciprocal) * kl_weight - (std * std + gap * gap) * curvature / prior_std
            prior = descent(prior, gap * curvature * -1.0, self.common_lr, curvature)
            prior_rho = descent(prior_rho, by_prior * prior_rho.map(torch.sigmoid), self.common_lr, 2 * kl_weight)
            return mean, rho, prior, prior_rho, kl_weight, which, *descent.new

        trained = 2 if newcomer else 4
        zeros = [start[0] * 0.0] * (2 * trained if self.optimizer == "adam" else 0)
        return iterate(step, (*start, kl_weight, torch.arange(len(data)), *zeros), data, steps=steps)[:4]

    def _rho(self, like: Rows) -> Rows:
        """ρ with softplus(ρ) = `deviation`."""
        return like * 0.0 + math.log(math.expm1(self.deviation))


class _Descent:
    """Gradient steps of several values in turn: Adam's if there are moments, two for each value, else plain ones."""

    def __init__(self, moments: Sequence[Rows], number: int) -> None:
        self.moments, self.number = moments, number  # the step's number, from 1
        self.new: list[Rows] = []

    def __call__(self, value: Rows, gradient: Rows, lr: float, curvature: Rows | Tensor) -> Rows:
        """Return the value after a step; `curvature` shortens a plain one."""
        if not self.moments:
            return value - gradient / (1 / lr + curvature)
        at = len(self.new)
        mean = self.moments[at] * DECAY + gradient * (1 - DECAY)
        squares = self.moments[at + 1] * SQUARES_DECAY + gradient * gradient * (1 - SQUARES_DECAY)
        self.new += [mean, squares]
        scale = (squares / (1 - SQUARES_DECAY**self.number)).map(torch.sqrt) + TINY
        return value - mean / (1 - DECAY**self.number) / scale * lr
