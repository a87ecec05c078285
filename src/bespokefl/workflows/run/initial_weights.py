"""Initial weights that a user gives instead of the model's random ones."""

from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from torch import nn

from bespokefl.core.errors import InputError, listing, spell
from bespokefl.core.rows import Rows
from bespokefl.core.task import Task
from bespokefl.workflows.results import run_directory
from bespokefl.workflows.results.models import GLOBAL, StateDict, read_state, untrained

Start = Mapping[str, Any] | nn.Module | str | PathLike[str]


def read(start: Start) -> StateDict:
    """Return a state dict from a state dict, a module, a .safetensors file, or the global model of a run."""
    if isinstance(start, Mapping):
        try:
            return {str(name): torch.as_tensor(value).detach() for name, value in start.items()}
        except (TypeError, ValueError, RuntimeError) as error:
            raise InputError(f"{spell('start')} must be a state dict, names to tensors: {error}.") from None
    if isinstance(start, nn.Module):
        return {name: value.detach().clone() for name, value in start.state_dict().items()}
    if not isinstance(start, str | PathLike):
        raise InputError(
            f"{spell('start')} must be a state dict, a module, a .safetensors file or the directory of a run, got "
            f"{start!r}."
        )
    path = Path(start)
    if path.is_dir():
        if not run_directory.is_run(path):
            raise InputError(
                f"{spell('start')} must be weights or the directory of a run, and {str(path)!r} is neither."
            )
        if not (path / GLOBAL).exists():
            raise InputError(f"the run in {str(path)!r} has no global model to start from; give a .safetensors file.")
        return read_state(path / GLOBAL)
    if path.suffix != ".safetensors":
        raise InputError(
            f"{spell('start')} must be a .safetensors file or the directory of a run, got {str(path)!r}; "
            "safetensors.torch.save_file(model.state_dict(), path) writes one."
        )
    return read_state(path)


def load_into(task: Task, state: StateDict) -> None:
    """Replace the task's initial weights, and its frozen parameters and buffers if they are given."""
    parameters = task.layout.names
    shared = untrained(task.module, task.layout.names)
    shapes = {name: tuple(value.shape) for name, value in task.module.state_dict().items()}
    missing = [name for name in parameters if name not in state]
    if missing:
        raise InputError(
            f"{spell('start')} must have all trainable parameters of the model, but lacks {listing(missing)}."
        )
    extra = [name for name in state if name not in shapes]
    if extra:
        raise InputError(f"start has {listing(extra)}, which the model has not; it has {listing(parameters)}.")
    for name, value in state.items():
        if tuple(value.shape) != shapes[name]:
            raise InputError(f"start has {name} of shape {tuple(value.shape)}, but the model's is {shapes[name]}.")
        if not bool(torch.isfinite(value).all()):
            raise InputError(f"{spell('start')} must be finite, but {name} holds NaN or infinity.")
    like = task.start
    given = {name: state[name].to(device=like.device, dtype=like.dtype) for name in parameters}
    task.start = Rows.from_state(task.layout, given)
    frozen = dict(task.module.named_parameters())
    with torch.no_grad():
        for name in shared.keys() & state.keys():
            if name in frozen:  # another tensor, as the user's module may have this one
                frozen[name].data = state[name].to(frozen[name], copy=True)
            else:
                shared[name].copy_(state[name])
