"""A stranger's module, tried on a few examples: whether it takes them, whether it draws, whether it can be stacked."""

import torch
from torch import Tensor

from bespokefl.core import rng
from bespokefl.core.cohort_data import Batch
from bespokefl.core.errors import InputError
from bespokefl.core.nn.module import first_line
from bespokefl.core.rows import Rows
from bespokefl.core.task import Task


def check(task: Task, x: Tensor, y: Tensor, classes: int | None) -> None:
    """Whether the model takes these examples and its outputs fit these labels; a sentence if not."""
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
                f"the model's buffer {name!r} changes while it is trained, which is no trainable weight and would "
                "be lost: make it a parameter, or use a layer without running statistics."
            )
    # A small dropout may leave three examples as they are; a generator on another device is not seen.
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
    except Exception as error:  # whatever a stranger's loss raises
        raise InputError(f"the loss cannot take the model's outputs and the labels: {first_line(error)}.") from error
    if not isinstance(values, Tensor) or values.shape != (len(y),):
        found = tuple(values.shape) if isinstance(values, Tensor) else type(values).__name__
        raise InputError(
            f"the loss must give one value for each of {len(y)} examples, shape ({len(y)},), got {found}; "
            'with torch\'s losses use reduction="none".'
        )


def why_not_stacked(task: Task, x: Tensor, y: Tensor) -> str | None:
    """Try a stacked step on a few examples; the reason if the module cannot be stacked, else None."""
    if task.draws:
        return "it draws random numbers while training (dropout)"
    rows = Rows.cat([task.start, task.start * 0.9])
    batch = Batch(torch.stack([x, x]), torch.stack([y, y]))
    before, task.stacked = task.stacked, False
    expected = task.gradient(rows, batch)
    try:
        task.stack()
        found = task.gradient(rows, batch)
    except Exception as error:  # whatever a stranger's module raises under vmap, it runs plain
        return f"vmap cannot take it ({first_line(error)})"
    finally:
        task.stacked = before
    apart = (found - expected).square_norm().sqrt()
    if (apart > 1e-3 * expected.square_norm().sqrt() + 1e-6).any():
        return "its stacked gradients differ from the plain ones"
    return None
