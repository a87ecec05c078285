"""Measures of many rows at once against scikit-learn, one row at a time."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from sklearn import metrics

from bespokefl.core.scores import measures
from bespokefl.core.scores.measures import OutputMeasures

Array = np.ndarray[Any, Any]


def shares_of(logits: Array) -> Array:
    return np.exp(torch.log_softmax(torch.from_numpy(logits), -1).numpy())


def macro(score: Callable[[Array, Array], float], truth: Array, shares: Array) -> float:
    """One class against the rest, averaged over the classes that occur; of class 1 if there are two."""
    present = [1] if shares.shape[1] == 2 else sorted(set(truth))
    if len(set(truth)) < 2:
        return float("nan")
    return float(np.mean([score(truth == one, shares[:, one]) for one in present]))


def calibration_error(truth: Array, shares: Array) -> float:
    """Guo et al. (2017), equation 3, bin by bin."""
    sure, right = shares.max(1), shares.argmax(1) == truth
    total = 0.0
    for b in range(15):
        inside = (sure > b / 15) & (sure <= (b + 1) / 15)
        if inside.any():
            total += inside.mean() * abs(right[inside].mean() - sure[inside].mean())
    return total


def brier(truth: Array, shares: Array) -> float:
    if shares.shape[1] == 2:
        return float(metrics.brier_score_loss(truth, shares[:, 1], pos_label=1))
    return float(((shares - np.eye(shares.shape[1])[truth]) ** 2).sum(1).mean())


def balanced(truth: Array, shares: Array) -> float:
    found = shares.argmax(1)
    return float(np.mean([(found == one)[truth == one].mean() for one in set(truth)]))


EXPECTED: dict[str, Callable[[Array, Array], float]] = {
    "balanced_accuracy": balanced,
    "auc": lambda truth, shares: macro(metrics.roc_auc_score, truth, shares),
    "average_precision": lambda truth, shares: macro(metrics.average_precision_score, truth, shares),
    "log_loss": lambda truth, shares: metrics.log_loss(truth, shares, labels=range(shares.shape[1])),
    "brier": brier,
    "ece": calibration_error,
}


def clients(classes: int, *, ties: bool = False) -> tuple[list[Array], list[Array]]:
    """Labels and logits of forty clients: some without examples, with one example, or with one class only."""
    rng = np.random.default_rng(classes)
    sizes = [0, 1, 2, 30, *rng.integers(0, 60, 36)]
    truth = [rng.integers(0, classes, size) for size in sizes]
    truth[3][:] = classes - 1
    logits = [rng.normal(size=(size, classes), scale=2) for size in sizes]
    return truth, [one.round() if ties else one for one in logits]


def measured(truth: list[Array], outputs: list[Array], *, classifies: bool = True, parts: int = 3) -> dict[str, Array]:
    """Add all examples in several parts, as the steps of a sweep do."""
    found = OutputMeasures(len(truth), classifies=classifies)
    for part in range(parts):
        row = np.concatenate([np.full(len(own[part::parts]), at) for at, own in enumerate(truth)])
        y, out = (np.concatenate([own[part::parts] for own in many]) for many in (truth, outputs))
        found.add(row, torch.from_numpy(y), torch.from_numpy(out))
    return {name: values.numpy() for name, values in found.scores().items()}


@pytest.mark.filterwarnings("ignore")  # scikit-learn warns of classes that do not occur
@pytest.mark.parametrize("block", [200, 1 << 22])
@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("classes", [2, 3, 11])
def test_classification_is_scikit_learn_s(
    classes: int, ties: bool, block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measures, "BLOCK", block)
    truth, logits = clients(classes, ties=ties)
    found = measured(truth, logits)
    assert tuple(found) == measures.CLASSIFICATION
    for name, score in EXPECTED.items():
        expected = [score(own, shares_of(out)) if len(own) else np.nan for own, out in zip(truth, logits, strict=True)]
        np.testing.assert_allclose(found[name], expected, rtol=1e-9, atol=1e-12, err_msg=name)
    assert np.isnan(found["auc"][[0, 1, 3]]).all() and np.isfinite(found["auc"][4:]).any()


def test_balanced_accuracy_is_scikit_learn_s_where_every_class_occurs() -> None:
    rng = np.random.default_rng(0)
    truth = [np.concatenate([np.arange(4), rng.choice(4, 60, p=[0.8, 0.1, 0.05, 0.05])]) for _ in range(5)]
    logits = [rng.normal(size=(64, 4)) for _ in range(5)]
    expected = [metrics.balanced_accuracy_score(y, out.argmax(1)) for y, out in zip(truth, logits, strict=True)]
    np.testing.assert_allclose(measured(truth, logits)["balanced_accuracy"], expected, rtol=1e-12)


@pytest.mark.parametrize("outputs", [1, 3])
def test_regression_is_scikit_learn_s(outputs: int) -> None:
    rng = np.random.default_rng(outputs)
    sizes = [0, 1, 2, *rng.integers(3, 50, 20)]
    truth = [rng.normal(size=(size, outputs), loc=100) for size in sizes]
    guesses = [own + rng.normal(size=own.shape) for own in truth]
    found = measured(truth, guesses, classifies=False)
    assert tuple(found) == measures.REGRESSION
    scores = {"rmse": metrics.root_mean_squared_error, "mae": metrics.mean_absolute_error, "r2": metrics.r2_score}
    for name, score in scores.items():
        least = 2 if name == "r2" else 1
        expected = [score(own, out) if len(own) >= least else np.nan for own, out in zip(truth, guesses, strict=True)]
        np.testing.assert_allclose(found[name], expected, rtol=1e-9, err_msg=name)


def test_r2_is_undefined_for_equal_targets() -> None:
    truth, guess = [np.full(5, 3.0), np.arange(5.0)], [np.arange(5.0), np.arange(5.0)]
    np.testing.assert_array_equal(measured(truth, guess, classifies=False)["r2"], [np.nan, 1.0])


def test_outputs_that_are_not_finite_have_no_measures() -> None:
    truth, logits = [np.array([0, 1, 1]), np.array([0, 1])], [np.ones((3, 2)), np.array([[2.0, 1], [0, 3]])]
    logits[0][1, 0] = np.inf
    found = measured(truth, logits)
    assert all(np.isnan(values[0]) and np.isfinite(values[1]) for values in found.values())
    errors = measured([np.ones(2)], [np.array([np.inf, 1.0])], classifies=False)
    assert all(np.isnan(values).all() for values in errors.values())


def test_outputs_of_another_shape_than_the_targets_have_no_measures() -> None:
    assert measured([np.ones(4)], [np.ones((4, 2))], classifies=False) == {}


def test_without_any_examples_all_measures_are_undefined() -> None:
    for classifies, names in ((True, measures.CLASSIFICATION), (False, measures.REGRESSION)):
        found = OutputMeasures(3, classifies=classifies).scores()
        assert tuple(found) == names and all(values.isnan().all() for values in found.values())
