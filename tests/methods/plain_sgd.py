"""Clients trained in the ordinary way: one module, one loss, torch.optim.SGD."""

import copy
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from bespokefl.core.cohort_data import CohortData
from bespokefl.core.rows import Rows
from bespokefl.core.task import Task

Extra = Callable[[nn.Module], Tensor]


def train(task: Task, data: CohortData, k: int, start: Rows, extra: Extra | None = None, **sgd: float) -> Rows:
    """Row k of the work after its batches, from `start`; `extra` is added to the loss."""
    module = copy.deepcopy(task.module)
    module.load_state_dict(start.state())
    for parameter in module.parameters():
        parameter.requires_grad_(True)
    optimizer = torch.optim.SGD(module.parameters(), **sgd)
    for batch in data.batches(k):
        own = torch.from_numpy(batch)
        optimizer.zero_grad()
        loss = task.loss(module(data.x[own]), data.y[own]).mean()
        (loss if extra is None else loss + extra(module)).backward()
        optimizer.step()
    return Rows.from_state(task.layout, dict(module.named_parameters()))


def pull_to(centre: Rows, strength: float) -> Extra:
    """(strength / 2) ‖w − centre‖²."""
    target = list(centre.state().values())

    def penalty(module: nn.Module) -> Tensor:
        squares = [(p - t).square().sum() for p, t in zip(module.parameters(), target, strict=True)]
        return 0.5 * strength * torch.stack(squares).sum()

    return penalty


def weighted(rows: Sequence[Rows], weights: Sequence[float]) -> Rows:
    """Σ weight_k row_k / Σ weight_k."""
    total = rows[0] * weights[0]
    for row, weight in zip(rows[1:], weights[1:], strict=True):
        total = total + row * weight
    return total / sum(weights)
