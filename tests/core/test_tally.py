"""Counts by class, batch by batch, are those of all examples at once."""

import numpy as np
import pytest
import torch
from sklearn.metrics import precision_recall_fscore_support

from bespokefl.core.tally import Tally, macro


def test_batches_add_up_row_by_row() -> None:
    rng = np.random.default_rng(0)
    tally, seen = Tally(3), [([], []), ([], []), ([], [])]
    for rows, size in ((3, 4), (2, 5), (1, 7)):  # the last rows have fewer batches
        truth, predicted = (torch.from_numpy(rng.integers(0, 4, (rows, size))) for _ in range(2))
        there = torch.from_numpy(rng.random((rows, size)) < 0.8)
        tally.add(truth, predicted, there, 4)
        for row in range(rows):
            seen[row][0].extend(truth[row, there[row]].tolist())
            seen[row][1].extend(predicted[row, there[row]].tolist())
    found = tally.scores()
    for row, (truth, predicted) in enumerate(seen):
        expected = precision_recall_fscore_support(truth, predicted, average="macro", zero_division=0)[:3]
        assert [float(found[name][row]) for name in ("precision", "recall", "f1")] == pytest.approx(list(expected))


def test_nothing_counted_is_undefined() -> None:
    for scores in (Tally(2).scores(), macro(*torch.zeros(3, 2, 5, dtype=torch.int64))):
        assert set(scores) == {"f1", "precision", "recall"}
        assert all(values.shape == (2,) and values.isnan().all() for values in scores.values())
