"""Two models that detect something, at the same rate of misses: how many false alarms does one give for the other's?

Chen et al. (Self-FL), section 4.3: relative false accepts where relative false rejects are about 1. The baseline, at
its threshold, misses r of the positives. Both models then get the highest threshold at which they miss no more than r:
their fewest false accepts at the same misses, so that the baseline against itself is exactly 1.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bespokefl.core.errors import InputError
from bespokefl.metrics.vectors import Array, Values, alike, vector


@dataclass(frozen=True)
class Detection:
    """A model's errors relative to the baseline's; below 1 is better."""

    false_accepts: float | None  # None where the baseline accepts nothing falsely
    false_rejects: (
        float | None
    )  # about 1: less only where scores tie; 1 where both miss nothing; None without positives
    threshold: float  # a score from here on is a detection; infinite where all positives may be missed


def against_baseline(scores: Values, baseline: Values, labels: Values, *, threshold: float = 0.5) -> Detection:
    """A model against a baseline.

    scores, baseline    what each of them gives every example: the higher, the surer that it is a positive
    labels              1 for a positive, 0 for a negative
    threshold           the baseline's: a score from here on is a detection
    """
    own, other, truth = alike(
        ("scores", vector(scores, "scores")), ("baseline", baseline), ("labels", vector(labels, "labels"))
    )
    if np.isnan(own).any() or np.isnan(other).any():
        raise InputError("scores must be numbers, got NaN; leave out examples without one.")
    if not np.isin(truth, (0.0, 1.0)).all():
        raise InputError("labels must be 1 for a positive and 0 for a negative, got something else.")
    positive = truth == 1
    allowed = int((other[positive] < threshold).sum())
    cut, accepts, rejects = _errors(own, positive, allowed)
    _, base_accepts, base_rejects = _errors(other, positive, allowed)
    relative_rejects = (rejects / base_rejects if base_rejects else 1.0) if positive.any() else None
    return Detection(accepts / base_accepts if base_accepts else None, relative_rejects, cut)


def relative_false_accepts(scores: Values, baseline: Values, labels: Values, *, threshold: float = 0.5) -> float | None:
    """False accepts relative to the baseline's, where both miss the same; None where the baseline has none."""
    return against_baseline(scores, baseline, labels, threshold=threshold).false_accepts


def by_slice(
    scores: Values, baseline: Values, labels: Values, slices: Sequence[object], *, threshold: float = 0.5
) -> dict[str, Detection]:
    """The same for each slice of the examples (the paper's normal, playback, alarm), at its own misses.

    slices    the name of every example's slice
    """
    own, other, truth = alike(
        ("scores", vector(scores, "scores")), ("baseline", baseline), ("labels", vector(labels, "labels"))
    )
    names = np.array([str(one) for one in slices])
    if len(names) != len(own):
        raise InputError(f"slices must name one for each of {len(own)} examples, got {len(names)}.")
    return {
        name: against_baseline(own[inside], other[inside], truth[inside], threshold=threshold)
        for name in dict.fromkeys(names.tolist())
        for inside in [names == name]
    }


def _errors(scores: Array, positive: NDArray[np.bool_], allowed: int) -> tuple[float, int, int]:
    """The highest threshold that misses at most so many positives, and the false accepts and rejects there."""
    ascending = np.sort(scores[positive])
    cut = float(ascending[allowed]) if allowed < len(ascending) else float("inf")
    accepted = scores >= cut
    return cut, int((accepted & ~positive).sum()), int((~accepted & positive).sum())
