"""Gradients for heads on a base that does not change, whose features are computed only once.

This needs a model whose outputs are one linear layer of its features. Other models are evaluated as a whole for each
head, with the same results.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from bespokefl.core.cohort_data import SWEEP_SIZE, Batch, BatchSchedule, CohortData
from bespokefl.core.local_sgd import local_sgd
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
    features = _features(task, base, data, data.num_steps(epochs) if steps is None else steps)
    if features is None:
        rows = task.start.with_block(base).with_block(head)
        return local_sgd(task.gradient, rows, data, lr, frozen="base", **options).block("head")

    def gradient(head: Rows, batch: Batch) -> Rows:
        blocks = [block.unsqueeze(1) for block in head.blocks]
        return Rows(head.layout, [slope.squeeze(1) for slope in _slopes(task, blocks, batch)])

    return local_sgd(gradient, head, data.with_inputs(features), lr, **options)


def _features(task: Task, base: Rows, data: CohortData, steps: Tensor | int) -> Tensor | None:
    """The head's inputs for all training examples, in the order of `data.train`; None if they cannot be reused."""
    fewer = int(torch.as_tensor(steps).expand(len(data)).sum()) * data.batch_size < int(data.n.sum())
    if not base.blocks or task.draws or data.loop is not None or fewer or not len(data.train.indices):
        return None
    below = task.without_head(data.x[:2])
    if below is None:
        return None
    below.stacked = False  # passes of one row
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
            base = plan.sort(rows.block("base").expand(len(plan.steps)))
            batches = (plan.batch(step) for step in range(len(plan)))
            self._batches = [replace(batch, x=below.outputs(base[: len(batch)], batch)) for batch in batches]

    def gradients(self, heads: Sequence[Rows]) -> list[Rows]:
        """Gradients with respect to the head, at each of these heads (K rows each)."""
        if self._batches is None:
            models = [self.rows.with_block(head).freeze(self.rows.layout.base) for head in heads]
            return [self.task.sweep_gradient(model, self.plan).block("head") for model in models]
        stacked = _stack([self.plan.sort(head) for head in heads])
        totals = [torch.zeros_like(block) for block in stacked]
        for batch in self._batches:
            k = len(batch)
            found = _slopes(self.task, [block[:k] for block in stacked], batch)
            torch._foreach_add_([block[:k] for block in totals], found)
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
        return _losses(task, _apply(features, *stacked), batch).mean(1)

    slope = below.gradient(rows.block("base"), batch, objective, _stack(heads))
    return rows.with_block(rows.block("head") * 0.0).with_block(slope)


def _slopes(task: Task, heads: Sequence[Tensor], batch: Batch) -> list[Tensor]:
    """Gradients with respect to heads (K, H, …) of their mean losses; the batch has features (K, B, F) as inputs."""
    k, num, width, _ = heads[0].shape
    task.work.add(num * len(batch), num * batch.num_examples(), head_only=True)
    outputs = _apply(batch.x, *heads)
    if _has_classes(task, batch):
        slope = outputs.softmax(2)  # the gradient of cross-entropy is softmax − one-hot: autograd takes twice as long
        labels = _targets(batch, num).unsqueeze(2)
        slope.scatter_add_(2, labels, slope.new_full((), -1.0).expand(labels.shape))
        slope *= 1 / batch.y.shape[1] if batch.weight is None else batch.weight.to(slope.dtype)[:, None, None]
    else:
        outputs.requires_grad_()
        loss = batch.mean(_losses(task, outputs, batch).sum(1)).sum()
        (slope,) = torch.autograd.grad(loss, outputs)
    weight = torch.bmm(slope.reshape(k, num * width, -1), batch.x).reshape(heads[0].shape)
    return [weight, slope.sum(3)][: len(heads)]


def _stack(heads: Sequence[Rows]) -> list[Tensor]:
    """The heads' weights, (K, H, C, F), and biases, (K, H, C), if any."""
    return [torch.stack(own, 1) for own in zip(*(head.blocks for head in heads), strict=True)]


def _apply(features: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Outputs of all heads, (K, H, C, B), for features (K, B, F); in this order a softmax is fastest on a CPU."""
    k, num, width, _ = weight.shape
    flat = weight.flatten(1, 2)
    if num == 1:  # a few rows times transposed features take twice as long
        transposed = flat.mT.contiguous()
        one = features @ transposed if bias is None else torch.baddbmm(bias, features, transposed)
        return one.mT.unsqueeze(1)
    bias = torch.zeros_like(flat[:, :, :1]) if bias is None else bias.reshape(k, -1, 1)
    return torch.baddbmm(bias, flat, features.mT).reshape(k, num, width, -1)


def _losses(task: Task, outputs: Tensor, batch: Batch) -> Tensor:
    """Losses, (K, H, B), of outputs (K, H, C, B)."""
    targets = _targets(batch, outputs.shape[1])
    if _has_classes(task, batch):
        found = F.cross_entropy(outputs.flatten(0, 1), targets.flatten(0, 1), reduction="none")
    else:
        found = task.loss(outputs.mT.flatten(0, 2), targets.flatten(0, 2))
    return found.reshape(targets.shape[:3])


def _targets(batch: Batch, num: int) -> Tensor:
    """The labels for each of `num` heads, (K, H, B, …)."""
    return batch.y.unsqueeze(1).expand(len(batch), num, *batch.y.shape[1:])


def _has_classes(task: Task, batch: Batch) -> bool:
    """Whether the loss is the cross-entropy of labels that are classes."""
    return task.loss is cross_entropy and batch.y.dim() == 2 and batch.y.dtype == torch.int64
