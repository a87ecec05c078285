"""Gradients for heads on a base that does not change, whose features are computed only once.

This needs a model whose outputs are one linear layer of its features. Other models are evaluated as a whole for each
head, with the same results.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from bespokefl.core.cohort_data import SWEEP_SIZE, Batch, BatchSchedule, CohortData
from bespokefl.core.local_sgd import Gradient, local_sgd
from bespokefl.core.nn.losses import cross_entropy
from bespokefl.core.rows import Rows
from bespokefl.core.task import Task


def train_head(
    task: Task,
    base: Rows,
    head: Rows,
    data: CohortData,
    lr: float,
    *,
    momentum: float = 0.0,
    weight_decay: float = 0.0,
    epochs: int | None = None,
    steps: Tensor | int | None = None,
    purpose: str = "batches",
) -> Rows:
    """Train the heads alone, as `local_sgd` with `frozen="base"` does; return them.

    Parameters
    ----------
    base, head : Rows
        The initial weights: one row per client, or one row for all.
    lr, momentum, weight_decay, epochs, steps, purpose
        As for `local_sgd`.
    """
    options: Any = {"epochs": epochs, "steps": steps, "purpose": purpose, "momentum": momentum}
    options["weight_decay"] = weight_decay
    found = head_gradient(task, base, data, data.num_steps(epochs) if steps is None else steps) if base.blocks else None
    if found is None:
        rows = task.start.with_block(base).with_block(head)
        return local_sgd(task.gradient, rows, data, lr, frozen="base", **options).block("head")
    return local_sgd(found[0], head, found[1], lr, **options)


def head_gradient(task: Task, base: Rows, data: CohortData, steps: Tensor | int) -> tuple[Gradient, CohortData] | None:
    """The gradient with respect to the head alone, for data that have the base's features as inputs.

    Parameters
    ----------
    base : Rows
        One row per client, or one row for all. It does not change.
    steps : Tensor or int
        The number of steps for which the gradient is needed.

    Returns
    -------
    tuple or None
        A function `gradient(head, batch)` and the data of its batches; None if features cannot be computed once.
    """
    inputs = head_inputs(task, data)
    if inputs is None:
        features = _features(task, base, data, steps)
        if features is None:
            return None
        inputs = data.with_inputs(features)

    def gradient(head: Rows, batch: Batch) -> Rows:
        task.work.add(len(batch), batch.num_examples(), head_only=bool(task.layout.base))
        slope = head_slope(task, batch, *head.blocks)
        return Rows(head.layout, [torch.bmm(slope, batch.x), slope.sum(2)][: len(head.blocks)])

    return gradient, inputs


def head_slope(task: Task, batch: Batch, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """The gradient of each row's mean loss with respect to its outputs, (K, C, B); inputs are features, (K, B, F)."""
    outputs = torch.bmm(weight, batch.x.mT) if bias is None else torch.baddbmm(bias.unsqueeze(2), weight, batch.x.mT)
    return _slope(task, outputs, batch)


def head_inputs(task: Task, data: CohortData) -> CohortData | None:
    """The data with the head's features as inputs, if a model is a head that gets its inputs reshaped; else None."""
    if task.layout.base or task.draws or data.loop is not None or not data.x.is_floating_point():
        return None
    below = task.without_head(data.x[:2])
    if below is None:
        return None
    noise = torch.randn(2, *data.x.shape[1:], generator=torch.Generator().manual_seed(0)).to(data.x)
    with torch.no_grad():
        same = torch.equal(below.trial(100 * noise), 100 * noise.flatten(1))  # no function of the inputs
    return replace(data, x=data.x.flatten(1), plans={}) if same else None


def split_gradient(
    task: Task,
    rows: Rows,
    batch: Batch,
    shift: Tensor,
    pull: Callable[..., Tensor] | None = None,
    per_row: Sequence[Any] = (),
) -> tuple[Rows, Tensor, Tensor] | None:
    """The gradient with respect to the base, and the factors of those of the head; None for other models.

    Parameters
    ----------
    shift : Tensor
        What the head adds to its features, (K, F).
    pull : callable or None
        A function `pull(features, batch, *per_row)` that returns a gradient with respect to the batch's mean of the
        features (before the shift), (K, F), for a further term of the objective.

    Returns
    -------
    tuple or None
        The gradient with respect to the base; that of each row's mean loss with respect to its outputs, (K, C, B); and
        the head's inputs, (K, B, F). Their product is the gradient with respect to the head's weight.
    """
    below = task.without_head(batch.x[0, :2])
    if below is None or not rows.layout.base:
        return None
    seen: list[tuple[Tensor, Tensor]] = []  # of all rows or row by row, as the task computes them
    width = batch.x.shape[1]

    def objective(features: Tensor, batch: Batch, weight: Tensor, bias: Tensor, shift: Tensor, *rest: Any) -> Tensor:
        fixed = features.detach()
        plain = replace(batch, x=fixed + shift.unsqueeze(1), weight=None)
        slope = head_slope(task, plain, weight, bias)
        seen.append((slope, plain.x))
        along = torch.bmm(slope.mT, weight)
        if pull is not None:
            along += pull(fixed, batch, *rest).unsqueeze(1) / width
        return width * (features * along).sum(2)  # has the gradients of the loss and of the pull

    given = (*rows.block("head").blocks, shift, *per_row)
    base = below.gradient(rows.block("base"), batch, objective, given)
    slope, inputs = (torch.cat(parts) if len(parts) > 1 else parts[0] for parts in zip(*seen, strict=True))
    if batch.weight is not None:
        slope = slope * (width * batch.weight.to(slope.dtype)).unsqueeze(1)
    return base, slope, inputs


def _features(task: Task, base: Rows, data: CohortData, steps: Tensor | int) -> Tensor | None:
    """The head's inputs for all training examples, in the order of `data.train`; None if they cannot be reused."""
    fewer = int(torch.as_tensor(steps).expand(len(data)).sum()) * data.batch_size < int(data.n.sum())
    if not base.blocks or task.draws or data.loop is not None or fewer or not len(data.train.indices):
        return None
    below = task.without_head(data.x[:2])
    if below is None:
        return None
    below.stacked, base = False, base.freeze(base.layout.names)  # passes of one row
    owners = [data.train.indices] if len(base) == 1 else [data.train.of(k) for k in range(len(data))]
    found = []
    for k, own in enumerate(owners):
        for examples in own.to(data.x.device).split(SWEEP_SIZE):
            batch = Batch(data.x.index_select(0, examples).unsqueeze(0), data.y.index_select(0, examples).unsqueeze(0))
            found.append(below.outputs(base[k : k + 1], batch)[0])
    return torch.cat(found)


class Sweep:
    """The mean loss over a sweep as a function of the head, with a fixed base."""

    def __init__(self, task: Task, rows: Rows, plan: BatchSchedule) -> None:
        self.task, self.rows, self.plan = task, rows, plan
        below = task.without_head(plan.batch(0).x[0, :2]) if len(plan) else None
        self._batches: list[Batch] | None = None  # with features instead of inputs
        if below is not None:
            fixed = rows.block("base").freeze(rows.layout.base)
            base, self._batches = plan.sort(fixed.expand(len(plan.steps))), []
            for step in range(len(plan)):
                batch = plan.batch(step)
                below.stacked = task.stacked and not plan.wide(step)
                self._batches.append(replace(batch, x=below.outputs(base[: len(batch)], batch)))

    def losses(self, head: Rows) -> Tensor:
        """Each row's mean loss, (K,)."""
        if self._batches is None:
            return self.task.score(self.rows.with_block(head), self.plan)["loss"]
        stacked = _stack([self.plan.sort(head)])
        total = torch.zeros(len(head), dtype=torch.float64)
        for batch in self._batches:
            k = len(batch)
            outputs = _apply(batch.x, *[block[:k] for block in stacked])
            total[:k] += batch.mean(_losses(self.task, outputs, batch.y)).cpu()
        return self.plan.unsort(total)

    def gradients(self, heads: Sequence[Rows]) -> list[Rows]:
        """Gradients with respect to the head, at each of these heads (K rows each)."""
        if self._batches is None:
            models = [self.rows.with_block(head).freeze(self.rows.layout.base) for head in heads]
            return [self.task.sweep_gradient(model, self.plan).block("head") for model in models]
        stacked = _stack([self.plan.sort(head) for head in heads])
        totals = [torch.zeros_like(block) for block in stacked]
        for batch in self._batches:
            k = len(batch)
            self.task.work.add(k * len(heads), batch.num_examples() * len(heads), head_only=True)
            outputs = _apply(batch.x, *[block[:k] for block in stacked])  # (K·H, C, B)
            slope = _slope(self.task, outputs, _repeat(batch, len(heads))).unflatten(0, (k, len(heads)))
            found = [torch.bmm(slope.flatten(1, 2), batch.x).reshape(slope.shape[:3] + batch.x.shape[2:]), slope.sum(3)]
            torch._foreach_add_([block[:k] for block in totals], found[: len(totals)])
        layout = heads[0].layout
        return [self.plan.unsort(Rows(layout, [block[:, at] for block in totals])) for at in range(len(heads))]


def base_gradient(task: Task, rows: Rows, batch: Batch, heads: Sequence[Rows]) -> Rows:
    """Gradient, with respect to the base, of the mean loss over these heads; columns of the head are zero."""
    below = task.without_head(batch.x[0, :2])
    if below is None:
        models = [rows.with_block(head).freeze(rows.layout.head) for head in heads]
        found = [task.gradient(model, batch) for model in models]
        return sum(found[1:], found[0]) / len(heads)

    def objective(features: Tensor, batch: Batch, *stacked: Tensor) -> Tensor:
        losses = _losses(task, _apply(features, *stacked), _repeat(batch, len(heads)).y)
        return losses.reshape(len(batch), len(heads), -1).mean(1)

    slope = below.gradient(rows.block("base"), batch, objective, _stack(heads))
    return rows.with_block(rows.block("head") * 0.0).with_block(slope)


def _stack(heads: Sequence[Rows]) -> list[Tensor]:
    """The heads' weights, (K, H, C, F), and biases, (K, H, C), if any."""
    return [torch.stack(own, 1) for own in zip(*(head.blocks for head in heads), strict=True)]


def _repeat(batch: Batch, num: int) -> Batch:
    """The labels and weights of each row for `num` heads: a a a b b b."""
    weight = None if batch.weight is None else batch.weight.repeat_interleave(num, 0)
    return replace(batch, y=batch.y.repeat_interleave(num, 0), weight=weight)


def _apply(features: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Outputs of all heads, (K·H, C, B), for features (K, B, F); in this order a softmax is fastest on a CPU."""
    flat = weight.flatten(1, 2)
    outputs = flat @ features.mT if bias is None else torch.baddbmm(bias.flatten(1).unsqueeze(2), flat, features.mT)
    return outputs.reshape(-1, weight.shape[2], features.shape[1])


def _losses(task: Task, outputs: Tensor, y: Tensor) -> Tensor:
    """Losses, (K, B), of outputs (K, C, B)."""
    if _are_classes(task, y):
        return F.cross_entropy(outputs, y, reduction="none")
    return task.loss(outputs.mT.flatten(0, 1), y.flatten(0, 1)).reshape(y.shape[:2])


def _slope(task: Task, outputs: Tensor, batch: Batch) -> Tensor:
    """Gradients of each row's mean loss with respect to its outputs (K, C, B)."""
    if _are_classes(task, batch.y):  # softmax − one-hot; autograd takes twice as long
        slope, labels = outputs.softmax(1), batch.y.unsqueeze(1)
        slope.scatter_add_(1, labels, slope.new_full((), -1.0).expand(labels.shape))
        slope *= 1 / batch.y.shape[1] if batch.weight is None else batch.weight.to(slope.dtype).unsqueeze(1)
        return slope
    leaf = outputs.detach().requires_grad_()
    (slope,) = torch.autograd.grad(batch.mean(_losses(task, leaf, batch.y)).sum(), leaf)
    return slope


def _are_classes(task: Task, y: Tensor) -> bool:
    """Whether the loss is the cross-entropy of labels (K, B) that are classes."""
    return task.loss is cross_entropy and y.dim() == 2 and y.dtype == torch.int64
