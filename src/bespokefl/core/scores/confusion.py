"""Counts of examples and predictions by class, from which precision, recall and F1 follow."""

import numpy as np
import torch
from torch import Tensor


class ConfusionCounts:
    """The number of examples, of predictions and of correct predictions of each class, row by row."""

    def __init__(self, rows: int) -> None:
        self.rows = rows
        self.counts = torch.zeros(3, rows, 0, dtype=torch.int64)

    def add(self, row: np.ndarray, truth: Tensor, predicted: Tensor, classes: int) -> None:
        """Count examples, (n,); `row` says which row each belongs to."""
        if not self.counts.shape[-1]:
            self.counts = self.counts.new_zeros(3, self.rows, classes)
        offset = torch.from_numpy(row) * classes
        actual, found = offset + truth, offset + predicted
        counted = (actual, found, actual[actual == found])
        counts = torch.stack([one.bincount(minlength=self.rows * classes) for one in counted])
        self.counts += counts.reshape(3, self.rows, classes)

    def scores(self) -> dict[str, Tensor]:
        """Macro F1, precision and recall of each row."""
        return macro(*self.counts)


def macro(actual: Tensor, predicted: Tensor, correct: Tensor) -> dict[str, Tensor]:
    """Macro F1, precision and recall from counts by class, (…, C); NaN without examples.

    The mean is over classes that occur as examples or predictions; 0/0 counts as 0.
    """
    either = actual + predicted
    num = (either > 0).sum(-1)  # of classes

    def mean(share: Tensor) -> Tensor:
        return share.nan_to_num(0.0).sum(-1) / num  # 0/0 is NaN

    hits = correct.double()
    return {"f1": mean(2 * hits / either), "precision": mean(hits / predicted), "recall": mean(hits / actual)}
