"""Local training: stochastic gradient descent on the rows of a cohort, each client on its own batches."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from bespokefl.core.cohort_data import Batch, BatchSchedule, CohortData
from bespokefl.core.rows import Block, Rows, concatenate

Gradient = Callable[..., Rows]  # (rows, batch, *per_row) -> rows
Stop = Callable[[Rows, Batch], Tensor]  # after a step: which of the active rows are finished, (k,) bool


@dataclass(frozen=True)
class Penalty:
    """A term of the objective besides the loss: (weight / 2) ‖w − centre‖² + ⟨slope, w⟩.

    `local_sgd` computes it together with the update of the weights, which takes a third of the time that a gradient
    function needs for the same term. Centre and slope have one row per client, or one for all.
    """

    weight: float = 0.0
    centre: Rows | None = None
    slope: Rows | None = None

    def gradient(self, rows: Rows) -> Rows | None:
        """weight · (w − centre) + slope; None if it is zero."""
        found = None if self.centre is None or not self.weight else self.weight * (rows - self.centre)
        return found if self.slope is None else self.slope if found is None else found + self.slope

    def sort(self, plan: BatchSchedule) -> "Penalty":
        """With rows in the order of a schedule."""
        centre, slope = (None if one is None else plan.sort(one) for one in (self.centre, self.slope))
        return Penalty(self.weight, centre, slope)

    def take(self, rows: slice) -> "Penalty":
        """The penalty of some clients."""
        centre, slope = (one if one is None or len(one) == 1 else one[rows] for one in (self.centre, self.slope))
        return Penalty(self.weight, centre, slope)

    def descend_(self, rows: Rows, free: Sequence[int], lr: float) -> None:
        """Change these blocks of the rows by −lr times the gradient, in one pass over the weights for each term."""
        weights = [rows.blocks[i] for i in free]
        if self.centre is not None and self.weight:
            torch._foreach_lerp_(weights, [self.centre.blocks[i] for i in free], lr * self.weight)
        if self.slope is not None:
            torch._foreach_add_(weights, [self.slope.blocks[i] for i in free], alpha=-lr)


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
    frozen: Block | None = None,
    per_row: Sequence[Any] = (),
    purpose: str = "batches",
    stop: Stop | None = None,
    penalty: Penalty | None = None,
) -> Rows:
    """Train all rows by steps of w ← w − lr · v,  v ← momentum · v + gradient + weight_decay · w.

    Parameters
    ----------
    gradient : callable
        A function `gradient(rows, batch, *per_row)` that returns rows: `task.gradient`, possibly with more.
    rows : Rows
        The initial weights: one row per client, or one row for all.
    lr : float or Tensor
        The learning rate, or one per row.
    epochs, steps : int or None
        Another amount of training than that of `data`; steps may be a tensor with one number per row.
    frozen : str, tuple of str, callable or None
        A block of columns that is not trained: "base", "head", a layer, a tuple of names, or a function of the layout.
    per_row : sequence of Rows or Tensor
        Further arguments of the gradient, with one row per client or one for all. Clients are sorted and leave the
        cohort when they finish: only values passed here are sorted and cut along with the rows.
    purpose : str
        Names the sequence of batches: the same purpose gives the same batches.
    stop : callable or None
        A function `stop(rows, batch)`, called after each step, that returns which of the active rows are finished.
    penalty : Penalty or None
        A further term of the objective.
    """
    lr = float(lr) if isinstance(lr, Tensor) and lr.numel() == 1 else lr
    fixed = frozenset(rows.layout.block(frozen)) if frozen else frozenset()
    if len(fixed) == len(rows.layout.names):  # a logistic model consists of its head
        return rows.expand(len(data))
    if penalty is not None and (momentum or isinstance(lr, Tensor) or stop is not None or data.loop is not None):
        gradient, per_row, penalty = *_penalized(gradient, penalty, per_row), None  # part of what is accumulated
    if data.loop is not None:
        options = {"momentum": momentum, "weight_decay": weight_decay, "epochs": epochs, "steps": steps, "stop": stop}
        return data.loop(gradient, rows, data, lr, frozen=frozen, per_row=per_row, purpose=purpose, **options)
    plan = data.plan(epochs=epochs, steps=steps, purpose=purpose)
    rows = plan.sort(rows.expand(len(data))).clone().freeze(fixed)
    rates = plan.sort(lr) if isinstance(lr, Tensor) else None
    per_row = [plan.sort(item) for item in per_row]
    penalty = None if penalty is None else penalty.sort(plan)
    free = [i for i in rows.layout.trained if rows.layout.names[i] not in fixed]
    velocity = [torch.zeros_like(rows.blocks[i]) for i in free] if momentum else []
    done = torch.zeros(len(data), dtype=torch.bool)
    k = -1
    for step in range(len(plan)):
        batch = plan.batch(step)
        if k != plan.active(step):
            k = plan.active(step)
            now, cut = rows[:k], [item if len(item) == 1 else item[:k] for item in per_row]
            weights, moving = [now.blocks[i] for i in free], [block[:k] for block in velocity]
            active = None if penalty is None else penalty.take(slice(k))
        found = _observe(now, gradient(now, batch, *cut), done[:k])
        change = _velocity_(found, free, weights, moving, momentum, weight_decay)
        if active is not None:
            active.descend_(now, free, float(lr))
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


def _velocity_(
    gradient: Rows, free: list[int], weights: list[Tensor], moving: list[Tensor], momentum: float, decay: float
) -> list[Tensor]:
    """The gradients of these blocks with weight decay and momentum, whose buffers `moving` are updated."""
    change = [gradient.blocks[i] for i in free]
    if decay:
        change = list(torch._foreach_add(change, weights, alpha=decay))
    if not momentum:
        return change
    torch._foreach_mul_(moving, momentum)
    torch._foreach_add_(moving, change)
    return moving


def _penalized(gradient: Gradient, penalty: Penalty, per_row: Sequence[Any]) -> tuple[Gradient, Sequence[Any]]:
    """A gradient that contains a penalty, and its arguments."""
    given = [one for one in (penalty.centre, penalty.slope) if one is not None]

    def whole(rows: Rows, batch: Batch, *rest: Any) -> Rows:
        own, others = list(rest[: len(given)]), rest[len(given) :]
        centre = own.pop(0) if penalty.centre is not None else None
        slope = own.pop(0) if penalty.slope is not None else None
        found, more = gradient(rows, batch, *others), Penalty(penalty.weight, centre, slope).gradient(rows)
        return found if more is None else found + more

    return whole, [*given, *per_row]


def _observe(rows: Rows, gradient: Rows, done: Tensor) -> Rows:
    """Put the new running statistics that a gradient carries into the rows that are not done. Return the gradient."""
    if not gradient.observed:
        return gradient
    blocks = dict(zip(rows.layout.names, rows.blocks, strict=True))
    found = {name: value for name, value in gradient.observed.items() if name not in rows.frozen}
    if done.any():
        ended = {name: done.to(value.device).reshape(-1, *[1] * (value.dim() - 1)) for name, value in found.items()}
        found = {name: torch.where(ended[name], blocks[name], value) for name, value in found.items()}
    if found:
        torch._foreach_copy_([blocks[name] for name in found], list(found.values()))
    return gradient


def iterate(step: Callable[..., Any], values: Sequence[Any], data: CohortData, *, steps: Tensor | None = None) -> Any:
    """Iterate a step on several values at once, for methods whose local update is more than one gradient descent.

    `step(*values, batch)` gets the active rows of each value and returns the new values. Initial values have one row
    per client; Rows may be one for all. `steps` is another number of steps per client than that of `data`. Running
    statistics of a new value are those that the first gradient in it left; without a gradient they stay as they were.
    """
    plan = data.plan(steps=steps)
    # Rows are copied, as in `local_sgd`: an expanded row is computed differently, with other rounding errors.
    held = [plan.sort(item.expand(len(data))).clone() if isinstance(item, Rows) else plan.sort(item) for item in values]
    active, k = held, len(data)

    def whole() -> list[Any]:
        pairs = zip(active, held, strict=True)
        return [concatenate([now, item[k:]]) if k < len(data) else now for now, item in pairs]

    for number in range(len(plan)):
        if plan.active(number) != k:  # some rows are done
            held, k = whole(), plan.active(number)
            active = [item[:k] for item in held]
        new = step(*active, plan.batch(number))
        pairs = zip(new, active, strict=True)
        active = [now.settle(item) if isinstance(now, Rows) else now for now, item in pairs]
    return tuple(plan.unsort(item) for item in whole())
