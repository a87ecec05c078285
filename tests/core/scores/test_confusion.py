"""Counts by class, batch by batch, are those of all examples at once."""

import numpy as np
import pytest
import torch
from sklearn.metrics import precision_recall_fscore_support

from bespokefl.core.scores.confusion import ConfusionCounts, macro


def test_batches_add_up_row_by_row() -> None:
    rng = np.random.default_rng(0)
    counts, seen = ConfusionCounts(3), [([], []), ([], []), ([], [])]
    for rows, size in ((3, 12), (2, 9), (1, 7)):  # the last rows have fewer batches
        row = np.sort(rng.integers(0, rows, size))
        truth, predicted = (torch.from_numpy(rng.integers(0, 4, size)) for _ in range(2))
        counts.add(row, truth, predicted, 4)
        for own, *pair in zip(row, truth.tolist(), predicted.tolist(), strict=True):
            for seen_of, value in zip(seen[own], pair, strict=True):
                seen_of.append(value)
    found = counts.scores()
    for row, (truth, predicted) in enumerate(seen):
        expected = precision_recall_fscore_support(truth, predicted, average="macro", zero_division=0)[:3]
        assert [float(found[name][row]) for name in ("precision", "recall", "f1")] == pytest.approx(list(expected))


def test_nothing_counted_is_undefined() -> None:
    for scores in (ConfusionCounts(2).scores(), macro(*torch.zeros(3, 2, 5, dtype=torch.int64))):
        assert set(scores) == {"f1", "precision", "recall"}
        assert all(values.shape == (2,) and values.isnan().all() for values in scores.values())
