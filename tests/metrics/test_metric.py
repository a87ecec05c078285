"""Metrics by name: direction, titles, and the one that decides."""

import pytest

from bespokefl.core.errors import InputError
from bespokefl.core.scores import measures
from bespokefl.metrics.metric import METRICS, check_metric, choose_metric, metric_of, metrics_of, split_name


def test_every_measure_of_the_core_has_a_metric() -> None:
    assert {*measures.CLASSIFICATION, *measures.REGRESSION} <= METRICS.keys()
    assert {*measures.CLASSIFICATION, "accuracy", "f1", "precision", "recall", "loss"} == {*metrics_of(3)}
    assert {*measures.REGRESSION, "loss"} == {*metrics_of(None)}


def test_losses_and_errors_are_better_when_low() -> None:
    lower = {name for name, metric in METRICS.items() if not metric.higher_is_better}
    assert lower == {"loss", "log_loss", "brier", "ece", "rmse", "mae"}
    assert not metric_of("validation_log_loss").higher_is_better and metric_of("train_auc").higher_is_better


def test_names_of_scores() -> None:
    assert split_name("validation_average_precision") == ("validation", "average_precision")
    assert split_name("balanced_accuracy") == ("", "balanced_accuracy")
    assert check_metric(" Balanced-Accuracy ") == "balanced_accuracy"
    assert metric_of("validation_balanced_accuracy").percent


def test_the_metric_that_decides() -> None:
    assert choose_metric(None, metrics_of(2)) == "accuracy" and choose_metric(None, metrics_of(None)) == "loss"
    assert choose_metric("r2", metrics_of(None)) == "r2"
    with pytest.raises(InputError, match=r"'rmse' is not defined for these models \(classification\); use one of acc"):
        choose_metric("rmse", metrics_of(2))
    with pytest.raises(InputError, match="unknown metric 'acc'"):
        check_metric("acc")
