"""An ordinary nn.Module and a loss, turned into functions of rows: losses, gradients, predictions, for many clients.

Two ways give the same numbers. *Plain*: the module itself with one row's weights after the other, ordinary autograd.
*Stacked*: one vmapped forward pass for all rows and one backward pass. Which of them is faster depends on the model
and the batch; see `engines/chunks.py`.
"""

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bespokefl.core import chance
from bespokefl.core.errors import InputError
from bespokefl.core.layers import quick
from bespokefl.core.rows import Layout, Rows
from bespokefl.core.tally import Tally
from bespokefl.core.work import SWEEP_SIZE, Batch, Plan

Loss = Callable[[Tensor, Tensor], Tensor]  # (B, …) outputs, (B, …) targets -> (B,) losses
Objective = Callable[..., Tensor]  # (K, B, …) outputs, batch, *beside -> (K, B) losses


def cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(outputs, targets, reduction="none")


def mse(outputs: Tensor, targets: Tensor) -> Tensor:
    return (outputs.reshape(len(targets), -1) - targets.reshape(len(targets), -1)).square().mean(1)


LOSSES: dict[str, Loss] = {"cross_entropy": cross_entropy, "mse": mse}


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
        with chance.torch_seeded(seed, "start"):
            self.module = copy.deepcopy(_whole(factory())).to(device=device, dtype=dtype)  # a factory may keep its own
        _refuse_batch_norm(self.module)
        self.loss = LOSSES[loss] if isinstance(loss, str) else loss
        self.classifies = self.loss is cross_entropy if classifies is None else classifies
        self._params = {name: p for name, p in self.module.named_parameters() if p.requires_grad}
        if not self._params:
            raise InputError("the model has no trainable parameters (requires_grad is False for all of them).")
        shapes = tuple(tuple(p.shape) for p in self._params.values())
        self.layout = Layout(tuple(self._params), shapes, _head(self.module, tuple(self._params), head))
        self.start = Rows.from_state(self.layout, self._params)
        self.stacked = False
        self._quick = quick(self.module)
        self._forward: Callable[..., Tensor] | None = None
        self._below: list[Task | None] = []  # what without_head() found
        self.draws = False  # whether it draws random numbers while training; check() finds out

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

    def check(self, x: Tensor, y: Tensor, classes: int | None) -> None:
        """Whether the model takes these examples and its outputs fit these labels; a sentence if not."""
        buffers = {name: buffer.clone() for name, buffer in self.module.named_buffers()}
        outputs, drew = [], False
        for draw in range(3):
            with chance.torch_seeded(draw, "probe"), torch.no_grad():
                before = torch.get_rng_state()
                outputs.append(self._try(x))
                drew |= not torch.equal(before, torch.get_rng_state())
        with chance.torch_seeded(0, "probe"), torch.no_grad():
            self._try(x[:1])  # a last batch may have one example
        for name, buffer in self.module.named_buffers():
            if not torch.equal(buffers[name], buffer):
                raise InputError(
                    f"the model's buffer {name!r} changes while it is trained, which is no trainable weight and would "
                    "be lost: make it a parameter, or use a layer without running statistics."
                )
        # A small dropout may leave three examples as they are; a generator on another device is not seen.
        self.draws = drew or any(not torch.equal(outputs[0], other) for other in outputs[1:])
        shape = tuple(outputs[0].shape)
        if classes is not None and (len(shape) != 2 or shape[0] != len(x) or shape[1] < classes):
            raise InputError(
                f"the model's output does not fit the labels: expected ({len(x)}, {classes}) for {len(x)} examples of "
                f"{classes} classes, got {shape}; give the last layer {classes} outputs."
            )
        if classes is None and outputs[0].numel() != y.numel():
            raise InputError(
                f"the model's output does not fit the targets: expected {tuple(y.shape)} numbers for {len(x)} "
                f"examples, got {shape}."
            )
        self._try_loss(outputs[0], y)

    def _try_loss(self, outputs: Tensor, y: Tensor) -> None:
        try:
            values = self.loss(outputs, y)
        except Exception as error:  # whatever a stranger's loss raises
            raise InputError(
                f"the loss cannot take the model's outputs and the labels: {_first_line(error)}."
            ) from error
        if not isinstance(values, Tensor) or values.shape != (len(y),):
            found = tuple(values.shape) if isinstance(values, Tensor) else type(values).__name__
            raise InputError(
                f"the loss must give one value for each of {len(y)} examples, shape ({len(y)},), got {found}; "
                'with torch\'s losses use reduction="none".'
            )

    def _try(self, x: Tensor) -> Tensor:
        set_mode(self.module, True)
        outputs = self._call(x, self.module)
        if not isinstance(outputs, Tensor):
            raise InputError(
                f"the model must return one tensor, got {type(outputs).__name__}; return only the outputs."
            )
        return outputs

    def why_not_stacked(self, x: Tensor, y: Tensor) -> str | None:
        """Try a stacked step on a few examples; the reason if the module cannot be stacked, else None."""
        if self.draws:
            return "it draws random numbers while training (dropout)"
        rows = Rows.cat([self.start, self.start * 0.9])
        batch = Batch(torch.stack([x, x]), torch.stack([y, y]))
        before, self.stacked = self.stacked, False
        expected = self.gradient(rows, batch)
        try:
            self.stack()
            found = self.gradient(rows, batch)
        except Exception as error:  # whatever a stranger's module raises under vmap, it runs plain
            return f"vmap cannot take it ({_first_line(error)})"
        finally:
            self.stacked = before
        apart = (found - expected).square_norm().sqrt()
        if (apart > 1e-3 * expected.square_norm().sqrt() + 1e-6).any():
            return "its stacked gradients differ from the plain ones"
        return None

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
        with chance.torch_seeded(0, "probe"):
            outputs = self._try(x)
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
        with chance.torch_seeded(0, "probe"), torch.no_grad():
            try:
                same = torch.equal(below._try(x), features)
            except InputError:  # a module that asks its head for more than outputs
                return None
        return below if same else None

    # -- functions of rows

    def outputs(self, rows: Rows, batch: Batch) -> Tensor:
        """The model's outputs, (K, B, …), as in training (dropout on), without gradients."""
        with torch.no_grad():
            return torch.cat([outputs for _, outputs, _ in self._forwards(rows, batch)])

    def losses(
        self, rows: Rows, batch: Batch, objective: Objective | None = None, beside: Sequence[Any] = ()
    ) -> Tensor:
        """Each row's mean loss over its batch, (K,), as in training (dropout on)."""
        with torch.no_grad():
            return torch.cat([values for _, values in self._passes(rows, batch, objective, beside)]).detach()

    def gradient(
        self, rows: Rows, batch: Batch, objective: Objective | None = None, beside: Sequence[Any] = ()
    ) -> Rows:
        """Each row's gradient of its mean loss.

        `objective(outputs, batch, *beside)` replaces the loss: (K, B, …) outputs to (K, B) losses. What it needs per
        row goes into `beside`, which is cut as the rows are.
        """
        parts = []
        for leaves, values in self._passes(rows, batch, objective, beside):
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

    def score(self, rows: Rows, plan: Plan, *, by_class: bool = False) -> dict[str, Tensor]:
        """Mean loss and, for classification, accuracy of each row over a sweep, (K,); NaN for a row without data.

        by_class    for classification, also macro F1, precision and recall
        """
        size = len(plan.steps)
        loss = torch.zeros(size, dtype=torch.float64)
        right, seen = torch.zeros(size, dtype=torch.int64), torch.zeros(size, dtype=torch.int64)
        tally = Tally(size) if by_class and self.classifies else None
        ordered = plan.sort(rows)
        for step in range(len(plan)):
            k, weight = plan.active(step), plan.shares(step)
            if len(rows) == 1 or plan.wide(step):
                outputs, y = self._outputs(ordered, plan, step)
            else:
                batch = plan.batch(step)
                outputs, y = self.predict(ordered[:k], batch.x), batch.y
            loss[:k] += (self._per_example(outputs, y).double().cpu() * weight).sum(1)
            if self.classifies:
                found, there = outputs.argmax(-1), weight > 0
                right[:k] += ((found == y).cpu() & there).sum(1)
                seen[:k] += there.sum(1)
                if tally is not None:
                    tally.add(y.cpu(), found.cpu(), there, outputs.shape[-1])
        # Hits are counted and divided once, so that equal counts are equal shares and all right is exactly 1.
        scores = {"loss": loss, "accuracy": right.double() / seen} if self.classifies else {"loss": loss}
        scores |= {} if tally is None else tally.scores()
        empty = torch.from_numpy(plan.steps == 0)
        return {name: plan.unsort(values.masked_fill(empty, torch.nan)) for name, values in scores.items()}

    def _outputs(self, rows: Rows, plan: Plan, step: int) -> tuple[Tensor, Tensor]:
        """Outputs for the examples of a step, and their labels: zeros where there is only filling.

        Few examples at a time, gathered right before their pass, when they still are in the cache.
        """
        examples, where, y = plan.real(step)
        pieces = examples.split(SWEEP_SIZE) if len(rows) == 1 else examples.split(where.sum(1).tolist())
        with torch.no_grad():
            passes = [
                self._plain(
                    [block[0 if len(rows) == 1 else at] for block in rows.blocks],
                    plan.x.index_select(0, some),
                    train=False,
                )
                for at, some in enumerate(pieces)
            ]
        found = torch.cat(passes).detach()
        outputs = found.new_zeros(*where.shape, *found.shape[1:])
        outputs[where] = found
        return outputs, y

    def best_fit(self, choices: Sequence[Rows], plan: Plan) -> Tensor:
        """Which of several models has the least loss over a sweep, (K,); each is a row per client or one for all."""
        return torch.stack([self.score(rows, plan)["loss"] for rows in choices]).argmin(0)

    def sweep_gradient(self, rows: Rows, plan: Plan) -> Rows:
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
        self, rows: Rows, batch: Batch, objective: Objective | None, beside: Sequence[Any]
    ) -> Iterator[tuple[Sequence[Tensor], Tensor]]:
        """Forward passes: what to differentiate by, and each row's loss."""
        for leaves, outputs, k in self._forwards(rows, batch):
            if k is None:
                yield leaves, self._mean_loss(outputs, batch, objective, beside)
            else:
                own_beside = [item if len(item) == 1 else item[k : k + 1] for item in beside]
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
            with chance.torch_seeded(*one.keys[0]) if self.draws and one.keys else nullcontext():
                outputs = self._plain([block[k] for block in rows.blocks], one.x[0, :count], train=True)
            if count < one.x.shape[1]:  # filling is not computed (it would shift a module's own draws), only made up
                filling = outputs[:1].detach().expand(one.x.shape[1] - count, *outputs.shape[1:])
                outputs = torch.cat([outputs, filling])
            yield parameters, outputs.unsqueeze(0), k

    def _mean_loss(self, outputs: Tensor, batch: Batch, objective: Objective | None, beside: Sequence[Any]) -> Tensor:
        values = self._per_example(outputs, batch.y) if objective is None else objective(outputs, batch, *beside)
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
            f"{_first_line(error)}."
        )


def set_mode(module: nn.Module, train: bool) -> None:
    """As `module.train(train)`, but batch norm, which only a frozen part may have, keeps its statistics."""
    if module.training == train:
        return
    module.train(train)
    for layer in module.modules():
        if isinstance(layer, nn.modules.batchnorm._BatchNorm):
            layer.eval()


def _whole(module: nn.Module) -> nn.Module:
    lazy = [name for name, value in module.named_parameters() if isinstance(value, nn.UninitializedParameter)]
    if lazy:
        raise InputError(
            f"the model's {lazy[0]!r} has no shape yet (a lazy layer): give the layer its sizes, or call the model on "
            "an example before you return it."
        )
    return module


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0].rstrip(".") if lines else type(error).__name__


def _refuse_batch_norm(module: nn.Module) -> None:
    for name, layer in module.named_modules():
        if not isinstance(layer, nn.modules.batchnorm._BatchNorm):
            continue
        if not layer.affine or not layer.track_running_stats or any(p.requires_grad for p in layer.parameters()):
            raise InputError(
                f"the model's layer {name!r} is a {type(layer).__name__}, whose statistics mix examples and are no "
                "trainable weights: use GroupNorm or LayerNorm instead, or freeze it (requires_grad=False)."
            )
        layer.eval()


def _head(module: nn.Module, names: tuple[str, ...], head: str | None) -> tuple[str, ...]:
    """The head's parameters: of the module named, else of "head", else of the last linear layer."""

    def inside(prefix: str) -> tuple[str, ...]:
        return tuple(name for name in names if name == prefix or name.startswith(prefix + ".") or not prefix)

    if head is not None:
        if not inside(head):
            children = ", ".join(dict.fromkeys(name.rpartition(".")[0] or name for name in names))
            raise InputError(f"the model has no head {head!r}; its trainable layers are {children}.")
        return inside(head)
    linear = [name for name, layer in module.named_modules() if isinstance(layer, nn.Linear) and inside(name)]
    return inside("head") or (inside(linear[-1]) if linear else ())
