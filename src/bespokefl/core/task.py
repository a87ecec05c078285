"""A module and a loss as functions of rows: losses, gradients and predictions of many clients.

There are two ways to compute them, with the same results. *Plain*: the module itself with the weights of one row after
the other, and ordinary autograd. *Stacked*: one vmapped forward pass and one backward pass for all rows. Which one is
faster depends on the model and the batch size, see `engines/cohorts/chunks.py`.
"""

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from torch import Tensor, nn

from bespokefl.core import rng
from bespokefl.core.blocks.matching import matching
from bespokefl.core.cohort_data import SWEEP_SIZE, Batch, BatchSchedule
from bespokefl.core.errors import InputError
from bespokefl.core.nn.layers import quick
from bespokefl.core.nn.losses import LOSSES, Loss, cross_entropy
from bespokefl.core.nn.module import first_line, head_of, only_layer, own_copy, split_frozen, without_lazy
from bespokefl.core.nn.statistics import StackedBatchNorm, Statistics, norm_names, put, set_mode, taken
from bespokefl.core.rows import Layout, Rows
from bespokefl.core.scores.confusion import ConfusionCounts
from bespokefl.core.scores.measures import OutputMeasures
from bespokefl.core.work import WorkCounter

Objective = Callable[..., Tensor]  # (K, B, …) outputs, batch, *per_row -> (K, B) losses
MOST_FEATURES = 2**28  # numbers, 1 GB: inputs of the end of a model may be larger than its examples


class _Pass(NamedTuple):
    """A forward pass in training."""

    leaves: Sequence[Tensor]  # of the graph: the parameters
    outputs: Tensor
    row: int | None  # None: all
    observed: Sequence[Tensor]  # running statistics after the pass, (K, …)


class Task:
    """A learning task: a model, whose trainable parameters are the columns of rows, and a loss.

    Parameters
    ----------
    factory : callable
        A function without arguments that returns the module.
    loss : str or callable
        "cross_entropy", "mse", or a function of outputs and targets that returns one loss per example.
    head : str or None
        The layer that is the head. None for the layer called "head" or else the last linear layer.
    seed : int
        The seed of the initial weights.
    classifies : bool or None
        Whether outputs are scores of classes, so that accuracy is defined. None if the loss is cross-entropy.
    local_blocks : str
        Columns that stay with each client, see `core.blocks`.
    autocast : torch.dtype or None
        The precision in which the module's layers compute, by `torch.autocast`, as in mixed-precision training: rows,
        outputs, losses and gradients keep `dtype`. None for `dtype` throughout.

    Attributes
    ----------
    layout : Layout
        The trainable parameters, and after them the running statistics.
    statistics : Statistics
        The running statistics, by layer.
    start : Rows
        The initial weights, one row.
    stacked : bool
        Whether all rows of a cohort are computed at once.
    draws : bool
        Whether the module draws random numbers in training, as dropout does.
    work : WorkCounter
        Counts the gradients that are computed.
    """

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
        local_blocks: str = "",
        autocast: torch.dtype | None = None,
    ) -> None:
        with rng.torch_seeded(seed, "start"):
            self.module = own_copy(without_lazy(factory()), torch.device(device), dtype)
        self.autocast = autocast
        self.statistics = Statistics(self.module)
        self.loss = LOSSES[loss] if isinstance(loss, str) else loss
        self.classifies = self.loss is cross_entropy if classifies is None else classifies
        self._params = {name: p for name, p in self.module.named_parameters() if p.requires_grad}
        if not self._params:
            raise InputError("the model has no trainable parameters (requires_grad is False for all of them).")
        state = self._params | self.statistics.values(self.module)
        self.layout = Layout(
            tuple(state),
            tuple(tuple(value.shape) for value in state.values()),
            head_of(self.module, tuple(state), head),
            self.statistics.names,
            norm_names(self.module, state),
        )
        if local_blocks:
            self.layout = replace(self.layout, local=matching(self.layout, local_blocks))
        self.start = Rows.from_state(self.layout, state)
        self.stacked = False
        self._quick = quick(self.module)
        self._slots = self.statistics.slots(self._quick)
        self._forward: Callable[..., Tensor] | None = None
        self._below: list[Task | None] = []  # the result of without_head()
        self.draws = False  # set by probe.check
        self.work = WorkCounter()  # shared with the result of without_head()

    # -- plain or stacked

    def stack(self) -> None:
        """Compute all rows of a cohort at once from now on."""
        if self._forward is None:
            module = quick(self.module, stacked=True)
            weights = list(self._params.values())  # the copy shares them
            state = self.statistics.slots(module)
            initial, count = taken(state), len(self.layout.names)
            norms = [layer for layer in module.modules() if isinstance(layer, StackedBatchNorm)]
            # torch.func.functional_call does the same at three times the cost, which matters for small models.
            owners = [layer._parameters for layer in module.modules()]
            slots = [[(one, key) for one in owners for key, p in one.items() if p is own] for own in weights]

            def set_weights(values: Sequence[Tensor]) -> None:
                for value, own in zip(values, slots, strict=True):
                    for parameters, key in own:
                        parameters[key] = cast(nn.Parameter, value)

            def call(*values: Tensor, train: bool, constant: frozenset[str]) -> Any:
                blocks, (x, *present) = values[:count], values[count:]
                set_mode(module, train, constant)
                set_weights(blocks[: len(weights)])
                put(state, [one.clone() for one in blocks[len(weights) :]])
                for layer in norms:
                    layer.present = present[0] if present else None
                try:
                    outputs = self.in_full(self.compute(module, x))
                    return (outputs, *taken(state)) if train and state else outputs
                finally:
                    set_weights(weights)
                    put(state, initial)

            self._forward = torch.vmap(call)
        self.stacked = True

    def trial(self, x: Tensor) -> Tensor:
        """Return the module's outputs for a few examples, as in training; raise an InputError if it fails."""
        set_mode(self.module, True)
        state = self.statistics.slots(self.module)
        before = taken(state)
        put(state, [one.clone() for one in before])
        try:
            outputs = self._call(x, self.module)
        finally:
            put(state, before)
        if not isinstance(outputs, Tensor):
            raise InputError(
                f"the model must return one tensor, got {type(outputs).__name__}; return only the outputs."
            )
        return outputs

    def compute(self, module: nn.Module, x: Tensor) -> Tensor:
        """Return a module's outputs, whose layers compute in the precision `autocast`."""
        if self.autocast is None:
            outputs: Tensor = module(x)
        else:
            with torch.autocast(x.device.type, self.autocast, cache_enabled=False):  # weights are assigned anew
                outputs = module(x)
        return outputs

    def in_full(self, outputs: Tensor) -> Tensor:
        """Return outputs in the precision of the rows."""
        return outputs if self.autocast is None else outputs.to(self.start.dtype)

    def without_head(self, x: Tensor) -> "Task | None":
        """Return the task without its head: rows of the base, with the head's input features as outputs.

        None unless the outputs are one linear layer of features that do not depend on it, which is tested on the
        examples `x`.
        """
        if not self._below:
            self._below.append(self._find_below(x))
        below = self._below[0]
        if below is not None:  # computes in the same way, plain or stacked
            below.draws, below.stacked = self.draws, False
            if self.stacked:
                below.stack()
        return below

    def _renew(self) -> None:
        """Make the faster copy of a module that was changed."""
        self._quick, self._forward = quick(self.module), None
        self._slots = self.statistics.slots(self._quick)

    def _find_below(self, x: Tensor) -> "Task | None":
        path = self.layout.head[0].rpartition(".")[0]
        layer = self.module.get_submodule(path)
        mine = {f"{path}.{name}".removeprefix(".") for name, _ in layer.named_parameters()}
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
        below.module = copy.deepcopy(self.module, shared)  # frozen parameters may be large
        below._forward, below._below = None, [None]
        if path:
            below.module.set_submodule(path, nn.Identity())
        else:
            below.module = nn.Identity()
        below._params = {name: one for name, one in self._params.items() if name in self.layout.base}
        below.layout, below.start = self.layout.only(self.layout.base), self.start.block("base")
        below._renew()
        with rng.torch_seeded(0, "probe"), torch.no_grad():
            try:
                same = torch.equal(below.trial(x), features)
            except InputError:  # the module uses attributes of its head
                return None
        return below if same else None

    def on_features(self, x: Tensor) -> "tuple[Task, Tensor] | None":
        """Return the task of the end of the model, and its inputs for all examples `x`, if all below is frozen.

        The end is the head, or the layers of a Sequential from the first trained one on. None unless what is below is
        the same function in training: without dropout or running statistics.
        """
        frozen = any(not one.requires_grad for one in self.module.parameters())
        if self.draws or not frozen:
            return None
        found = self._head_on_features(x) or self._end_on_features(x)
        if found is None:
            return None
        above = copy.copy(self)
        above.module, above._below = found[0], []
        above._renew()
        if above.stacked:
            above.stack()
        return above, found[1]

    def _head_on_features(self, x: Tensor) -> tuple[nn.Module, Tensor] | None:
        if self.layout.base or self.layout.statistics or not self.layout.head:
            return None
        below = self.without_head(x[:2])
        if below is None or isinstance(below.module, nn.Identity):
            return None
        below = copy.copy(below)
        below.autocast = None  # features are computed once, and without rounding
        features = below.predict(below.start, x.unsqueeze(0))[0]
        with torch.no_grad():
            if not torch.allclose(below.trial(x[:2]), features[:2], rtol=1e-4, atol=1e-5):
                return None  # the frozen part is another function in training
        return only_layer(self.module, self.layout.head), features

    def _end_on_features(self, x: Tensor) -> tuple[nn.Module, Tensor] | None:
        parts = split_frozen(self.module, self.layout.names)
        if parts is None:
            return None
        below, above = parts
        vars(self.module).pop("_bespoke_mode", None)  # the modes of its first layers change
        with torch.no_grad():
            set_mode(below, True)
            trained = below(x[:2])
            set_mode(below, False)
            few = below(x[:2])
            if few[0].numel() * len(x) > MOST_FEATURES or not torch.allclose(trained, few, rtol=1e-4, atol=1e-5):
                return None
            return above, torch.cat([below(some) for some in x.split(SWEEP_SIZE)])

    # -- functions of rows

    def outputs(self, rows: Rows, batch: Batch) -> Tensor:
        """Return the outputs, (K, B, …), as in training (with dropout), without gradients."""
        with torch.no_grad():
            return torch.cat([one.outputs for one in self._forwards(rows, batch)])

    def example_losses(self, outputs: Tensor, batch: Batch) -> Tensor:
        """Return the loss of each example, (K, B), for outputs (K, B, …)."""
        return self.loss(outputs.flatten(0, 1), batch.y.flatten(0, 1)).reshape(batch.y.shape[:2])

    def losses(
        self, rows: Rows, batch: Batch, objective: Objective | None = None, per_row: Sequence[Any] = ()
    ) -> Tensor:
        """Return each row's mean loss over its batch, (K,), as in training (with dropout)."""
        with torch.no_grad():
            return torch.cat([values for _, values in self._passes(rows, batch, objective, per_row)]).detach()

    def gradient(
        self, rows: Rows, batch: Batch, objective: Objective | None = None, per_row: Sequence[Any] = ()
    ) -> Rows:
        """Return the gradient of each row's mean loss.

        A function `objective(outputs, batch, *per_row)`, of outputs (K, B, …), can replace the loss; it returns (K, B).
        Its arguments `per_row`, with one row per client, are cut along with the rows. Running statistics have the
        gradient zero; `observed` has their new values.
        """
        self._count(rows, batch)
        parts, observed = [], []
        for one, values in self._passes(rows, batch, objective, per_row):
            parts.append(self._gradients(rows, one.leaves, values.sum(), create_graph=False))
            observed.append(one.observed)
        found = Rows.cat(parts)
        if self._slots:
            found.observed = dict(zip(self.layout.statistics, map(torch.cat, zip(*observed, strict=True)), strict=True))
        return found

    def hessian_product(self, rows: Rows, batch: Batch, direction: Rows) -> Rows:
        """Return ∇²F(row) · direction, row by row."""
        self._count(rows, batch, times=2)  # one for the gradient, one for its derivative
        parts = []
        at = 0
        for one, values in self._passes(rows, batch, None, ()):
            gradient = self._gradients(rows, one.leaves, values.sum(), create_graph=True)
            size = len(gradient)
            along = direction.expand(len(rows))[at : at + size]
            product = torch.stack([(a * b).sum() for a, b in zip(gradient.blocks, along.blocks, strict=True)]).sum()
            parts.append(self._gradients(rows, one.leaves, product, create_graph=False))
            at += size
        return Rows.cat(parts)

    def predict(self, rows: Rows, x: Tensor) -> Tensor:
        """Return the outputs for (K, B, …) inputs, without gradients. `rows` may be one row for all."""
        with torch.no_grad():
            if len(rows) == 1:
                row = [block[0] for block in rows.blocks]
                passes = [self._plain(row, some) for some in x.flatten(0, 1).split(SWEEP_SIZE)]
                outputs = torch.cat(passes)
                return outputs.detach().reshape(*x.shape[:2], *outputs.shape[1:])
            if self.stacked:
                return self._stacked(rows.blocks, x, train=False)[0]
            return torch.stack([self._plain([b[k] for b in rows.blocks], x[k]) for k in range(len(rows))])

    def score(
        self, rows: Rows, plan: BatchSchedule, *, by_class: bool = False, measures: bool = False
    ) -> dict[str, Tensor]:
        """Return mean loss and, for classification, accuracy of each row over a sweep, (K,); NaN without data.

        With `by_class`, classification also gets macro F1, precision and recall; with `measures`, every task gets
        those of `OutputMeasures`, for which all outputs are kept in memory.
        """
        size = len(plan.steps)
        loss, right, seen = np.zeros(size), np.zeros(size, dtype=np.int64), np.zeros(size, dtype=np.int64)
        counts = ConfusionCounts(size) if by_class and self.classifies else None
        kept = OutputMeasures(size, classifies=self.classifies) if measures else None
        ordered = plan.sort(rows)
        for step in range(len(plan)):
            examples, inside = plan.real(step)
            (outputs,), y = self._outputs([ordered], plan, step), plan.y.index_select(0, examples)
            sizes = inside.sum(1)
            k, first = len(sizes), sizes.cumsum() - sizes  # where each row's examples start
            loss[:k] += np.add.reduceat(self.loss(outputs, y).detach().double().cpu().numpy(), first)
            seen[:k] += sizes
            if kept is not None:
                kept.add(np.arange(k).repeat(sizes), y, outputs)
            if self.classifies:
                found = outputs.argmax(-1)
                right[:k] += np.add.reduceat((found == y).cpu().numpy(), first, dtype=np.int64)
                if counts is not None:
                    counts.add(np.arange(k).repeat(sizes), y.cpu(), found.cpu(), outputs.shape[-1])
        # Hits are counted and divided once, so that equal counts give equal accuracies and at most 1.
        with np.errstate(invalid="ignore"):  # 0/0 is NaN: no data
            shares = {"loss": loss / seen, **({"accuracy": right / seen} if self.classifies else {})}
        scores = {name: torch.from_numpy(values) for name, values in shares.items()}
        scores |= {} if counts is None else counts.scores()
        scores |= {} if kept is None else kept.scores()
        return {name: plan.unsort(values) for name, values in scores.items()}

    def sweep_losses(self, choices: Sequence[Rows], plan: BatchSchedule) -> Tensor:
        """Return the mean loss of several models over a sweep, (K, M); NaN without data.

        Each of the models has one row per client or one. Examples are gathered once.
        """
        loss, seen = np.zeros((len(choices), len(plan.steps))), np.zeros(len(plan.steps), dtype=np.int64)
        ordered = [plan.sort(rows) for rows in choices]
        for step in range(len(plan)):
            examples, inside = plan.real(step)
            y, sizes = plan.y.index_select(0, examples), inside.sum(1)
            k, first = len(sizes), sizes.cumsum() - sizes
            seen[:k] += sizes
            for total, outputs in zip(loss, self._outputs(ordered, plan, step), strict=True):
                total[:k] += np.add.reduceat(self.loss(outputs, y).detach().double().cpu().numpy(), first)
        with np.errstate(invalid="ignore"):  # 0/0 is NaN: no data
            return plan.unsort(torch.from_numpy((loss / seen).T))

    def best_fit(self, choices: Sequence[Rows], plan: BatchSchedule) -> Tensor:
        """Return which of several models has the lowest loss over a sweep, (K,); each has one row per client or one."""
        return self.sweep_losses(choices, plan).argmin(1)

    def _outputs(self, choices: Sequence[Rows], plan: BatchSchedule, step: int) -> list[Tensor]:
        """Each model's outputs for a step's examples, row after row, without gradients and without padding."""
        examples, inside = plan.real(step)
        if min(map(len, choices)) > 1 and self.stacked and not plan.wide(step):
            x, kept = plan.batch(step).x, torch.from_numpy(inside).flatten().to(plan.x.device)
            found = [self.predict(rows[: len(inside)], x).flatten(0, 1) for rows in choices]
            return found if inside.all() else [outputs[kept] for outputs in found]
        # A few examples at a time are gathered right before their pass, into the same memory, to stay in the cache.
        common = max(map(len, choices)) == 1
        pieces = examples.split(SWEEP_SIZE if common else inside.sum(1).tolist())
        buffer = plan.x.new_empty(max(map(len, pieces)), *plan.x.shape[1:])
        each = [list(zip(*(block.unbind() for block in rows.blocks), strict=True)) for rows in choices]
        whole: list[Tensor] = []
        at = 0
        with torch.no_grad():
            for k, some in enumerate(pieces):
                x = torch.index_select(plan.x, 0, some, out=buffer[: len(some)])
                for i, weights in enumerate(each):
                    outputs = self._plain(weights[0 if len(weights) == 1 else k], x)
                    if k == 0:
                        whole.append(outputs.new_empty(len(examples), *outputs.shape[1:]))
                    whole[i][at : at + len(some)] = outputs  # copied at once, as a module may return its input
                at += len(some)
        return whole

    def sweep_gradient(self, rows: Rows, plan: BatchSchedule) -> Rows:
        """Return the gradient of each row's mean loss over a whole sweep."""
        rows = plan.sort(rows.expand(len(plan.steps)))
        total = (rows * 0.0).clone()
        for step in range(len(plan)):
            k = plan.active(step)
            part = self.gradient(rows[:k], plan.batch(step))
            torch._foreach_add_([block[:k] for block in total.blocks], list(part.blocks))
        return plan.unsort(total)

    # -- internal

    def _count(self, rows: Rows, batch: Batch, times: int = 1) -> None:
        layout = rows.layout
        head_only = bool(rows.frozen) and rows.frozen.issuperset(set(layout.names) - set(layout.head))
        self.work.add(times * len(batch), times * batch.num_examples(), head_only=head_only)

    def _passes(
        self, rows: Rows, batch: Batch, objective: Objective | None, per_row: Sequence[Any]
    ) -> Iterator[tuple[_Pass, Tensor]]:
        """Forward passes, and each row's loss."""
        for one in self._forwards(rows, batch):
            if one.row is None:
                yield one, self._mean_loss(one.outputs, batch, objective, per_row)
            else:
                k = one.row
                own = [item if len(item) == 1 else item[k : k + 1] for item in per_row]
                yield one, self._mean_loss(one.outputs, batch.row(k), objective, own)

    def _forwards(self, rows: Rows, batch: Batch) -> Iterator[_Pass]:
        """Forward passes in training. Stacked: one pass for all rows; plain: one per row.

        Plain passes set the module's parameters to one row after the other: use a pass before requesting the next.
        """
        rows = rows.expand(len(batch))
        free = [name not in rows.frozen for name in self._params]
        constant = self.statistics.constant(rows.frozen) if self._slots else frozenset()
        if self.stacked:
            leaves = [block.detach().requires_grad_(own) for block, own in zip(rows.blocks, free, strict=False)]
            present = None if batch.weight is None or not self._slots else batch.weight > 0
            values = [*leaves, *rows.blocks[len(leaves) :]]
            outputs, *observed = self._stacked(values, batch.x, train=True, constant=constant, present=present)
            yield _Pass(leaves, outputs, None, observed)
            return
        parameters = list(self._params.values())
        for parameter, own in zip(parameters, free, strict=True):
            parameter.requires_grad_(own)
        for k in range(len(rows)):
            one, count = batch.row(k), batch.count(k)
            with rng.torch_seeded(*one.keys[0]) if self.draws and one.keys else nullcontext():
                outputs = self._plain([block[k] for block in rows.blocks], one.x[0, :count], True, constant)
            if count < one.x.shape[1]:  # padding is not computed, as it would shift the module's random draws
                padding = outputs[:1].detach().expand(one.x.shape[1] - count, *outputs.shape[1:])
                outputs = torch.cat([outputs, padding])
            yield _Pass(parameters, outputs.unsqueeze(0), k, [value.unsqueeze(0) for value in taken(self._slots)])

    def _mean_loss(self, outputs: Tensor, batch: Batch, objective: Objective | None, per_row: Sequence[Any]) -> Tensor:
        if objective is not None:
            return batch.mean(objective(outputs, batch, *per_row))
        return batch.mean(self.example_losses(outputs, batch))

    def _gradients(self, rows: Rows, leaves: Sequence[Tensor], value: Tensor, *, create_graph: bool) -> Rows:
        free = [leaf for leaf in leaves if leaf.requires_grad] if value.requires_grad else []  # else all are unused
        found = iter(torch.autograd.grad(value, free, create_graph=create_graph, allow_unused=True) if free else ())
        blocks = []
        for leaf, shape in zip(leaves, rows.layout.shapes, strict=False):  # running statistics come last
            gradient = next(found) if leaf.requires_grad and free else None
            if gradient is None:  # frozen or unused: a zero without memory
                gradient = torch.zeros((), dtype=leaf.dtype, device=leaf.device).expand_as(leaf)
            blocks.append(gradient if self.stacked else gradient.reshape(1, *shape))
        zero = torch.zeros((), dtype=rows.dtype, device=rows.device)
        size = len(blocks[0])
        blocks += [zero.expand(size, *shape) for shape in rows.layout.shapes[len(blocks) :]]
        return Rows(rows.layout, blocks, rows.frozen)

    def _stacked(
        self,
        blocks: Sequence[Tensor],
        x: Tensor,
        *,
        train: bool,
        constant: frozenset[str] = frozenset(),
        present: Tensor | None = None,
    ) -> tuple[Tensor, ...]:
        """Outputs, and in training the running statistics after the pass."""
        assert self._forward is not None
        padded = () if present is None or bool(present.all()) else (present,)
        try:
            found = self._forward(*blocks, x, *padded, train=train, constant=constant)
        except RuntimeError as error:
            raise self._unfit(x[0], error) from error
        return found if isinstance(found, tuple) else (found,)

    def _plain(
        self, weights: Sequence[Tensor], x: Tensor, train: bool = False, constant: frozenset[str] = frozenset()
    ) -> Tensor:
        count = len(self._params)
        for parameter, value in zip(self._params.values(), weights[:count], strict=True):
            parameter.data = value
        if self._slots:  # a training step changes them in place
            put(self._slots, [value.clone() if train else value for value in weights[count:]])
        set_mode(self._quick, train, constant)
        return self.in_full(self._call(x, self._quick))

    def _call(self, x: Tensor, module: nn.Module) -> Tensor:
        try:
            outputs = self.compute(module, x)
        except Exception as error:  # any error of a user's module
            raise self._unfit(x, error) from error
        return outputs

    def _unfit(self, x: Tensor, error: Exception) -> InputError:
        return InputError(
            f"the model {type(self.module).__name__} cannot take {len(x)} examples of shape {tuple(x.shape[1:])}: "
            f"{first_line(error)}."
        )
