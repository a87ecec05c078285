"""Local training: stochastic gradient descent on the rows of a cohort, every client on its own batches."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from bespokefl.core.cohort_data import Batch, CohortData
from bespokefl.core.rows import Rows

Gradient = Callable[..., Rows]  # (rows, batch, *beside) -> rows
Stop = Callable[[Rows, Batch], Tensor]  # after a step: which of the active rows have had enough, (k,) bool


def local_sgd(
    gradient: Gradient,
    rows: Rows,
    data: CohortData,
    lr: float | Tensor,
    *,
    momentum: float = 0.0,
    weight_decay: float = 0.0,
    epochs: int | None = None,
    steps: Tensor | int | None = None,
    frozen: str | None = None,
    per_row: Sequence[Any] = (),
    purpose: str = "batches",
    stop: Stop | None = None,
) -> Rows:
    """Every row after its local steps of w ← w − lr · v,  v ← momentum · v + gradient + weight_decay · w.

    gradient  any `gradient(rows, batch, *beside)`: `task.gradient`, or more terms around it
    lr        one rate, or one per row
    epochs, steps   instead of the budget of `work`; steps may differ from row to row
    frozen    a block of columns that stays: "base", "head", a layer
    beside    what the gradient needs per row (rows or tensors of K rows, or of one for all). A cohort is worked on in
              an order of its own and shrinks as clients finish: only what is passed here is cut along with it
    purpose   names the stream of batches: the same purpose, the same batches
    """
    if isinstance(lr, Tensor) and lr.numel() == 1:
        lr = float(lr)
    fixed = frozenset(rows.layout.block(frozen)) if frozen else frozenset()
    if len(fixed) == len(rows.layout.names):  # the head of a logistic model is all of it
        return rows.expand(len(data))
    if data.loop is not None:
        options = {"momentum": momentum, "weight_decay": weight_decay, "epochs": epochs, "steps": steps}
        return data.loop(
            gradient, rows, data, lr, frozen=frozen, per_row=per_row, purpose=purpose, stop=stop, **options
        )
    plan = data.plan(epochs=epochs, steps=steps, purpose=purpose)
    rows = plan.sort(rows.expand(len(data))).clone().freeze(fixed)
    rates = plan.sort(lr) if isinstance(lr, Tensor) else None
    per_row = [plan.sort(item) for item in per_row]
    free = [i for i, name in enumerate(rows.layout.names) if name not in fixed]
    velocity = [torch.zeros_like(rows.blocks[i]) for i in free] if momentum else []
    done = torch.zeros(len(data), dtype=torch.bool)
    for step in range(len(plan)):
        k, batch = plan.active(step), plan.batch(step)
        now = rows[:k]
        found = gradient(now, batch, *[item if len(item) == 1 else item[:k] for item in per_row])
        weights = [now.blocks[i] for i in free]
        change = [found.blocks[i] for i in free]
        if weight_decay:
            change = list(torch._foreach_add(change, weights, alpha=weight_decay))
        if momentum:
            moving = [block[:k] for block in velocity]
            torch._foreach_mul_(moving, momentum)
            torch._foreach_add_(moving, change)
            change = moving
        if rates is None and stop is None:
            torch._foreach_add_(weights, change, alpha=-float(lr))
            continue
        rate = torch.full((k,), float(lr), dtype=torch.float64) if rates is None else rates[:k].clone()
        rate[done[:k]] = 0.0
        torch._foreach_sub_(weights, (Rows(rows.layout.only(rows.layout.names[i] for i in free), change) * rate).blocks)
        if stop is not None:
            done[:k] |= stop(rows[:k], batch).cpu()
            if done.all():
                break
    return plan.unsort(rows.freeze(()))


def iterate(step: Callable[..., Any], values: Sequence[Any], data: CohortData, *, steps: Tensor | None = None) -> Any:
    """Any local iteration on several sets of rows at once, for methods that are more than one descent.

    `step(*values, batch)` gets the active rows of every value (rows or tensors with a row per client) and returns the
    new ones, in the same order. The answer is a tuple of all values after each client's own number of steps.
    """
    plan = data.plan(steps=steps)
    # Rows of their own, as in `descend`: one row seen as many is computed another way, to other last bits.
    held = [plan.sort(item.expand(len(data))).clone() if isinstance(item, Rows) else plan.sort(item) for item in values]
    for number in range(len(plan)):
        k, batch = plan.active(number), plan.batch(number)
        new = step(*[item[:k] for item in held], batch)
        if k < len(data):
            rest = [item[k:] for item in held]
            new = [_join(now, later) for now, later in zip(new, rest, strict=True)]
        held = list(new)
    return tuple(plan.unsort(item) for item in held)


def _join(now: Any, later: Any) -> Any:
    return Rows.cat([now, later]) if isinstance(now, Rows) else torch.cat([now, later])
