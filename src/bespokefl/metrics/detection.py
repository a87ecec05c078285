"""Compare two detectors at the same rate of misses: how many false alarms does one raise relative to the other?

Chen et al. (Self-FL), section 4.3: relative false accepts where relative false rejects are about 1. The baseline, at
its threshold, misses a share r of the positives. Each model then gets the highest threshold at which it misses at most
r, and so its fewest false accepts. The baseline compared with itself is exactly 1.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bespokefl.core.errors import InputError
from bespokefl.metrics.client_values import Array, Values, same_shape, to_vector


@dataclass(frozen=True)
class Detection:
    """Errors of a detector relative to a baseline; below 1 is better."""

    false_accepts: float | None  # None if the baseline has no false accepts
    false_rejects: float | None  # about 1, less only if scores tie; 1 if neither misses any; None without positives
    threshold: float  # scores from here on are detections; infinite if all positives may be missed


def against_baseline(scores: Values, baseline: Values, labels: Values, *, threshold: float = 0.5) -> Detection:
    """Compare a detector with a baseline.

    Parameters
    ----------
    scores, baseline : array-like of shape (n,)
        Scores of both detectors for the same examples; higher means more likely positive.
    labels : array-like of shape (n,)
        1 for a positive, 0 for a negative.
    threshold : float
        Of the baseline: a score from here on is a detection.
    """
    own, other, truth = _checked(scores, baseline, labels)
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
    """Return the `false_accepts` of `against_baseline`."""
    return against_baseline(scores, baseline, labels, threshold=threshold).false_accepts


def by_slice(
    scores: Values, baseline: Values, labels: Values, slices: Sequence[object], *, threshold: float = 0.5
) -> dict[str, Detection]:
    """Compare a detector with a baseline on each slice of the examples, at the slice's own rate of misses.

    `slices` names the slice of each example (in the paper: normal, playback, alarm); the other parameters are those of
    `against_baseline`.
    """
    own, other, truth = _checked(scores, baseline, labels)
    names = np.array([str(one) for one in slices])
    if len(names) != len(own):
        raise InputError(f"slices must name one for each of {len(own)} examples, got {len(names)}.")
    return {
        name: against_baseline(own[inside], other[inside], truth[inside], threshold=threshold)
        for name in dict.fromkeys(names.tolist())
        for inside in [names == name]
    }


def _checked(scores: Values, baseline: Values, labels: Values) -> list[Array]:
    return same_shape(
        ("scores", to_vector(scores, "scores")), ("baseline", baseline), ("labels", to_vector(labels, "labels"))
    )


def _errors(scores: Array, positive: NDArray[np.bool_], allowed: int) -> tuple[float, int, int]:
    """Return the highest threshold with at most `allowed` misses, and the false accepts and rejects there."""
    ascending = np.sort(scores[positive])
    cut = float(ascending[allowed]) if allowed < len(ascending) else float("inf")
    accepted = scores >= cut
    return cut, int((accepted & ~positive).sum()), int((~accepted & positive).sum())
