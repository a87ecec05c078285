"""pFedVEM: each client has a posterior over its last layer, and the server weights clients by their confidence.

Zhu, Ma, Blaschko, CVPR 2023, Algorithm 1. The head w_j of client j has the prior N(w, ρ_j² I) around the server's
latent head w and the posterior q_j = N(μ_j, Σ_j), Σ_j diagonal; the base θ is averaged as in FedAvg.
    max_{q, ρ², w} Σ_j E_{q_j} log p(D_j | w_j) − KL(q_j ‖ N(w, ρ_j² I))                                            (5)
    τ_j = 1/ρ_j² = d / (Tr Σ_j + ‖μ_j − w‖²)   (8)          w = Σ_j τ_j μ_j / Σ_j τ_j   (9)
Differs from the paper:
- w⁰ ~ N(0, 1), or the head of given weights; a client starts with μ_j = w and ρ_j² = σ² = `initial_variance`.
- (8) uses the client's old q_j and the received w (line 13 prints later indices).
- The objective is minus (6) with the full KL: the bound (10) drops a factor d, the Monte-Carlo form has a wrong sign.
- η acts on a sum over a client's examples. By default it is `mean_head_lr` / n_j, so that one rate fits clients of all
  sizes; `head_lr` is the paper's η, equal for all.
- In the KL τ_j is at most 95 % of 2 (1 + momentum) / η, above which steps of size η diverge. (9) uses τ_j unchanged.
- Each client reports with the probability `participation`, but at least two do, or all if there are fewer.
- If the objective is not finite after the head steps, the client restores its head of the beginning of the round.
- In the ablations τ_j is d over the one term, in the KL and in (9); the first ρ_j² is `initial_variance`, too.
- A newcomer's prior has the mean of the last reported ρ_j².
- The learning rates are the authors' for CIFAR-100, R is theirs for CIFAR-10: of both settings' values, the best on the
  validation data of digits.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from bespokefl.core.cohort_data import Batch
from bespokefl.core.errors import InputError, listing
from bespokefl.core.local_sgd import local_sgd
from bespokefl.core.method import ALL, CohortData, Message, Method, Phase, Round, Rows, State, Task, Update, Uploads
from bespokefl.core.nn.heads import Sweep, base_gradient
from bespokefl.core.uploads import Declarations, Scalar, Weights
from bespokefl.core.user_input.hyper_parameters import above, at_least, one_of

TERMS = ("full", "uncertainty", "deviation")
LEAST_VARIANCE = 1e-12  # of ρ_j², so that τ_j is finite

Array = Rows | Tensor | np.ndarray


def confidence(mean: Array, std: Array, latent: Array) -> Tensor:
    """τ = d / (Tr Σ + ‖μ − w‖²), (8), over the last dimension; one value per row."""
    mean, std, latent = _tensors(mean, std, latent)
    return mean.shape[-1] / (std.square().sum(-1) + (mean - latent).square().sum(-1))


def divergence(mean: Array, std: Array, latent: Array, prior_variance: float | Tensor | np.ndarray) -> Tensor:
    """KL(N(μ, diag σ²) ‖ N(w, ρ² I)), over the last dimension; one value, and one ρ² if they differ, per row."""
    mean, std, latent = _tensors(mean, std, latent)
    variance = torch.as_tensor(prior_variance, dtype=mean.dtype, device=mean.device)
    squares = std.square().sum(-1) + (mean - latent).square().sum(-1)
    return (squares / variance + mean.shape[-1] * (variance.log() - 1)) / 2 - std.log().sum(-1)


@dataclass(frozen=True, kw_only=True)
class PFedVEM(Method):
    """A shared base and a Bayesian head per client; heads are averaged by their confidence."""

    name = "pfedvem"
    limits = {
        "initial_variance": above(0, "initial ρ²"),
        "head_steps": at_least(1, "R"),
        "samples": at_least(1, "K"),
        "confidence": one_of(*TERMS),
    }

    mean_head_lr: float = 0.1  # η n_j: of the head, on a mean over the client's examples
    head_lr: float | None = None  # the paper's η instead: on a sum over the client's examples
    base_lr: float = 0.01  # on a mean over a batch
    head_steps: int = 10  # R, full batch
    samples: int = 5  # K heads drawn per step
    momentum: float = 0.9  # of both, reset in every round
    initial_variance: float = 0.01  # the first ρ_j²
    confidence: str = "full"  # or one term of (8) alone: "uncertainty", "deviation"

    def phases(self, rounds: int) -> list[Phase]:
        return [Phase("train", rounds, trains=ALL, sampling="bernoulli")]  # all train, a sample reports

    def start_server(self, start: Rows, round: Round) -> State:
        head = start.block("head")
        if head.layout.statistics:
            raise InputError(
                f"pfedvem needs a head without running statistics, got {listing(head.layout.statistics)}: name the "
                "linear layer after it as the head."
            )
        if not round.warm:
            drawn = torch.from_numpy(round.generator("pfedvem head").standard_normal((1, head.layout.width)))
            head = Rows.from_matrix(head.layout, drawn.to(device=head.device, dtype=head.dtype))  # w⁰
        variance = torch.tensor([self.initial_variance], dtype=torch.float64)
        return {"weights": start.with_block(head), "variance": variance}

    def start_clients(self, start: Rows, cohort: Sequence[str]) -> State:
        size = len(cohort)
        variance = torch.full((size,), self.initial_variance, dtype=start.dtype)
        rounds = torch.zeros(size, dtype=torch.int64)
        return {"personal": start.expand(size), "raw": _raw(start.block("head"), variance), "rounds": rounds}

    def local_update(self, task: Task, message: Message, state: State, data: CohortData, round: Round) -> Update:
        received: Rows = message["weights"]  # (θ^t, w^t)
        mean, std = _own(state, received).block("head"), state["raw"].map(F.softplus)
        trace, deviation = std.square_norm(), (mean - received.block("head")).square_norm()
        term = {"full": trace + deviation, "uncertainty": trace, "deviation": deviation}[self.confidence]
        variance = (term / mean.layout.width).clamp(min=LEAST_VARIANCE)  # ρ_j², (8)
        variance = variance.masked_fill(state["rounds"] == 0, self.initial_variance)
        head, raw, restored = self._posterior(task, received, mean, state["raw"], variance, data, self.head_steps)
        model = self._base(task, received.with_block(head), raw, data)
        data.note(confidence=1 / variance, trace=trace, deviation=deviation, restored=restored.long())
        upload = {"weights": model, "confidence": 1 / variance}  # Σ_j stays
        return upload, {"personal": model, "raw": raw, "rounds": state["rounds"] + 1}

    def upload(self, message: Message) -> Declarations:
        confidence = Scalar(LEAST_VARIANCE / 2, 2 / LEAST_VARIANCE, dtype=None, typical=1 / self.initial_variance)
        return {"weights": Weights(), "confidence": confidence}

    def aggregate(self, server: State, uploads: Uploads, round: Round) -> State:
        confidences: Tensor = uploads["confidence"]
        latent = uploads.mean("weights", by=confidences).block("head")  # (9)
        variance = (1 / confidences.double()).mean().reshape(1)
        round.note(prior_variance=float(variance))
        return {"weights": uploads.mean("weights", by="examples").with_block(latent), "variance": variance}

    def personal(self, task: Task, message: Message, state: State, data: CohortData) -> Rows:
        return _own(state, message["weights"])

    def newcomer(self, task: Task, server: State, data: CohortData) -> Rows:
        received: Rows = server["weights"]
        latent = received.block("head").expand(len(data))
        variance = server["variance"].to(device=latent.device, dtype=latent.dtype).expand(len(data))
        steps = self.head_steps * data.expected_rounds
        head, raw, _ = self._posterior(task, received, latent, _raw(latent, variance), variance, data, steps)
        return self._base(task, received.with_block(head), raw, data)

    def _posterior(
        self, task: Task, received: Rows, mean: Rows, raw: Rows, variance: Tensor, data: CohortData, steps: int
    ) -> tuple[Rows, Rows, Tensor]:
        """(μ, π) after full-batch steps on (1/K) Σ_k Σ_i loss + KL(q ‖ N(w, ρ² I)), and which rows were restored."""
        start, latent, plan, clients = (mean, raw), received.block("head"), data.sweep("train"), torch.arange(len(data))
        rate = self._head_rate(data).to(variance)
        confidences = torch.minimum(1 / variance, 0.95 * 2 * (1 + self.momentum) / rate)
        fit, weight = Sweep(task, received, plan), data.n.double() / self.samples
        speed_mean, speed_raw = mean * 0.0, raw * 0.0
        for step in range(steps):
            std = raw.map(F.softplus)  # (11)
            noises, sampled = self._sampled(mean, std, data, clients, "pfedvem posterior", step)
            by_mean = fit.gradients(sampled)
            by_std = [slope * noise for slope, noise in zip(by_mean, noises, strict=True)]
            slope_mean = weight * sum(by_mean[1:], by_mean[0]) + confidences * (mean - latent)  # data, and KL
            slope_std = weight * sum(by_std[1:], by_std[0]) + confidences * std - std.map(torch.reciprocal)
            speed_mean = self.momentum * speed_mean + slope_mean
            speed_raw = self.momentum * speed_raw + slope_std * raw.map(torch.sigmoid)
            mean, raw = mean - rate * speed_mean, raw - rate * speed_raw
        loss, gap = fit.losses(mean), divergence(mean, raw.map(F.softplus), latent, 1 / confidences)
        bad = ~torch.isfinite(loss.cpu() + gap.cpu())
        return mean.replace(bad, start[0][bad]), raw.replace(bad, start[1][bad]), bad

    def _head_rate(self, data: CohortData) -> Tensor:
        """η of each client."""
        sizes = data.n.double().clamp(min=1)
        return self.mean_head_lr / sizes if self.head_lr is None else torch.full_like(sizes, self.head_lr)

    def _base(self, task: Task, model: Rows, raw: Rows, data: CohortData) -> Rows:
        """Local SGD of the base on the mean loss of heads that are sampled anew for every batch."""

        def gradient(rows: Rows, batch: Batch, std: Rows, which: Tensor) -> Rows:
            _, sampled = self._sampled(rows.block("head"), std, data, which, "pfedvem base", batch.step)
            return base_gradient(task, rows, batch, sampled)

        per_row: Any = (raw.map(F.softplus), torch.arange(len(data)))
        return local_sgd(gradient, model, data, self.base_lr, momentum=self.momentum, frozen="head", per_row=per_row)

    def _sampled(
        self, mean: Rows, std: Rows, data: CohortData, which: Tensor, purpose: str, step: int
    ) -> tuple[list[Rows], list[Rows]]:
        """K draws of noise ε and the heads μ + σ ε; `which` are the rows' positions in the cohort."""
        drawn = data.normals(f"{purpose}/{step}", which.tolist(), (self.samples, mean.layout.width))
        noise = torch.from_numpy(drawn).to(device=mean.device, dtype=mean.dtype)
        noises = [Rows.from_matrix(mean.layout, one) for one in noise.unbind(1)]
        return noises, [mean + std * noise for noise in noises]


def _own(state: State, received: Rows) -> Rows:
    """Each client's model; before its first round, the received one."""
    personal: Rows = state["personal"]
    trained = state["rounds"] > 0
    return received.expand(len(personal)).replace(trained, personal[trained])


def _raw(head: Rows, variance: Tensor) -> Rows:
    """π such that softplus(π)² is the row's variance in every entry."""
    scale = variance.sqrt()
    return (head * 0.0).expand(len(variance)) + (scale + torch.log(-torch.expm1(-scale)))


def _tensors(mean: Array, *others: Array) -> list[Tensor]:
    first, *rest = [one.matrix() if isinstance(one, Rows) else torch.as_tensor(one) for one in (mean, *others)]
    first = first if first.is_floating_point() else first.double()
    return list(torch.broadcast_tensors(first, *[one.to(first) for one in rest]))
