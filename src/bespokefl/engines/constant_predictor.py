"""The constant predictor, which every model should beat: it knows a client's training labels, but no features.

For classification its outputs are the shares of the classes among the client's training labels, so that it predicts
the majority class; each class counts once more than it occurs, because a share of zero has an infinite loss. For
regression its output is the mean training target.
"""

import torch
from torch import Tensor, nn

from bespokefl.core.client_index import ClientIndex
from bespokefl.core.rows import Rows
from bespokefl.core.task import Task


class _Constant(nn.Module):
    """Returns its parameter for every example."""

    def __init__(self, shape: torch.Size) -> None:
        super().__init__()
        self.head = nn.Parameter(torch.zeros(shape))

    def forward(self, x: Tensor) -> Tensor:
        return self.head.expand(len(x), *self.head.shape)


def constant_models(task: Task, x: Tensor, y: Tensor, train: ClientIndex) -> tuple[Task, Rows] | None:
    """Return the task of constant predictors, with the loss of `task`, and those of some clients, one row each.

    `train` has the clients' training examples among `x` and `y`. None if outputs and targets differ in shape.
    """
    shape = task.predict(task.start, x[:1].unsqueeze(0)).shape[2:]
    row = torch.arange(len(train)).repeat_interleave(train.sizes)
    labels = y[train.indices.to(y.device)].cpu()
    if task.classifies:
        counts = torch.bincount(row * shape[-1] + labels, minlength=len(train) * shape[-1])
        smoothed = counts.reshape(len(train), shape[-1]).double() + 1
        outputs = (smoothed / smoothed.sum(1, keepdim=True)).log()
    else:
        targets = labels.double().reshape(len(labels), -1)
        if targets.shape[1] != shape.numel():
            return None
        sums = torch.zeros(len(train), targets.shape[1], dtype=torch.float64).index_add_(0, row, targets)
        outputs = sums / train.sizes.clamp(min=1)[:, None]
    first = task.start.blocks[0]
    made = Task(lambda: _Constant(shape), task.loss, device=first.device, dtype=first.dtype, classifies=task.classifies)
    made.stack()
    return made, Rows.from_matrix(made.layout, outputs.to(device=first.device, dtype=first.dtype))
