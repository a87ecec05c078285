"""Gradients for several heads on one base, whose features are computed only once.

This needs a model whose outputs are one linear layer of its features. Other models are evaluated as a whole for each
head, with the same results.
"""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from bespokefl.core.cohort_data import Batch, BatchSchedule
from bespokefl.core.rows import Rows
from bespokefl.core.task import Task


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
            self.task.work.add(k * len(heads), batch.num_examples() * len(heads), head_only=True)
            outputs = _apply(batch.x, *[block[:k] for block in stacked]).requires_grad_()
            loss = batch.mean(_losses(self.task, outputs, batch).sum(2)).sum()
            (slope,) = torch.autograd.grad(loss, outputs)  # (K, B, H, C)
            found = [(slope.flatten(2).mT @ batch.x).unflatten(1, slope.shape[2:]), slope.sum(1)]
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
        return _losses(task, _apply(features, *stacked), batch).mean(2)

    slope = below.gradient(rows.block("base"), batch, objective, _stack(heads))
    return rows.with_block(rows.block("head") * 0.0).with_block(slope)


def _stack(heads: Sequence[Rows]) -> list[Tensor]:
    """The heads' weights, (K, H, C, F), and biases, (K, H, C), if any."""
    return [torch.stack(own, 1) for own in zip(*(head.blocks for head in heads), strict=True)]


def _apply(features: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Outputs of all heads, (K, B, H, C), for features (K, B, F)."""
    outputs: Tensor = (weight.flatten(1, 2) @ features.mT).mT.unflatten(2, weight.shape[1:3])
    return outputs if bias is None else outputs + bias.unsqueeze(1)


def _losses(task: Task, outputs: Tensor, batch: Batch) -> Tensor:
    """Losses, (K, B, H), of outputs (K, B, H, C)."""
    targets = batch.y.unsqueeze(2).expand(*batch.y.shape[:2], outputs.shape[2], *batch.y.shape[2:])
    return task.loss(outputs.flatten(0, 2), targets.flatten(0, 2)).reshape(outputs.shape[:3])
