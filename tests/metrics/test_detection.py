"""False alarms at the same misses, by hand and by trying all thresholds."""

import numpy as np
import pytest
import torch

from bespokefl.core.errors import InputError
from bespokefl.metrics.detection import Detection, against_baseline, by_slice, relative_false_accepts

LABELS = [1, 1, 1, 1, 0, 0, 0, 0]
BASELINE = [0.9, 0.8, 0.7, 0.2, 0.95, 0.75, 0.1, 0.3]  # at .5 it misses one positive; at .7, too, two alarms are false


def test_by_hand() -> None:
    better = [0.9, 0.8, 0.7, 0.6, 0.85, 0.65, 0.1, 0.3]  # missing one leaves a threshold of .7: one false alarm
    found = against_baseline(better, BASELINE, LABELS)
    assert found == Detection(false_accepts=1 / 2, false_rejects=1.0, threshold=0.7)
    assert relative_false_accepts(torch.tensor(better), np.array(BASELINE), LABELS) == 0.5
    worse = [0.9, 0.2, 0.1, 0.8, 0.85, 0.65, 0.3, 0.7]  # missing one: the threshold is .2, all four are accepted
    assert relative_false_accepts(worse, BASELINE, LABELS) == 4 / 2


def test_the_baseline_against_itself_is_one() -> None:
    for threshold in (0.1, 0.3, 0.5, 0.72, 0.85):
        found = against_baseline(BASELINE, BASELINE, LABELS, threshold=threshold)
        assert (found.false_accepts, found.false_rejects) == (1.0, 1.0)


def test_only_the_order_of_scores_matters() -> None:
    rng = np.random.default_rng(0)
    scores, baseline, labels = rng.random(200), rng.random(200), rng.integers(0, 2, 200)
    found = relative_false_accepts(scores, baseline, labels)
    assert found == relative_false_accepts(np.exp(5 * scores), baseline, labels)


@pytest.mark.parametrize("seed", range(10))
def test_it_is_the_best_of_all_thresholds(seed: int) -> None:
    """Fewest false accepts with no more misses than the baseline, also where scores tie."""
    rng = np.random.default_rng(seed)
    scores, baseline = rng.integers(0, 12, (2, 60)) / 12
    labels = rng.integers(0, 2, 60).astype(bool)
    misses = (baseline[labels] < 0.5).sum()

    def fewest(values: np.ndarray) -> int:
        cuts = [*np.unique(values), 2.0]
        return min(int((values[~labels] >= cut).sum()) for cut in cuts if (values[labels] < cut).sum() <= misses)

    found = against_baseline(scores, baseline, labels)
    assert found.false_accepts == fewest(scores) / fewest(baseline)
    assert found.false_rejects is not None and found.false_rejects <= 1.0


def test_slices_have_misses_of_their_own() -> None:
    slices = ["normal", "alarm"] * 4
    better = [0.9, 0.8, 0.7, 0.6, 0.85, 0.65, 0.1, 0.3]
    found = by_slice(better, BASELINE, LABELS, slices)
    assert list(found) == ["normal", "alarm"]
    for name in found:
        inside = [at for at, own in enumerate(slices) if own == name]
        parts = ([values[at] for at in inside] for values in (better, BASELINE, LABELS))
        assert found[name] == against_baseline(*parts)


def test_what_is_undefined_is_none() -> None:
    assert against_baseline([0.9, 0.8], [0.9, 0.1], [1, 0]) == Detection(None, 1.0, 0.9)  # no false accept to compare
    assert against_baseline([0.1, 0.8], [0.9, 0.8], [0, 0]).false_rejects is None
    assert against_baseline([], [], []).false_accepts is None


def test_bad_input() -> None:
    with pytest.raises(InputError, match="labels must be 1 for a positive and 0"):
        against_baseline([0.5, 0.5], [0.5, 0.5], [1, 2])
    with pytest.raises(InputError, match="scores and labels must be of the same clients"):
        against_baseline([0.5], [0.5], [1, 0])
    with pytest.raises(InputError, match="scores must be numbers, got NaN"):
        against_baseline([float("nan")], [0.5], [1])
    with pytest.raises(InputError, match="slices must name one for each of 1 examples, got 2"):
        by_slice([0.5], [0.5], [1], ["a", "b"])
