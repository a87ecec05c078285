"""A plain PyTorch training loop: one module, load_state_dict, DataLoader, optim.SGD.

It runs any method, one client after the other, on the same batches as the fast engine. Tests compare with it, and
`bespoke bench` measures against it. It is meant to be obvious, not fast.
"""

import copy
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

from bespokefl.core.cohort_data import Batch, CohortData
from bespokefl.core.local_sgd import Gradient, Stop
from bespokefl.core.nn.losses import cross_entropy
from bespokefl.core.nn.statistics import Slot, put, set_mode, taken
from bespokefl.core.rows import Block, Rows
from bespokefl.core.task import Task


class ReferenceLoop:
    """Local training with the contract of `core.local_sgd`, done by torch.optim."""

    def __init__(self, task: Task) -> None:
        self.task = task
        self.module = copy.deepcopy(task.module)

    def __call__(
        self,
        gradient: Gradient,
        rows: Rows,
        data: CohortData,
        lr: float | Tensor,
        *,
        momentum: float,
        weight_decay: float,
        epochs: int | None,
        steps: Tensor | int | None,
        frozen: Block | None,
        per_row: Sequence[Any],
        purpose: str,
        stop: Stop | None,
    ) -> Rows:
        fixed = frozenset(rows.layout.block(frozen)) if frozen else frozenset()
        module, layout, rows = self.module, rows.layout, rows.expand(len(data))
        named, slots = dict(module.named_parameters()), self.task.statistics.slots(module)
        trained = [named[name].requires_grad_(name not in fixed) for name in layout.names if name in named]
        set_mode(module, True, self.task.statistics.constant(fixed))
        head_only = bool(fixed) and fixed.issuperset(set(layout.names) - set(layout.head))
        plain = gradient == self.task.gradient and not self.task.draws
        usual = self.task.loss is cross_entropy
        mean_loss = F.cross_entropy if usual else lambda outputs, y: self.task.loss(outputs, y).mean()
        results = []
        for k in range(len(data)):
            state = rows.state(k)
            module.load_state_dict(state, strict=False)
            put(slots, [state[name] for name in layout.statistics])
            rate = float(lr[k]) if isinstance(lr, Tensor) else float(lr)
            free = [parameter for parameter in trained if parameter.requires_grad]
            optimizer = torch.optim.SGD(free, lr=rate, momentum=momentum, weight_decay=weight_decay)
            batches = [one.tolist() for one in data.batches(k, epochs=epochs, steps=steps, purpose=purpose)]
            loader = DataLoader(TensorDataset(data.x, data.y), batch_sampler=batches, generator=torch.Generator())
            own = [item if len(item) == 1 else item[k : k + 1] for item in per_row]
            tag = data.tag(k, purpose)
            for step, (x, y) in enumerate(loader):
                optimizer.zero_grad()
                if plain:
                    loss = mean_loss(self.task.in_full(self.task.compute(module, x)), y)
                    if loss.requires_grad:  # otherwise it uses none of the trained parameters
                        loss.backward()
                    self.task.work.add(1, len(y), head_only=head_only)
                    for parameter in free:
                        if parameter.grad is None:  # unused: SGD would not decay it
                            parameter.grad = torch.zeros_like(parameter)
                else:
                    now = Rows(layout, _blocks(trained, slots), fixed)
                    batch = Batch(x.unsqueeze(0), y.unsqueeze(0), step=step, keys=((*tag, step),))
                    found = gradient(now, batch, *own)
                    for parameter, block in zip(trained, found.blocks, strict=False):  # statistics come last
                        parameter.grad = block[0].clone() if parameter.requires_grad else None
                    after = dict(zip(layout.names, found.settle(now).blocks, strict=True))
                    put(slots, [after[name][0].clone() for name in layout.statistics])
                optimizer.step()
                if stop is not None:
                    now = Rows(layout, _blocks(trained, slots))
                    if bool(stop(now, Batch(x.unsqueeze(0), y.unsqueeze(0), step=step, keys=((*tag, step),)))[0]):
                        break
            results.append(Rows(layout, _blocks(trained, slots)))
        return Rows.cat(results)


def _blocks(trained: Sequence[Tensor], slots: Sequence[Slot]) -> list[Tensor]:
    """Copies of a module's parameters and running statistics, as blocks of one row."""
    return [value.detach().clone().unsqueeze(0) for value in (*trained, *taken(slots))]
