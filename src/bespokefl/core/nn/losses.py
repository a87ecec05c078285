"""Losses by name: functions of outputs and targets that return one number per example."""

from collections.abc import Callable

import torch.nn.functional as F
from torch import Tensor

from bespokefl.core.errors import InputError, unknown

Loss = Callable[[Tensor, Tensor], Tensor]  # (B, …) outputs, (B, …) targets -> (B,) losses

FEW_CLASSES = 16  # fewer do not fill a vector register of the CPU


def cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    """Cross-entropy of each example; `targets` are classes."""
    plain = outputs.dim() == 2 and targets.dim() == 1 and not outputs.requires_grad
    if plain and outputs.shape[1] < FEW_CLASSES:
        # With classes as the outer dimension it is the same up to rounding, and eight times as fast for ten classes.
        return F.cross_entropy(outputs.t().unsqueeze(0), targets.unsqueeze(0), reduction="none").squeeze(0)
    return F.cross_entropy(outputs, targets, reduction="none")


def mse(outputs: Tensor, targets: Tensor) -> Tensor:
    """Squared error of each example, the mean over its outputs."""
    return (outputs.reshape(len(targets), -1) - targets.reshape(len(targets), -1)).square().mean(1)


LOSSES: dict[str, Loss] = {"cross_entropy": cross_entropy, "mse": mse}


def fitting(loss: str | Loss | None, classes: int | None) -> str | Loss:
    """Return the given loss, or by default the usual one for these labels (`classes` is None for real targets)."""
    usual = "mse" if classes is None else "cross_entropy"
    if loss is None or callable(loss):
        return loss or usual
    if loss not in LOSSES:
        raise unknown("loss", loss, LOSSES)
    if loss != usual:
        labels = "real-valued targets" if classes is None else f"{classes} classes"
        raise InputError(f"the loss {loss!r} does not fit the data, which have {labels}; use {usual!r}.")
    return loss
