"""F1, precision and recall of a classifier: means over the classes, so that a rare class counts as a common one.

The classes are those that occur among a client's labels or predictions, as in scikit-learn; a class that is never
predicted has precision 0, one that is only predicted recall 0.
"""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bespokefl.core import confusion as tally
from bespokefl.core.errors import InputError
from bespokefl.metrics.vectors import Array, Values, vector

Counts = NDArray[np.int64]


def f1(truth: Values, predicted: Values) -> float | None:
    """The mean over classes of 2·right / (actual + predicted); None without examples."""
    return _one("f1", truth, predicted)


def precision(truth: Values, predicted: Values) -> float | None:
    """The mean over classes of right / predicted; None without examples."""
    return _one("precision", truth, predicted)


def recall(truth: Values, predicted: Values) -> float | None:
    """The mean over classes of right / actual; None without examples."""
    return _one("recall", truth, predicted)


def confusion(truth: Values, predicted: Values, classes: int | None = None) -> Counts:
    """How often class i was taken for class j, (C, C); C is one more than the largest label unless it is given."""
    actual, taken = _labels(truth, "truth"), _labels(predicted, "predicted")
    if len(actual) != len(taken):
        raise InputError(f"truth and predicted must be of the same examples, got {len(actual)} and {len(taken)}.")
    largest = max(actual.max(initial=-1), taken.max(initial=-1))
    size = int(largest) + 1 if classes is None else classes
    if largest >= size:
        raise InputError(f"labels must be in 0..{size - 1} for {size} classes, got {largest}.")
    return np.bincount(actual * size + taken, minlength=size * size).reshape(size, size)


def macro(confusions: Any) -> dict[str, Array]:
    """F1, precision and recall from confusions (…, C, C), rows the truth; NaN for one without examples."""
    counts = confusions.detach().cpu() if isinstance(confusions, Tensor) else torch.as_tensor(np.asarray(confusions))
    if counts.dim() < 2 or counts.shape[-1] != counts.shape[-2] or bool((counts < 0).any()):
        raise InputError(f"confusions must be counts of shape (…, C, C), got the shape {tuple(counts.shape)}.")
    found = tally.macro(counts.sum(-1), counts.sum(-2), counts.diagonal(dim1=-2, dim2=-1))
    return {name: values.numpy() for name, values in found.items()}


def _one(name: str, truth: Values, predicted: Values) -> float | None:
    counts = confusion(truth, predicted)
    return float(macro(counts)[name]) if counts.sum() else None


def _labels(values: Values, what: str) -> Counts:
    array = vector(values, what)
    labels = array.astype(np.int64) if not np.isnan(array).any() else np.full(len(array), -1)
    if (labels < 0).any() or (labels != array).any():
        raise InputError(f"{what} must be class numbers 0, 1, 2, …, got something else.")
    return labels
