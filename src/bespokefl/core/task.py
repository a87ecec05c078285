"""An ordinary nn.Module and a loss, turned into functions of rows: losses, gradients, predictions, for many clients.

Two ways give the same numbers. *Plain*: the module itself with one row's weights after the other, ordinary autograd.
*Stacked*: one vmapped forward pass for all rows and one backward pass. Which of them is faster depends on the model
and the batch; see `engines/chunks.py`.
"""

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from bespokefl.core import rng
from bespokefl.core.cohort_data import SWEEP_SIZE, Batch, BatchSchedule
from bespokefl.core.confusion import ConfusionCounts
from bespokefl.core.errors import InputError
from bespokefl.core.nn.layers import quick
from bespokefl.core.nn.losses import LOSSES, Loss, cross_entropy
from bespokefl.core.nn.module import first_line, head_of, refuse_batch_norm, set_mode, without_lazy
from bespokefl.core.rows import Layout, Rows

Objective = Callable[..., Tensor]  # (K, B, …) outputs, batch, *beside -> (K, B) losses


class Task:
    """What is learnt: a module's trainable parameters as columns, and a loss."""

    def __init__(
        self,
        factory: Callable[[], nn.Module],
        loss: str | Loss = "cross_entropy",
        *,
        head: str | None = None,
        seed: int = 0,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
        classifies: bool | None = None,
    ) -> None:
        """classifies: whether outputs are scores of classes, so that there is an accuracy; None: as the loss says."""
        with rng.torch_seeded(seed, "start"):
            self.module = copy.deepcopy(without_lazy(factory())).to(
                device=device, dtype=dtype
            )  # a factory may keep its own
        refuse_batch_norm(self.module)
        self.loss = LOSSES[loss] if isinstance(loss, str) else loss
        self.classifies = self.loss is cross_entropy if classifies is None else classifies
        self._params = {name: p for name, p in self.module.named_parameters() if p.requires_grad}
        if not self._params:
            raise InputError("the model has no trainable parameters (requires_grad is False for all of them).")
        shapes = tuple(tuple(p.shape) for p in self._params.values())
        self.layout = Layout(tuple(self._params), shapes, head_of(self.module, tuple(self._params), head))
        self.start = Rows.from_state(self.layout, self._params)
        self.stacked = False
        self._quick = quick(self.module)
        self._forward: Callable[..., Tensor] | None = None
        self._below: list[Task | None] = []  # what without_head() found
        self.draws = False  # whether it draws random numbers while training; probe.check finds out

    # -- plain or stacked

    def stack(self) -> None:
        """From now on compute all rows of a cohort at once."""
        if self._forward is None:
            module = quick(self.module, stacked=True)
            mine = dict(module.named_parameters())
            weights = [mine[name] for name in self.layout.names]
            # torch.func.functional_call does the same at three times the cost, which counts for small models.
            places = [
                [
                    (layer._parameters, key)
                    for layer in module.modules()
                    for key, p in layer._parameters.items()
                    if p is own
                ]
                for own in weights
            ]

            def lend(values: Sequence[Tensor]) -> None:
                for value, own in zip(values, places, strict=True):
                    for parameters, key in own:
                        parameters[key] = cast(nn.Parameter, value)

            def call(*blocks_and_x: Tensor, train: bool) -> Tensor:
                *blocks, x = blocks_and_x
                set_mode(module, train)
                lend(blocks)
                try:
                    outputs: Tensor = module(x)
                finally:
                    lend(weights)
                return outputs

            self._forward = torch.vmap(call)
        self.stacked = True

    def trial(self, x: Tensor) -> Tensor:
        """The module's outputs for a few examples as in training; a sentence if it cannot take them."""
        set_mode(self.module, True)
        outputs = self._call(x, self.module)
        if not isinstance(outputs, Tensor):
            raise InputError(
                f"the model must return one tensor, got {type(outputs).__name__}; return only the outputs."
            )
        return outputs

    def without_head(self, x: Tensor) -> "Task | None":
        """The same task up to its head: its outputs are the features that the head takes, of the base's rows.

        None unless the outputs are one linear layer of features that do not depend on it; `x` are a few examples to
        try that on.
        """
        if not self._below:
            self._below.append(self._find_below(x))
        (below,) = self._below
        if below is not None:
            below.draws, below.stacked = self.draws, False
            if self.stacked:
                below.stack()
        return below

    def _find_below(self, x: Tensor) -> "Task | None":
        place = self.layout.head[0].rpartition(".")[0]
        layer = self.module.get_submodule(place)
        mine = {f"{place}.{name}".removeprefix(".") for name, _ in layer.named_parameters()}
        if type(layer) is not nn.Linear or mine != set(self.layout.head):
            return None
        weights = [self._params[name].requires_grad_() for name in self.layout.head]
        seen: list[tuple[Tensor, Tensor]] = []
        hook = layer.register_forward_hook(lambda _, inputs, output: seen.append((inputs[0], output)))
        with rng.torch_seeded(0, "probe"):
            outputs = self.trial(x)
        hook.remove()
        if len(seen) != 1 or seen[0][1] is not outputs or seen[0][0].dim() != 2:
            return None
        features = seen[0][0]
        slopes = torch.autograd.grad(features.sum(), weights, allow_unused=True) if features.requires_grad else ()
        if any(slope is not None for slope in slopes):
            return None  # the layers below use the head's weights, too
        below = copy.copy(self)
        shared: dict[int, Any] = {id(one): one for one in (*self.module.parameters(), *self.module.buffers())}
        below.module = copy.deepcopy(self.module, shared)  # of a large frozen part there is but one
        if place:
            below.module.set_submodule(place, nn.Identity())
        else:
            below.module = nn.Identity()
        below._params = {name: self._params[name] for name in self.layout.base}
        below.layout, below.start = self.layout.only(self.layout.base), self.start.block("base")
        below._quick, below._forward, below._below = quick(below.module), None, [None]
        with rng.torch_seeded(0, "probe"), torch.no_grad():
            try:
                same = torch.equal(below.trial(x), features)
            except InputError:  # a module that asks its head for more than outputs
                return None
        return below if same else None

    # -- functions of rows

    def outputs(self, rows: Rows, batch: Batch) -> Tensor:
        """The model's outputs, (K, B, …), as in training (dropout on), without gradients."""
        with torch.no_grad():
            return torch.cat([outputs for _, outputs, _ in self._forwards(rows, batch)])

    def losses(
        self, rows: Rows, batch: Batch, objective: Objective | None = None, per_row: Sequence[Any] = ()
    ) -> Tensor:
        """Each row's mean loss over its batch, (K,), as in training (dropout on)."""
        with torch.no_grad():
            return torch.cat([values for _, values in self._passes(rows, batch, objective, per_row)]).detach()

    def gradient(
        self, rows: Rows, batch: Batch, objective: Objective | None = None, per_row: Sequence[Any] = ()
    ) -> Rows:
        """Each row's gradient of its mean loss.

        `objective(outputs, batch, *beside)` replaces the loss: (K, B, …) outputs to (K, B) losses. What it needs per
        row goes into `beside`, which is cut as the rows are.
        """
        parts = []
        for leaves, values in self._passes(rows, batch, objective, per_row):
            parts.append(self._gradients(rows, leaves, values.sum(), create_graph=False))
        return Rows.cat(parts)

    def hessian_product(self, rows: Rows, batch: Batch, direction: Rows) -> Rows:
        """∇²F(row) · direction, row by row."""
        parts = []
        at = 0
        for leaves, values in self._passes(rows, batch, None, ()):
            gradient = self._gradients(rows, leaves, values.sum(), create_graph=True)
            size = len(gradient)
            product = gradient.dot(direction.expand(len(rows))[at : at + size]).sum()
            parts.append(self._gradients(rows, leaves, product, create_graph=False))
            at += size
        return Rows.cat(parts)

    def predict(self, rows: Rows, x: Tensor) -> Tensor:
        """The model's outputs for (K, B, …) inputs, without gradients; one row may serve all K."""
        with torch.no_grad():
            if len(rows) == 1:
                row = [block[0] for block in rows.blocks]
                passes = [self._plain(row, some, train=False) for some in x.flatten(0, 1).split(SWEEP_SIZE)]
                outputs = torch.cat(passes)
                return outputs.detach().reshape(*x.shape[:2], *outputs.shape[1:])
            if self.stacked:
                return self._stacked(rows.blocks, x, train=False)
            return torch.stack([self._plain([b[k] for b in rows.blocks], x[k], train=False) for k in range(len(rows))])

    def score(self, rows: Rows, plan: BatchSchedule, *, by_class: bool = False) -> dict[str, Tensor]:
        """Mean loss and, for classification, accuracy of each row over a sweep, (K,); NaN for a row without data.

        by_class    for classification, also macro F1, precision and recall
        """
        size = len(plan.steps)
        loss, right, seen = np.zeros(size), np.zeros(size, dtype=np.int64), np.zeros(size, dtype=np.int64)
        tally = ConfusionCounts(size) if by_class and self.classifies else None
        ordered = plan.sort(rows)
        for step in range(len(plan)):
            examples, inside = plan.real(step)
            outputs, y = self._outputs(ordered, plan, step), plan.y.index_select(0, examples)
            sizes = inside.sum(1)
            k, first = len(sizes), sizes.cumsum() - sizes  # where each row's examples begin
            loss[:k] += np.add.reduceat(self.loss(outputs, y).detach().double().cpu().numpy(), first)
            seen[:k] += sizes
            if self.classifies:
                found = outputs.argmax(-1)
                right[:k] += np.add.reduceat((found == y).cpu().numpy(), first, dtype=np.int64)
                if tally is not None:
                    tally.add(np.arange(k).repeat(sizes), y.cpu(), found.cpu(), outputs.shape[-1])
        # Hits are counted and divided once, so that equal counts are equal shares and all right is exactly 1.
        with np.errstate(invalid="ignore"):  # 0/0 is NaN: no data
            shares = {"loss": loss / seen, **({"accuracy": right / seen} if self.classifies else {})}
        scores = {name: torch.from_numpy(values) for name, values in shares.items()}
        scores |= {} if tally is None else tally.scores()
        return {name: plan.unsort(values) for name, values in scores.items()}

    def _outputs(self, rows: Rows, plan: BatchSchedule, step: int) -> Tensor:
        """Outputs for a step's examples, row after row, without gradients and without filling."""
        examples, inside = plan.real(step)
        if len(rows) > 1 and self.stacked and not plan.wide(step):
            outputs = self.predict(rows[: len(inside)], plan.batch(step).x).flatten(0, 1)
            return outputs if inside.all() else outputs[torch.from_numpy(inside).flatten().to(outputs.device)]
        # Few examples at a time, gathered right before their pass into the same memory: they still are in the cache.
        pieces = examples.split(SWEEP_SIZE if len(rows) == 1 else inside.sum(1).tolist())
        room = plan.x.new_empty(max(map(len, pieces)), *plan.x.shape[1:])
        whole: Tensor | None = None
        at = 0
        with torch.no_grad():
            for k, some in enumerate(pieces):
                x = torch.index_select(plan.x, 0, some, out=room[: len(some)])
                outputs = self._plain([block[0 if len(rows) == 1 else k] for block in rows.blocks], x, train=False)
                whole = outputs.new_empty(len(examples), *outputs.shape[1:]) if whole is None else whole
                whole[at : at + len(some)] = outputs  # at once: what a module gives may be its input
                at += len(some)
        assert whole is not None
        return whole

    def best_fit(self, choices: Sequence[Rows], plan: BatchSchedule) -> Tensor:
        """Which of several models has the least loss over a sweep, (K,); each is a row per client or one for all."""
        return torch.stack([self.score(rows, plan)["loss"] for rows in choices]).argmin(0)

    def sweep_gradient(self, rows: Rows, plan: BatchSchedule) -> Rows:
        """Each row's gradient of its mean loss over a whole sweep."""
        rows = plan.sort(rows.expand(len(plan.steps)))
        total = (rows * 0.0).clone()
        for step in range(len(plan)):
            k = plan.active(step)
            part = self.gradient(rows[:k], plan.batch(step))
            torch._foreach_add_([block[:k] for block in total.blocks], list(part.blocks))
        return plan.unsort(total)

    # -- inside

    def _passes(
        self, rows: Rows, batch: Batch, objective: Objective | None, per_row: Sequence[Any]
    ) -> Iterator[tuple[Sequence[Tensor], Tensor]]:
        """Forward passes: what to differentiate by, and each row's loss."""
        for leaves, outputs, k in self._forwards(rows, batch):
            if k is None:
                yield leaves, self._mean_loss(outputs, batch, objective, per_row)
            else:
                own_beside = [item if len(item) == 1 else item[k : k + 1] for item in per_row]
                yield leaves, self._mean_loss(outputs, batch.row(k), objective, own_beside)

    def _forwards(self, rows: Rows, batch: Batch) -> Iterator[tuple[Sequence[Tensor], Tensor, int | None]]:
        """What to differentiate by, outputs, and whose they are. Stacked: one pass for all; plain: one per row.

        The plain way lends the module's parameters to one row at a time, so a pass must be used before the next.
        """
        rows = rows.expand(len(batch))
        free = [name not in rows.frozen for name in rows.layout.names]
        if self.stacked:
            leaves = [block.detach().requires_grad_(own) for block, own in zip(rows.blocks, free, strict=True)]
            yield leaves, self._stacked(leaves, batch.x, train=True), None
            return
        parameters = list(self._params.values())
        for parameter, own in zip(parameters, free, strict=True):
            parameter.requires_grad_(own)
        for k in range(len(rows)):
            one, count = batch.row(k), batch.count(k)
            with rng.torch_seeded(*one.keys[0]) if self.draws and one.keys else nullcontext():
                outputs = self._plain([block[k] for block in rows.blocks], one.x[0, :count], train=True)
            if count < one.x.shape[1]:  # filling is not computed (it would shift a module's own draws), only made up
                filling = outputs[:1].detach().expand(one.x.shape[1] - count, *outputs.shape[1:])
                outputs = torch.cat([outputs, filling])
            yield parameters, outputs.unsqueeze(0), k

    def _mean_loss(self, outputs: Tensor, batch: Batch, objective: Objective | None, per_row: Sequence[Any]) -> Tensor:
        values = self._per_example(outputs, batch.y) if objective is None else objective(outputs, batch, *per_row)
        return batch.mean(values)

    def _per_example(self, outputs: Tensor, y: Tensor) -> Tensor:
        return self.loss(outputs.flatten(0, 1), y.flatten(0, 1)).reshape(y.shape[:2])

    def _gradients(self, rows: Rows, leaves: Sequence[Tensor], value: Tensor, *, create_graph: bool) -> Rows:
        free = [leaf for leaf in leaves if leaf.requires_grad]
        found = iter(torch.autograd.grad(value, free, create_graph=create_graph, allow_unused=True) if free else ())
        blocks = []
        for leaf, shape in zip(leaves, rows.layout.shapes, strict=True):
            gradient = next(found) if leaf.requires_grad else None
            if gradient is None:  # frozen or unused: a zero that takes no memory
                gradient = torch.zeros((), dtype=leaf.dtype, device=leaf.device).expand_as(leaf)
            blocks.append(gradient if self.stacked else gradient.reshape(1, *shape))
        return Rows(rows.layout, blocks, rows.frozen)

    def _stacked(self, blocks: Sequence[Tensor], x: Tensor, *, train: bool) -> Tensor:
        assert self._forward is not None
        try:
            return self._forward(*blocks, x, train=train)
        except RuntimeError as error:
            raise self._unfit(x[0], error) from error

    def _plain(self, weights: Sequence[Tensor], x: Tensor, *, train: bool) -> Tensor:
        for parameter, value in zip(self._params.values(), weights, strict=True):
            parameter.data = value
        set_mode(self._quick, train)
        return self._call(x, self._quick)

    def _call(self, x: Tensor, module: nn.Module) -> Tensor:
        try:
            outputs: Tensor = module(x)
        except Exception as error:  # whatever a stranger's module raises
            raise self._unfit(x, error) from error
        return outputs

    def _unfit(self, x: Tensor, error: Exception) -> InputError:
        return InputError(
            f"the model {type(self.module).__name__} cannot take {len(x)} examples of shape {tuple(x.shape[1:])}: "
            f"{first_line(error)}."
        )
