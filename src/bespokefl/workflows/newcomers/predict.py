"""Predict with a client's own model: a label and class probabilities for each example, or a value."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from bespokefl.core.errors import InputError
from bespokefl.data.preprocessing.transform import Preparation
from bespokefl.models import Model
from bespokefl.workflows.newcomers import result as newcomers
from bespokefl.workflows.newcomers.personalize import check_finished, read_examples
from bespokefl.workflows.newcomers.result import Newcomers, load_newcomers
from bespokefl.workflows.results import run_directory, score_tables
from bespokefl.workflows.results.result import Result, load_run

BATCH = 256


@dataclass(frozen=True)
class Predictions:
    """Predictions for a file of examples."""

    classes: tuple[str, ...]  # their names; empty for regression
    labels: tuple[str, ...] = ()  # the predicted class of each example
    probabilities: np.ndarray | None = None  # (examples, classes); None for regression
    values: np.ndarray | None = None  # (examples,), for regression; None for classification

    def __len__(self) -> int:
        return len(self.labels) if self.values is None else len(self.values)

    @property
    def table(self) -> list[dict[str, Any]]:
        """One dict per example, as in the CSV file."""
        if self.values is not None:
            return [{"example": at, "value": value} for at, value in enumerate(self.values.tolist())]
        assert self.probabilities is not None
        names = [f"probability_{name}" for name in self.classes]
        rows = zip(self.labels, self.probabilities.tolist(), strict=True)
        return [
            {"example": at, "label": label, **dict(zip(names, own, strict=True))}
            for at, (label, own) in enumerate(rows)
        ]

    def save(self, path: str | PathLike[str], overwrite: bool = False) -> Path:
        """Write the predictions to a CSV file and return its path."""
        target = Path(path)
        check(target, overwrite)
        target.parent.mkdir(parents=True, exist_ok=True)
        run_directory.write_text(target, score_tables.csv_text(self.table))
        return target


def predict(run: Result | Newcomers | str | PathLike[str], client: str, data: str | PathLike[str]) -> Predictions:
    """Predict with the model of one client of a run, or of newcomers.

    `data` is an .npz file with x, or a table with the columns of the run's data.
    """
    source = run if isinstance(run, Result | Newcomers) else load_models(run)
    if isinstance(source, Result):
        check_finished(source, "predictions")
    about = source.about if isinstance(source, Result) else source.origin
    return by_model(source.model(client), str(client), data, about["examples"], source.preparation)


def by_model(
    model: nn.Module,
    client: str,
    data: str | PathLike[str],
    examples: Mapping[str, Any],
    preparation: Preparation | None,
) -> Predictions:
    """Predict the examples of a file with a client's model; `examples` describes those of the run."""
    x = read_examples(data, examples, preparation)[0].x
    if preparation is not None:
        x = preparation.apply(x.numpy(), client=client)
    return answer(model, x, examples["labels"])


def answer(model: nn.Module, x: torch.Tensor, labels: Sequence[str] | None) -> Predictions:
    """Predict with a module; `labels` name its first outputs, None for regression."""
    dtype = next(model.parameters()).dtype
    with torch.no_grad():
        inputs = (x.to(dtype) if x.is_floating_point() else x).split(BATCH)
        outputs = torch.cat([model(part) for part in inputs]).double()
    if labels is None:
        return Predictions((), values=outputs.reshape(len(x)).numpy())
    classes = (*labels, *(f"output {at}" for at in range(len(labels), outputs.shape[1])))
    chosen = outputs.argmax(1).tolist()
    return Predictions(classes, tuple(classes[at] for at in chosen), outputs.softmax(1).numpy())


def check(path: Path, overwrite: bool) -> None:
    """Reject a path that cannot be written or that would replace something. Writes nothing."""
    if path.is_dir():
        raise InputError(f"{str(path)!r} is a directory; give the name of a file, such as predictions.csv.")
    if path.exists() and not overwrite:
        raise InputError(f"{str(path)!r} exists already; use --overwrite to replace it, or another name.")
    run_directory.check_above(path)


def load_models(run: str | PathLike[str], model: Model | None = None) -> Result | Newcomers:
    """Load the directory of a run or of newcomers; `model` is needed if it was a Python object."""
    path = Path(run)
    is_newcomers = run_directory.is_run(path, newcomers.MARKERS) and not run_directory.is_run(path)
    return load_newcomers(path, model) if is_newcomers else load_run(path, model)
