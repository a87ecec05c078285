"""Test F1, precision and recall by hand and against scikit-learn."""

import numpy as np
import pytest
import torch
from sklearn.metrics import confusion_matrix, precision_recall_fscore_support

from bespokefl.core.errors import InputError
from bespokefl.metrics.classification import confusion, f1, macro, precision, recall


def test_two_classes_by_hand() -> None:
    truth, predicted = [0, 0, 0, 1], [0, 0, 1, 1]
    assert confusion(truth, predicted).tolist() == [[2, 1], [0, 1]]
    assert precision(truth, predicted) == pytest.approx((2 / 2 + 1 / 2) / 2)
    assert recall(truth, predicted) == pytest.approx((2 / 3 + 1 / 1) / 2)
    assert f1(truth, predicted) == pytest.approx((2 * 2 / 5 + 2 * 1 / 3) / 2)


def test_only_classes_that_occur_count() -> None:
    assert f1([3, 3, 7], [3, 3, 7]) == 1.0  # not 2/10
    assert recall([3, 3], [3, 5]) == 0.5 * (1 / 2 + 0)  # 5 was only predicted
    assert precision([3, 5], [3, 3]) == 0.5 * (1 / 2 + 0)  # 5 never was


@pytest.mark.parametrize("seed", range(20))
def test_agrees_with_scikit_learn(seed: int) -> None:
    rng = np.random.default_rng(seed)
    truth, predicted = rng.integers(0, 6, (2, int(rng.integers(1, 25))))
    expected = precision_recall_fscore_support(truth, predicted, average="macro", zero_division=0)[:3]
    for kind in (list, torch.tensor):
        found = [figure(kind(truth), kind(predicted)) for figure in (precision, recall, f1)]
        assert found == pytest.approx(list(expected), abs=1e-12)
    assert (confusion(truth, predicted, 6) == confusion_matrix(truth, predicted, labels=range(6))).all()


def test_many_clients_at_once() -> None:
    rng = np.random.default_rng(0)
    labels = [rng.integers(0, 4, (2, size)) for size in (5, 1, 30)]
    found = macro(np.stack([confusion(truth, predicted, 4) for truth, predicted in labels]))
    for k, (truth, predicted) in enumerate(labels):
        assert [found[name][k] for name in ("f1", "precision", "recall")] == pytest.approx(
            [f1(truth, predicted), precision(truth, predicted), recall(truth, predicted)]
        )


def test_without_examples() -> None:
    assert f1([], []) is None and recall([], []) is None
    found = macro([[[1, 0], [0, 1]], [[0, 0], [0, 0]]])
    assert found["f1"][0] == 1.0 and np.isnan(found["f1"][1])


def test_bad_input() -> None:
    with pytest.raises(InputError, match="truth and predicted must be of the same examples, got 2 and 1"):
        f1([0, 1], [0])
    for bad in ([0.5, 1], [-1, 0], [float("nan"), 1]):
        with pytest.raises(InputError, match="predicted must be class numbers"):
            f1([0, 1], bad)
    with pytest.raises(InputError, match=r"labels must be in 0\.\.1 for 2 classes, got 2"):
        confusion([0, 2], [0, 1], 2)
    with pytest.raises(InputError, match=r"of shape \(…, C, C\), got the shape \(2, 3\)"):
        macro(np.zeros((2, 3)))
