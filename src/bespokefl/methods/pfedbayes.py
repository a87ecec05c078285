"""pFedBayes: every weight has a Gaussian distribution, and personal distributions are kept close to a global one.

Zhang et al., ICML 2022, arXiv:2206.07977, Algorithm 1.
    client:  min over q_i = N(μ, σ²)  E_q[mean loss] + (ζ/n_i) KL(q_i ‖ w_i),   then w_i follows q_i by the same KL
    server:  w ← (1 − β) w + β mean(w_i), in (μ, ρ);   σ = softplus(ρ)
Differs from the paper: both objectives are divided by n_i, so that learning rates are those of a mean loss. Each batch
uses one draw of noise (K = 1) with standard deviation 1 (a common implementation: .001), from 65,536 quantiles of the
normal distribution, the largest 4.32. q_i is kept between rounds, as
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
PIECE = 2**17  # numbers of each value that are updated together
_softplus = torch.ops.aten.softplus.out  # F.softplus into existing memory


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
        kl_weight = self.weight / data.n.to(start[0].blocks[0])  # ζ / n
        steps = data.num_steps() * data.expected_rounds if newcomer else None

        def step(*values: Any) -> tuple[Any, ...]:
            *gaussians, kl_weight, which, batch = values
            mean, _, std, *_ = gaussians
            noise = data.quantile_noise(mean, f"weights/{batch.step}", which.tolist())  # ε ~ N(0, 1)
            pairs = zip(mean.blocks, std.blocks, noise.blocks, strict=True)
            slope = task.gradient(Rows(mean.layout, [torch.addcmul(*one) for one in pairs]), batch)
            for at in mean.layout.trained:
                blocks = [rows.blocks[at] for rows in (slope, noise, *gaussians)]
                of_row = kl_weight.reshape(-1, *[1] * (blocks[0].dim() - 1))
                pieces = zip(*(block.split(_piece(blocks[0])) for block in (of_row, 2 * of_row, *blocks)), strict=True)
                for piece in pieces:
                    self._step_(piece, batch.step + 1, newcomer)
            for at in (0, 3):  # the means; batch norm's running statistics are what the batch left
                gaussians[at] = Rows(mean.layout, gaussians[at].blocks, observed=slope.observed)
            return *gaussians, kl_weight, which

        # Contiguous, because softplus of expanded rows has other rounding errors.
        mean, rho, prior, prior_rho = (rows.expand(len(data)).clone() for rows in start)
        gaussians = mean, rho, rho.map(F.softplus), prior, prior_rho, prior_rho.map(F.softplus)
        zeros = [mean * 0.0] * (8 if self.optimizer == "adam" else 0)
        found = iterate(step, (*gaussians, *zeros, kl_weight, torch.arange(len(data))), data, steps=steps)
        return found[0], found[1], found[3], found[4]

    def _step_(self, values: Sequence[Tensor], number: int, newcomer: bool) -> None:
        """Change both distributions in place by the step of this number, from 1; slope is that at μ + σ ε."""
        kl_weight, rho_curvature, slope, noise, mean, rho, std, prior, prior_rho, prior_std, *moments = values
        variance = prior_std * prior_std
        curvature = kl_weight / variance  # of the KL in a mean; in ρ it is about 2 ζ/n
        damped = curvature + 1 / self.lr
        by_rho = (slope * noise).addcmul_(std, curvature).addcdiv_(kl_weight, std, value=-1).mul_(rho.sigmoid())
        _descend_(rho, by_rho, self.lr, rho_curvature + 1 / self.lr, moments[2:4], number)
        _softplus(rho, out=std)
        by_mean = torch.addcmul(slope, mean - prior, curvature)
        _descend_(mean, by_mean, self.lr, damped, moments[:2], number)
        if newcomer:
            return
        gap = prior - mean  # w_i follows the new q_i
        by_prior_std = variance.addcmul_(gap, gap, value=-1).addcmul_(std, std, value=-1).mul_(curvature)
        by_prior_rho = by_prior_std.div_(prior_std).mul_(prior_rho.sigmoid())
        if self.common_lr != self.lr:
            damped = curvature + 1 / self.common_lr
        _descend_(prior, gap.mul_(curvature), self.common_lr, damped, moments[4:6], number)
        _descend_(prior_rho, by_prior_rho, self.common_lr, rho_curvature + 1 / self.common_lr, moments[6:], number)
        _softplus(prior_rho, out=prior_std)

    def _rho(self, like: Rows) -> Rows:
        """ρ with softplus(ρ) = `deviation`."""
        return like * 0.0 + math.log(math.expm1(self.deviation))


def _piece(block: Tensor) -> int:
    """The number of rows whose values stay in the cache during a step."""
    return max(1, PIECE // block[0].numel()) if block.device.type == "cpu" else len(block)


def _descend_(
    value: Tensor, gradient: Tensor, lr: float, damped: Tensor, moments: Sequence[Tensor], number: int
) -> None:
    """Adam's step if there are moments, else a plain one, which the curvature shortens; damped is curvature + 1/η."""
    if not moments:
        value.addcdiv_(gradient, damped, value=-1)
        return
    mean, squares = moments
    mean.mul_(DECAY).add_(gradient, alpha=1 - DECAY)
    squares.mul_(SQUARES_DECAY).addcmul_(gradient, gradient, value=1 - SQUARES_DECAY)
    scale = (squares / (1 - SQUARES_DECAY**number)).sqrt_().add_(TINY)
    value.addcdiv_(mean, scale, value=-lr / (1 - DECAY**number))
