"""What a client's own model says about new examples: a label and a probability for each class, or a value."""

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
from bespokefl.workflows.newcomers import arrays
from bespokefl.workflows.newcomers import result as newcomers
from bespokefl.workflows.newcomers.personalize import check_finished
from bespokefl.workflows.newcomers.result import Newcomers, load_newcomers
from bespokefl.workflows.results import run_directory, score_tables
from bespokefl.workflows.results.result import Result, load_run

BATCH = 256


@dataclass(frozen=True)
class Predictions:
    """One entry per example. Classes: `labels` and `probabilities` (examples × classes); regression: `values`."""

    classes: tuple[str, ...]
    labels: tuple[str, ...] = ()
    probabilities: np.ndarray | None = None
    values: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.labels) if self.values is None else len(self.values)

    @property
    def table(self) -> list[dict[str, Any]]:
        """One dict per example, as in the file."""
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
        """Write a CSV file, whole or not at all."""
        check(Path(path), overwrite)
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        run_directory.write_text(Path(path), score_tables.csv_text(self.table))
        return Path(path)


def predict(run: Result | Newcomers | str | PathLike[str], client: str, data: str | PathLike[str]) -> Predictions:
    """A client's model on the x of an .npz file, or on a table with the columns of the run's.

    run  a result, or the folder of a run or of newcomers' models
    """
    source = run if isinstance(run, Result | Newcomers) else _load(Path(run))
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
    """What a client's model says about the examples of a file; `examples`: what the run says of its own."""
    x = arrays.examples(data, examples, preparation)[0].x
    if preparation is not None:
        x = preparation.apply(x.numpy(), client=client)
    return answer(model, x, examples["labels"])


def answer(model: nn.Module, x: torch.Tensor, labels: Sequence[str] | None) -> Predictions:
    """What a module says; `labels` name its first outputs, None: they are values."""
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
    """Refuse a place where the file cannot be written, or would replace something. Writes nothing."""
    if path.is_dir():
        raise InputError(f"{str(path)!r} is a folder; give the name of a file, such as predictions.csv.")
    if path.exists() and not overwrite:
        raise InputError(f"{str(path)!r} is there already; use --overwrite to replace it, or another name.")
    run_directory.check_above(path)


def _load(path: Path) -> Result | Newcomers:
    return (
        load_newcomers(path)
        if run_directory.is_run(path, newcomers.SIGNS) and not run_directory.is_run(path)
        else load_run(path)
    )
