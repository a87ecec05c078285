"""Local training until convergence, for Algorithm 2 of Self-FL."""

import torch

from bespokefl.core.cohort_data import CohortData
from bespokefl.core.local_sgd import local_sgd
from bespokefl.core.rows import Rows
from bespokefl.core.task import Task


def train_to_convergence(
    task: Task, rows: Rows, data: CohortData, lr: float, max_epochs: int, tolerance: float
) -> Rows:
    """Train each row, epoch by epoch, until its training loss changes by less than `tolerance`, relative to itself."""
    loss = task.score(rows, data.sweep())["loss"]
    active, epochs = torch.ones(len(data), dtype=torch.bool), torch.zeros(len(data), dtype=torch.int64)
    for epoch in range(max_epochs):
        rows = local_sgd(task.gradient, rows, data, lr, steps=data.num_steps(1) * active, purpose=f"on/{epoch}")
        before, loss = loss, task.score(rows, data.sweep())["loss"]
        epochs += active
        active &= (loss - before).abs() >= tolerance * before.abs()
        if not active.any():
            break
    data.note(extra_epochs=epochs)
    return rows
