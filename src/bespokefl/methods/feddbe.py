"""FedDBE: what is biased about a client's features goes into a memory of its own, so that the base stays common.

Zhang et al., "Eliminating Domain Bias for Federated Learning in Representation Space", NeurIPS 2023, arXiv:2311.14975.
FedAvg of base f and head g; client i keeps a vector z̄_i^p, as long as the features (PRBM), and its features' mean is
regularized (MR) towards z̄^g = Σ n_i/n z̄_i^g, which is collected in one round before training.
    min E ℓ(g(f(x) + z̄_i^p), y) + κ/2 · mean((z̄_i^g − z̄^g)²),   z̄_i^g ← (1 − μ) z̄_i^g + μ · mean of f(x) in the batch
Differs from the paper:
- κ multiplies half of the mean square, as in the authors' code.
- The first round: every client trains for a round without z̄_i^p and regularization and uploads the mean of its features
  over all of its examples; its model is discarded. (In that code, the running mean of the training, with μ = 1 that of
  the last batch.) Without κ there is no such round.
- The running mean starts in every round at z̄^g, not at zero, from which a μ < 1 would take long.
- The head must be one linear layer with a bias: then z̄_i^p shifts this bias by W z̄_i^p, and personal models have the
  shape of the global one.
- A newcomer, which the paper fine-tunes, uses the global model and trains a memory of its own.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from bespokefl.core.cohort_data import Batch
from bespokefl.core.errors import InputError
from bespokefl.core.local_sgd import iterate, local_sgd
from bespokefl.core.method import ALL, CohortData, Message, Method, Phase, Round, Rows, State, Task, Update, Uploads
from bespokefl.core.nn.heads import head_inputs, head_slope, split_gradient
from bespokefl.core.rows import Layout
from bespokefl.core.uploads import Declarations, Scalar, Weights
from bespokefl.core.user_input.hyper_parameters import at_least, interval

COLLECT, TRAIN = "collect", "train"  # phases
LARGEST_MEAN = 1e6  # of a feature; the server rejects larger ones, with which training would diverge


@dataclass(frozen=True, kw_only=True)
class FedDBE(Method):
    """A global model; each client adds a learned vector to the features, whose means are regularized."""

    name = "feddbe"
    limits = {"mean_weight": at_least(0, "κ"), "mean_momentum": interval("(0, 1]", "μ")}

    # κ and μ are those of the authors' code, github.com/TsingZ0/DBE, system/run_me.sh, for Fashion-MNIST and a CNN; its
    # rate is .005.
    lr: float = 0.05  # of the model and of the memory
    mean_weight: float = 50.0  # κ; 0 leaves out the regularization
    mean_momentum: float = 1.0  # μ
    memory: bool = True  # whether clients have z̄^p; without it and κ, this is FedAvg
    weights: str = "examples"  # n_k / n, or "equal"

    def phases(self, rounds: int) -> list[Phase]:
        collect = [Phase(COLLECT, 1, trains=ALL, reports=ALL)] if self.mean_weight else []
        return [*collect, Phase(TRAIN, rounds)]

    def start_server(self, start: Rows, round: Round) -> State:
        _width(start)  # refuse other heads at once
        return {"weights": start}

    def start_clients(self, start: Rows, cohort: Sequence[str]) -> State:
        return {"memory": start.blocks[0].new_zeros(len(cohort), _width(start))}  # z̄^p

    def message(self, server: State, cohort: Sequence[int], round: Round) -> Message:
        return Message(shared=server)  # the model and, once it is known, z̄^g

    def local_update(self, task: Task, message: Message, state: State, data: CohortData, round: Round) -> Update:
        w: Rows = message["weights"]
        if round.phase == COLLECT:
            trained = local_sgd(task.gradient, w, data, self.lr)
            return {"mean": mean_features(task, trained, data)}, state
        trained, memory = self._train(task, message, state["memory"].to(w.device), data)
        data.note(memory=memory.double().norm(dim=1))
        return {"weights": trained}, {"memory": memory}

    def upload(self, message: Message) -> Declarations:
        shape = (_width(message["weights"]),) if "weights" in message else ()
        mean = Scalar(-LARGEST_MEAN, LARGEST_MEAN, shape=shape, dtype=None, phase=COLLECT)
        return {"mean": mean, "weights": Weights(phase=TRAIN)}

    def aggregate(self, server: State, uploads: Uploads, round: Round) -> State:
        if round.phase == COLLECT:
            means: Tensor = uploads["mean"]
            mean = uploads.shares().to(means).unsqueeze(0) @ means  # Σ n_i/n z̄_i^g
            mean = mean.to(server["weights"].device)
            return server | {"mean": Rows.from_matrix(Layout(("features",), (mean.shape[1:],)), mean)}
        return server | {"weights": uploads.mean("weights", by=self.weights)}

    def personal(self, task: Task, message: Message, state: State, data: CohortData) -> Rows:
        return shifted(message["weights"], state["memory"].to(message["weights"].device))

    def newcomer(self, task: Task, server: State, data: CohortData) -> Rows:
        w: Rows = server["weights"]
        memory = self.start_clients(w, data.names)["memory"]
        if not self.memory:
            return shifted(w, memory)

        def step(memory: Tensor, batch: Batch) -> tuple[Tensor]:
            slope = task.gradient(shifted(w, memory).freeze(w.layout.base), batch)
            return (memory - self.lr * by_memory(w, slope),)

        (memory,) = iterate(step, (memory,), data, steps=data.num_steps() * data.expected_rounds)
        return shifted(w, memory)

    def _train(self, task: Task, message: Message, memory: Tensor, data: CohortData) -> tuple[Rows, Tensor]:
        """Local SGD of the model and of the memory."""
        alone = head_inputs(task, data)  # of a logistic model, whose features' mean is given
        mean: Rows = message["mean"] if "mean" in message else Rows(Layout((), ()), (), size=len(data))
        layout: Layout = message["weights"].layout
        at_head, at_base = ([layout.names.index(name) for name in names] for names in (layout.head, layout.base))

        def step(w: Rows, memory: Tensor, gap: Tensor, mean: Rows, batch: Batch) -> tuple[Rows, Tensor, Tensor, Rows]:
            if alone is not None:
                inputs, base = batch.x + memory.unsqueeze(1), None
                slope = head_slope(task, replace(batch, x=inputs), *w.blocks)
                task.work.add(len(batch), batch.num_examples())
            else:
                gaps: list[Tensor] = []  # one for all rows or one per row, as the task computes them
                found = split_gradient(task, w, batch, memory, self._pull(gaps) if mean.blocks else None, (gap, mean))
                if found is None:
                    return *self._whole_step(task, w, memory, mean, batch), gap, mean
                base, slope, inputs = found
                gap = torch.cat(gaps) if gaps else gap
            weight, bias = (w.blocks[i] for i in at_head)
            by_bias = slope.sum(2)
            new = memory - self.lr * _through(weight, by_bias) if self.memory else memory
            weight.baddbmm_(slope, inputs, alpha=-self.lr)
            bias.sub_(by_bias, alpha=self.lr)
            if base is None:
                return w, new, gap, mean
            torch._foreach_add_([w.blocks[i] for i in at_base], base.blocks, alpha=-self.lr)
            return Rows(w.layout, w.blocks, observed=base.observed), new, gap, mean

        start = message["weights"], memory, torch.zeros_like(memory), mean
        w, memory, _, _ = iterate(step, start, alone or data)
        return w, memory

    def _pull(self, gaps: list[Tensor]) -> Callable[..., Tensor]:
        """The gradient of κ/2 · mean((z̄_i^g − z̄^g)²) with respect to the batch's mean of the features."""

        def pull(features: Tensor, batch: Batch, gap: Tensor, mean: Rows) -> Tensor:
            gap = (1 - self.mean_momentum) * gap + self.mean_momentum * (batch.mean(features) - mean.blocks[0])
            gaps.append(gap)  # z̄_i^g − z̄^g with this batch
            return gap * (self.mean_weight * self.mean_momentum / gap.shape[1])

        return pull

    def _whole_step(self, task: Task, w: Rows, memory: Tensor, mean: Rows, batch: Batch) -> tuple[Rows, Tensor]:
        """A step of a model of which the features are unknown; not needed for a logistic model, as they are given."""
        if mean.blocks and w.layout.base:
            raise _unfit()
        slope = task.gradient(shifted(w, memory), batch)
        new = memory - self.lr * by_memory(w, slope) if self.memory else memory
        descend_(w, slope, memory, self.lr)
        return Rows(w.layout, w.blocks, observed=slope.observed), new


def shifted(w: Rows, memory: Tensor) -> Rows:
    """The model with z̄^p added to its features: W (f + z̄^p) + b = W f + (b + W z̄^p)."""
    head = w.block("head").expand(len(memory))
    weight, bias = head.blocks
    return w.with_block(Rows(head.layout, [weight, bias + torch.bmm(weight, memory.unsqueeze(2)).squeeze(2)]))


def by_memory(w: Rows, slope: Rows) -> Tensor:
    """The gradient with respect to z̄^p, from that of a shifted model: Wᵀ ∂b."""
    weight, by_bias = w.block("head").blocks[0], slope.block("head").blocks[1]
    return _through(weight.expand(len(by_bias), -1, -1), by_bias)


def _through(weight: Tensor, by_bias: Tensor) -> Tensor:
    return torch.bmm(by_bias.unsqueeze(1), weight).squeeze(1)


def descend_(w: Rows, slope: Rows, memory: Tensor, lr: float) -> None:
    """Change a model in place by −lr times its gradient, which is that of the shifted one, and ∂b z̄^pᵀ in W."""
    torch._foreach_add_(w.blocks, slope.blocks, alpha=-lr)
    w.block("head").blocks[0].addcmul_(slope.block("head").blocks[1].unsqueeze(2), memory.unsqueeze(1), value=-lr)


def mean_features(task: Task, rows: Rows, data: CohortData) -> Tensor:
    """The mean of each client's features over its training examples, (K, F)."""
    alone = head_inputs(task, data)
    if alone is not None:
        own, starts = (one.to(alone.x.device) for one in (alone.train.indices, alone.train.offsets[:-1]))
        return F.embedding_bag(own, alone.x, starts, mode="mean")  # does not gather the examples
    plan, total = data.sweep(), rows.blocks[0].new_zeros(len(data), _width(rows))
    base = plan.sort(rows.block("base").expand(len(data)))
    for step in range(len(plan)):
        batch = plan.batch(step)
        below = task.without_head(batch.x[0, :2])
        if below is None:
            raise _unfit()
        below.stacked = below.stacked and not plan.wide(step)
        total[: len(batch)] += batch.mean(below.outputs(base[: len(batch)], batch))
    return plan.unsort(total)


def _width(rows: Rows) -> int:
    """The number of features, which the head must map linearly."""
    shapes = rows.block("head").layout.shapes
    if [len(shape) for shape in shapes] != [2, 1]:
        raise _unfit()
    return shapes[0][1]


def _unfit() -> InputError:
    return InputError(
        "feddbe needs a model whose outputs are one linear layer, with a bias, of its features: name that layer as the "
        "head, or use another method."
    )
