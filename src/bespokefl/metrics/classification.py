"""F1, precision and recall of a classifier, averaged over classes so that rare classes count as much as common ones.

As in scikit-learn, the classes are those that occur among the labels or the predictions. A class that is never
predicted has precision 0, and a class that is only predicted has recall 0.
"""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bespokefl.core.errors import InputError
from bespokefl.core.scores.confusion import macro as macro_scores
from bespokefl.metrics.client_values import Array, Values, to_vector

Counts = NDArray[np.int64]


def f1(truth: Values, predicted: Values) -> float | None:
    """Return macro F1, the mean over classes of 2 · correct / (actual + predicted); None without examples."""
    return _score("f1", truth, predicted)


def precision(truth: Values, predicted: Values) -> float | None:
    """Return macro precision, the mean over classes of correct / predicted; None without examples."""
    return _score("precision", truth, predicted)


def recall(truth: Values, predicted: Values) -> float | None:
    """Return macro recall, the mean over classes of correct / actual; None without examples."""
    return _score("recall", truth, predicted)


def confusion(truth: Values, predicted: Values, classes: int | None = None) -> Counts:
    """Return the confusion matrix: entry (i, j) is the number of examples of class i that were predicted as class j.

    Labels are class numbers 0, 1, 2, …; `classes` is by default one more than the largest of them.
    """
    actual, guessed = _labels(truth, "truth"), _labels(predicted, "predicted")
    if len(actual) != len(guessed):
        raise InputError(f"truth and predicted must be of the same examples, got {len(actual)} and {len(guessed)}.")
    largest = max(actual.max(initial=-1), guessed.max(initial=-1))
    size = int(largest) + 1 if classes is None else classes
    if largest >= size:
        raise InputError(f"labels must be in 0..{size - 1} for {size} classes, got {largest}.")
    return np.bincount(actual * size + guessed, minlength=size * size).reshape(size, size)


def macro(confusions: Any) -> dict[str, Array]:
    """Return macro "f1", "precision" and "recall" of many classifiers at once, each of shape (…).

    `confusions`, (…, C, C), are confusion matrices whose rows are the true classes; without examples a score is NaN.
    """
    counts = confusions.detach().cpu() if isinstance(confusions, Tensor) else torch.as_tensor(np.asarray(confusions))
    if counts.dim() < 2 or counts.shape[-1] != counts.shape[-2] or bool((counts < 0).any()):
        raise InputError(f"confusions must be counts of shape (…, C, C), got the shape {tuple(counts.shape)}.")
    scores = macro_scores(counts.sum(-1), counts.sum(-2), counts.diagonal(dim1=-2, dim2=-1))
    return {name: values.numpy() for name, values in scores.items()}


def _score(name: str, truth: Values, predicted: Values) -> float | None:
    counts = confusion(truth, predicted)
    return float(macro(counts)[name]) if counts.sum() else None


def _labels(values: Values, what: str) -> Counts:
    array = to_vector(values, what)
    labels = array.astype(np.int64) if not np.isnan(array).any() else np.full(len(array), -1)
    if (labels < 0).any() or (labels != array).any():
        raise InputError(f"{what} must be class numbers 0, 1, 2, …, got something else.")
    return labels
