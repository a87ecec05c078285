"""Examples counted by class, row by row: what precision, recall and F1 are made of."""

import numpy as np
import torch
from torch import Tensor


class Tally:
    """For every row and class: its examples, those that were taken for it, and those that were rightly so."""

    def __init__(self, rows: int) -> None:
        self.rows = rows
        self.counts = torch.zeros(3, rows, 0, dtype=torch.int64)

    def add(self, row: np.ndarray, truth: Tensor, predicted: Tensor, classes: int) -> None:
        """Count examples, (n,), of which each belongs to a row."""
        if not self.counts.shape[-1]:
            self.counts = self.counts.new_zeros(3, self.rows, classes)
        place = torch.from_numpy(row) * classes
        actual, taken = place + truth, place + predicted
        counted = (actual, taken, actual[actual == taken])
        found = torch.stack([one.bincount(minlength=self.rows * classes) for one in counted])
        self.counts += found.reshape(3, self.rows, classes)

    def scores(self) -> dict[str, Tensor]:
        return macro(*self.counts)


def macro(actual: Tensor, taken: Tensor, right: Tensor) -> dict[str, Tensor]:
    """F1, precision and recall, means over classes, from counts (…, C); NaN where nothing was counted.

    The classes are those that occur, as examples or as predictions; what would be 0/0 for one of them is 0.
    """
    occurs = (actual + taken) > 0
    num = occurs.sum(-1)

    def mean(share: Tensor) -> Tensor:
        return share.nan_to_num(0.0).sum(-1) / num  # 0/0 is NaN: nothing to average

    hits = right.double()
    return {"f1": mean(2 * hits / (actual + taken)), "precision": mean(hits / taken), "recall": mean(hits / actual)}
