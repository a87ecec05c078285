"""Measures of many models at once from their outputs: ranking, calibration, and errors of real-valued outputs.

Examples of all rows lie in one array; `row` says which row each belongs to. There is no Python loop over rows, so
that a thousand small clients take no longer than one large client. A measure that is undefined for a row is NaN.
"""

from collections.abc import Iterator

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Array = NDArray[np.float64]
Index = NDArray[np.int64]

CALIBRATION_BINS = 15  # of confidence, all equally wide (Guo et al., 2017)
BLOCK = 1 << 22  # outputs that are processed at once, about


class OutputMeasures:
    """Collects outputs of rows and computes measures of each row from all of them.

    For classification, outputs are logits of classes, and the measures are "balanced_accuracy", "auc",
    "average_precision", "log_loss", "brier" and "ece"; otherwise "rmse", "mae" and "r2".
    """

    def __init__(self, rows: int, *, classifies: bool) -> None:
        self.rows, self.classifies = rows, classifies
        self._parts: list[tuple[Index, Tensor, Tensor]] = []

    def add(self, row: Index, truth: Tensor, outputs: Tensor) -> None:
        """Add examples, (n,), with their labels and outputs, (n, …)."""
        self._parts.append((row, truth.detach().cpu(), outputs.detach().cpu()))

    def scores(self) -> dict[str, Tensor]:
        """Return the measures of each row; none if outputs and real-valued targets differ in shape."""
        if not self._parts:
            names = CLASSIFICATION if self.classifies else REGRESSION
            return {name: torch.full((self.rows,), torch.nan, dtype=torch.float64) for name in names}
        row = np.concatenate([row for row, _, _ in self._parts])
        order = np.argsort(row, kind="stable")
        truth = torch.cat([truth for _, truth, _ in self._parts])[torch.from_numpy(order)]
        outputs = torch.cat([outputs for _, _, outputs in self._parts])[torch.from_numpy(order)]
        if not self.classifies and truth.numel() != outputs.numel():
            return {}
        found: dict[str, Array] = {}
        for some in _blocks(row[order], max(1, outputs[0].numel())):
            own, at = row[order][some], slice(some.start, some.stop)
            first, last = int(own[0]), int(own[-1]) + 1
            if self.classifies:
                part = classification_measures(own - first, truth[at].numpy(), outputs[at], last - first)
            else:
                part = regression_measures(own - first, truth[at], outputs[at], last - first)
            for name, values in part.items():
                found.setdefault(name, np.full(self.rows, np.nan))[first:last] = values
        return {name: torch.from_numpy(values) for name, values in found.items()}


def classification_measures(row: Index, truth: Index, logits: Tensor, rows: int) -> dict[str, Array]:
    """Return the measures of classifiers whose logits are (n, C), each of shape (rows,).

    AUC and average precision are those of class 1 if there are two classes; otherwise each class is compared with the
    rest, and the mean is over the classes that a row has. Both are NaN for a row with examples of one class only.
    Balanced accuracy is the mean recall over the classes that a row has.
    """
    logarithms = torch.log_softmax(logits.double(), -1).numpy()
    shares, classes = np.exp(logarithms), logits.shape[-1]
    counts = np.bincount(row * classes + truth, minlength=rows * classes).reshape(rows, classes)
    sizes, examples = counts.sum(1), np.arange(len(truth))
    predicted = shares.argmax(1)
    hit = predicted == truth
    right = np.bincount((row * classes + truth)[hit], minlength=rows * classes).reshape(rows, classes)
    squares = (shares**2).sum(1) - 2 * shares[examples, truth] + 1  # Σ_c (p_c − [c is the label])²
    with np.errstate(invalid="ignore", divide="ignore"):  # 0/0 is NaN: no examples
        recall = np.where(counts > 0, right / counts, 0.0)
        found = {
            "balanced_accuracy": recall.sum(1) / (counts > 0).sum(1),
            **_ranking(row, truth, shares, counts),
            "log_loss": _sums(row, -logarithms[examples, truth], rows) / sizes,
            "brier": _sums(row, squares, rows) / sizes / (2 if classes == 2 else 1),
            "ece": _calibration_error(row, shares[examples, predicted], hit, rows) / sizes,
        }
    undefined = _sums(row, ~np.isfinite(shares).all(1), rows) > 0  # a model whose outputs are not finite
    return {name: np.where(undefined | ~np.isfinite(values), np.nan, values) for name, values in found.items()}


def regression_measures(row: Index, truth: Tensor, outputs: Tensor, rows: int) -> dict[str, Array]:
    """Return root mean squared error, mean absolute error and R², each of shape (rows,).

    For several outputs each measure is the mean over the outputs. R² is NaN where all targets of a row are equal.
    """
    actual, found = (one.double().reshape(len(truth), -1).numpy() for one in (truth, outputs))
    sizes = np.bincount(row, minlength=rows)[:, None]

    def means(values: Array) -> Array:
        return np.stack([_sums(row, column, rows) for column in values.T], 1) / sizes

    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):  # 0/0 is NaN: no examples, or equal targets
        error = means((found - actual) ** 2)
        variance = means((actual - means(actual)[row]) ** 2)
        ratio = np.where(variance > 0, error / variance, np.nan)
        measures = {
            "rmse": np.sqrt(error).mean(1),
            "mae": means(np.abs(found - actual)).mean(1),
            "r2": 1 - _sums_of_known(ratio) / (~np.isnan(ratio)).sum(1),
        }
    return {name: np.where(np.isfinite(values), values, np.nan) for name, values in measures.items()}


CLASSIFICATION = ("balanced_accuracy", "auc", "average_precision", "log_loss", "brier", "ece")
REGRESSION = ("rmse", "mae", "r2")


def _blocks(row: Index, width: int) -> Iterator[range]:
    """Cut examples, sorted by row, into ranges of about BLOCK outputs that contain whole rows."""
    most, begin = max(1, BLOCK // width), 0
    starts = np.flatnonzero(np.diff(row, prepend=-1)) if len(row) > most else np.zeros(1, np.int64)
    for start, end in zip(starts, [*starts[1:], len(row)], strict=True):
        if end - begin > most and start > begin:
            yield range(begin, start)
            begin = int(start)
    yield range(begin, len(row))


def _sums(row: Index, values: NDArray[np.generic], rows: int) -> Array:
    sums: Array = np.bincount(row, weights=values.astype(np.float64), minlength=rows).astype(np.float64, copy=False)
    return sums


def _sums_of_known(values: Array) -> Array:
    sums: Array = np.where(np.isnan(values), 0.0, values).sum(1)
    return sums


def _ranking(row: Index, truth: Index, shares: Array, counts: Index) -> dict[str, Array]:
    """AUC and average precision: of class 1 if there are two, else one class against the rest, averaged."""
    rows, classes = counts.shape
    ranked = (counts > 0) & (counts < counts.sum(1, keepdims=True))
    if classes == 2:
        ranked[:, 0] = False
    totals = np.zeros((2, rows))
    for one in np.flatnonzero(ranked.any(0)):
        some = ranked[row, one]
        found = _ranked(row[some], truth[some] == one, shares[some, one], rows)
        totals += np.where(ranked[:, one], found, 0.0)
    area, precision = totals / ranked.sum(1)
    return {"auc": area, "average_precision": precision}


def _ranked(row: Index, positive: NDArray[np.bool_], score: Array, rows: int) -> Array:
    """AUC and average precision, (2, rows), of binary labels; equal scores are one threshold, as in scikit-learn."""
    order = np.argsort(score)
    narrow = row[order].astype(np.uint16) if rows <= 1 << 16 else row[order]  # 16 bits are sorted by radix
    order = order[np.argsort(narrow, kind="stable")]  # by row, then by score
    row, positive, score = row[order], positive[order], score[order]
    new = np.diff(row, prepend=-1).astype(bool) | np.diff(score, prepend=np.nan).astype(bool)
    tie = new.cumsum() - 1  # examples of a row with equal scores
    owner = row[new]
    size, hits = np.bincount(tie), np.bincount(tie, weights=positive)
    num, num_positive = np.bincount(row, minlength=rows), np.bincount(row, weights=positive, minlength=rows)
    below = size.cumsum() - size - (num.cumsum() - num)[owner]  # examples of the same row with lower scores
    hits_below = hits.cumsum() - hits - (num_positive.cumsum() - num_positive)[owner]
    misses, misses_below = size - hits, below - hits_below
    pairs = np.bincount(owner, weights=hits * (misses_below + misses / 2), minlength=rows)
    hits_above = num_positive[owner] - hits_below  # including this threshold
    precision = hits_above / (num[owner] - below)
    average = np.bincount(owner, weights=hits * precision, minlength=rows) / num_positive
    return np.stack([pairs / (num_positive * (num - num_positive)), average])


def _calibration_error(row: Index, confidence: Array, hit: NDArray[np.bool_], rows: int) -> Array:
    """Σ over bins of |correct predictions − confidence|, which divided by the examples is the calibration error."""
    known = np.nan_to_num(confidence)
    bins = np.clip(np.ceil(known * CALIBRATION_BINS).astype(np.int64) - 1, 0, CALIBRATION_BINS - 1)
    gaps = _sums(row * CALIBRATION_BINS + bins, hit - known, rows * CALIBRATION_BINS)
    error: Array = np.abs(gaps.reshape(rows, CALIBRATION_BINS)).sum(1)
    return error
