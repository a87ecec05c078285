"""Trials of a user's module on a few examples: does it accept them, does it draw random numbers, can it be stacked?"""

import torch
from torch import Tensor

from bespokefl.core import rng
from bespokefl.core.cohort_data import Batch
from bespokefl.core.errors import InputError
from bespokefl.core.nn.module import first_line
from bespokefl.core.rows import Rows
from bespokefl.core.task import Task


def check(task: Task, x: Tensor, y: Tensor, classes: int | None) -> None:
    """Raise an InputError unless the model accepts the examples and its outputs fit the labels; set `task.draws`."""
    buffers = {name: buffer.clone() for name, buffer in task.module.named_buffers()}
    outputs, drew = [], False
    for draw in range(3):
        with rng.torch_seeded(draw, "probe"), torch.no_grad():
            before = torch.get_rng_state()
            outputs.append(task.trial(x))
            drew |= not torch.equal(before, torch.get_rng_state())
    with rng.torch_seeded(0, "probe"), torch.no_grad():
        task.trial(x[:1])  # a last batch may have one example
    for name, buffer in task.module.named_buffers():
        if not torch.equal(buffers[name], buffer):
            raise InputError(
                f"the model's buffer {name!r} changes in training and would be lost: name it in an attribute of its "
                'layer, as in running_statistics = ("seen",), or make it a parameter.'
            )
    # Outputs alone may not show a small dropout rate, the generator's state does not show draws on another device.
    task.draws = drew or any(not torch.equal(outputs[0], other) for other in outputs[1:])
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
    _try_loss(task, outputs[0], y)


def _try_loss(task: Task, outputs: Tensor, y: Tensor) -> None:
    try:
        values = task.loss(outputs, y)
    except Exception as error:  # any error of a user's loss
        raise InputError(f"the loss cannot take the model's outputs and the labels: {first_line(error)}.") from error
    if not isinstance(values, Tensor) or values.shape != (len(y),):
        found = tuple(values.shape) if isinstance(values, Tensor) else type(values).__name__
        raise InputError(
            f"the loss must give one value for each of {len(y)} examples, shape ({len(y)},), got {found}; "
            'with torch\'s losses use reduction="none".'
        )


def why_not_stacked(task: Task, x: Tensor, y: Tensor) -> str | None:
    """Try a stacked step on a few examples; return why the module cannot be stacked, or None."""
    if task.draws:
        return "it draws random numbers in training (dropout)"
    if task.statistics.unstackable:
        return f"training changes buffers of its {task.statistics.unstackable} layers"
    rows = Rows.cat([task.start, task.start * 0.9])
    batch = Batch(torch.stack([x, x]), torch.stack([y, y]))
    before, task.stacked = task.stacked, False
    low, task.autocast = task.autocast, None  # rounding would hide a difference
    expected = task.gradient(rows, batch)
    try:
        task.stack()
        found = task.gradient(rows, batch)
    except Exception as error:  # any error of a user's module under vmap
        return f"vmap failed ({first_line(error)})"
    finally:
        task.stacked, task.autocast = before, low
    for name, values in (expected.observed or {}).items():
        if not torch.allclose(values, (found.observed or {})[name], rtol=1e-3, atol=1e-5):
            return f"its stacked {name} differs from the plain one"
    apart = (found - expected).square_norm().sqrt()
    if (apart > 1e-3 * expected.square_norm().sqrt() + 1e-6).any():
        return "its stacked gradients differ from the plain ones"
    return None
