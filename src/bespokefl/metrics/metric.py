"""The scores of a client's model by name: what each is called, whether higher is better, and how it is printed."""

from collections.abc import Collection
from dataclasses import dataclass

from bespokefl.core.client_index import PARTS
from bespokefl.core.errors import InputError, listing, unknown


@dataclass(frozen=True)
class Metric:
    """A score that every client has.

    `title` is its name in tables, `higher_is_better` is False for losses and errors, and `percent` says whether it is
    printed in per cent.
    """

    name: str
    title: str
    higher_is_better: bool = True
    percent: bool = False


CLASSIFICATION = (
    Metric("accuracy", "accuracy", percent=True),
    Metric("balanced_accuracy", "balanced accuracy", percent=True),
    Metric("auc", "AUC"),
    Metric("average_precision", "average precision"),
    Metric("f1", "F1"),
    Metric("precision", "precision"),
    Metric("recall", "recall"),
    Metric("log_loss", "log loss", higher_is_better=False),
    Metric("brier", "Brier score", higher_is_better=False),
    Metric("ece", "calibration error", higher_is_better=False),
)
REGRESSION = (
    Metric("rmse", "RMSE", higher_is_better=False),
    Metric("mae", "MAE", higher_is_better=False),
    Metric("r2", "R²"),
)
SHARES = {"ece"} | {one.name for one in CLASSIFICATION if one.higher_is_better}  # scores between 0 and 1
METRICS = {one.name: one for one in (*CLASSIFICATION, Metric("loss", "loss", higher_is_better=False), *REGRESSION)}


def split_name(score: str) -> tuple[str, str]:
    """Return the part of the data and the metric of a score: "validation_auc" is ("validation", "auc")."""
    part, _, name = score.partition("_")
    return (part, name) if part in PARTS else ("", score)  # scores on test data may have no prefix


def metric_of(score: str) -> Metric:
    """Return the metric of a score such as "accuracy" or "validation_auc"; higher is better if it is unknown."""
    name = split_name(score)[1]
    return METRICS.get(name, Metric(name, name.replace("_", " ")))


def check_metric(name: str) -> str:
    """Return the name of a metric as Bespoke spells it; raise InputError if there is none."""
    found = str(name).strip().lower().replace("-", "_").replace(" ", "_")
    if found not in METRICS:
        raise unknown("metric", str(name), METRICS)
    return found


def metrics_of(classes: int | None) -> list[str]:
    """Return the metrics of models for this many classes; None for real-valued targets."""
    return [one.name for one in (REGRESSION if classes is None else CLASSIFICATION)] + ["loss"]


def choose_metric(wanted: str | None, known: Collection[str]) -> str:
    """Return the metric that decides: the wanted one, else accuracy, or loss for regression.

    `known` are the metrics that the models have; raise InputError if the wanted one is not among them.
    """
    default = "accuracy" if "accuracy" in known else "loss"
    if wanted is None:
        return default
    if wanted not in known:
        task = "classification" if default == "accuracy" else "regression"
        has = listing([name for name in METRICS if name in known], len(METRICS))
        raise InputError(f"the metric {wanted!r} is not defined for these models ({task}); use one of {has}.")
    return wanted
