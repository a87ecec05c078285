"""pFedBayes: every weight is a Gaussian; the personal distribution is held near a common one.

Zhang et al., ICML 2022, arXiv:2206.07977, Algorithm 1.
    client:  min over q_i = N(μ, σ²)  E_q[mean loss] + (ζ/n_i) KL(q_i ‖ w_i),   then w_i follows q_i by the same KL
    server:  w ← (1 − β) w + β mean(w_i), in (μ, ρ);   σ = softplus(ρ)
Differs from the paper: both objectives are divided by n_i, so that rates are those of a mean loss. One draw of noise
(K = 1), of standard deviation 1, serves a batch (a common implementation has .001). q_i goes on from round to round, as
it does there. Plain steps instead of Adam's, divided by 1 + η · the curvature of the KL: they end at the same place and
do not diverge where ζ/(n_i σ²) is large. Predictions are those of the mean weights.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from bespokefl.core.cohort_data import Batch, CohortData
from bespokefl.core.errors import InputError
from bespokefl.core.local_sgd import iterate
from bespokefl.core.method import ALL, Message, Method, Phase, Round, State, Update, Uploads
from bespokefl.core.rows import Rows
from bespokefl.core.task import Task


@dataclass(frozen=True, kw_only=True)
class PFedBayes(Method):
    """Gaussian weights, held near a common Gaussian."""

    name: ClassVar[str] = "pfedbayes"
    citation: ClassVar[str] = """@inproceedings{zhang2022personalized,
  title={Personalized Federated Learning via Variational {Bayesian} Inference},
  author={Zhang, Xu and Li, Yinchuan and Li, Wenpeng and Guo, Kaiyang and Shao, Yunfeng},
  booktitle={ICML},
  year={2022}
}"""

    # No code of the authors was found. github.com/AllenBeau/pFedBayes, by somebody else, gives as the paper's setting
    # for MNIST: ρ = −2.5, ζ = 10, η = .001.
    lr: float = 0.05  # η₁, for the personal distribution: FedAvg's here, as .001 is Adam's
    common_lr: float = 0.05  # η₂, for the common one
    weight: float = 10.0  # ζ of the KL
    deviation: float = 0.08  # σ of every weight at the start: softplus(−2.5)
    mix: float = 1.0  # β: plain averaging
    weights: str = "equal"  # the paper's mean, or "examples"

    def check(self) -> None:
        super().check()
        for name, meaning in (("weight", "ζ"), ("deviation", "first σ"), ("mix", "β")):
            if not getattr(self, name) > 0:
                raise InputError(f"{name} must be > 0, got {getattr(self, name)} (pFedBayes's {meaning}).")

    def phases(self, rounds: int) -> list[Phase]:
        return [Phase("train", rounds, trains=ALL)]  # all train, a sample reports

    def start_server(self, start: Rows, round: Round) -> State:
        return {"mean": start, "rho": self._rho(start)}

    def start_clients(self, start: Rows, cohort: Sequence[str]) -> State:
        return {"mean": start.expand(len(cohort)), "rho": self._rho(start).expand(len(cohort))}

    def message(self, server: State, cohort: Sequence[int], round: Round) -> Message:
        return Message(shared={"mean": server["mean"], "rho": server["rho"]})

    def local_update(self, task: Task, message: Message, state: State, data: CohortData, round: Round) -> Update:
        begin = (state["mean"], state["rho"], message["mean"], message["rho"])
        mean, rho, common_mean, common_rho = self._train(task, begin, data)
        return {"mean": common_mean, "rho": common_rho}, {"mean": mean, "rho": rho}

    def upload(self, start: Rows, server: State, round: Round) -> State:
        return {"mean": start, "rho": start}

    def aggregate(self, server: State, uploads: Uploads, round: Round) -> State:
        return {
            name: server[name] * (1 - self.mix) + uploads.mean(name, by=self.weights) * self.mix
            for name in ("mean", "rho")
        }

    def personal(self, task: Task, message: Message, state: State, data: CohortData) -> Rows:
        mean: Rows = state["mean"]
        return mean

    def global_model(self, server: State) -> Rows | None:
        mean: Rows = server["mean"]
        return mean

    def newcomer(self, task: Task, server: State, data: CohortData) -> Rows:
        begin = (server["mean"], server["rho"], server["mean"], server["rho"])
        return self._train(task, begin, data, newcomer=True)[0]

    def _train(
        self, task: Task, begin: tuple[Rows, Rows, Rows, Rows], data: CohortData, *, newcomer: bool = False
    ) -> tuple[Rows, Rows, Rows, Rows]:
        """q_i and the copy of the common distribution after a round; for a newcomer, q_i alone after a lifetime."""
        pull = self.weight / data.n.double()  # ζ / n
        steps = data.num_steps() * data.expected_rounds if newcomer else None

        def step(
            mean: Rows, rho: Rows, common: Rows, common_rho: Rows, pull: Tensor, which: Tensor, batch: Batch
        ) -> tuple[Rows, Rows, Rows, Rows, Tensor, Tensor]:
            noise = data.take(which.tolist()).normal(mean, "weights", batch.step)  # ε ~ N(0, 1)
            std, wide = rho.map(F.softplus), common_rho.map(F.softplus)
            stiff = (
                wide.map(torch.square).map(torch.reciprocal) * pull
            )  # the curvature of the KL in a mean; in ρ it is about 2 ζ/n
            found = task.gradient(mean + std * noise, batch)
            by_std = found * noise + std * stiff - std.map(torch.reciprocal) * pull
            mean = mean - (found + (mean - common) * stiff) / (1 / self.lr + stiff)
            rho = rho - by_std * rho.map(torch.sigmoid) / (1 / self.lr + 2 * pull)
            if newcomer:
                return mean, rho, common, common_rho, pull, which
            # The copy of the common distribution follows the new q.
            gap, std = mean - common, rho.map(F.softplus)
            by_wide = wide.map(torch.reciprocal) * pull - (std * std + gap * gap) * stiff / wide
            common = common + gap * stiff / (1 / self.common_lr + stiff)
            common_rho = common_rho - by_wide * common_rho.map(torch.sigmoid) / (1 / self.common_lr + 2 * pull)
            return mean, rho, common, common_rho, pull, which

        found = iterate(step, (*begin, pull, torch.arange(len(data))), data, steps=steps)
        return found[0], found[1], found[2], found[3]

    def _rho(self, like: Rows) -> Rows:
        """ρ with softplus(ρ) = `deviation`."""
        return like * 0.0 + math.log(math.expm1(self.deviation))
