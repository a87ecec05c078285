"""Read new examples from a file and check that they fit a finished run."""

from collections.abc import Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import torch

from bespokefl.core.errors import InputError, listing
from bespokefl.data.dataset import Dataset, as_array
from bespokefl.data.preprocessing.transform import Preparation
from bespokefl.data.readers import npz
from bespokefl.data.tables import table as columns


def read_examples(
    path: str | PathLike[str], about: Mapping[str, Any], preparation: Preparation | None
) -> tuple[Dataset, np.ndarray | None]:
    """Return the raw examples of a file, read as those of the run, and its labels if it has any.

    `about` describes the examples of the run: "shape", "tokens" and "labels".
    """
    if preparation is not None and preparation.features.kind in ("table", "text"):
        found = columns.inputs(path, preparation.features)
        x = torch.from_numpy(found.x)
        return Dataset(Path(path).stem, x, torch.zeros(len(x)), found.client), found.y
    arrays = npz.read(Path(path), ("x", "y", "client"))
    if "x" not in arrays:
        raise InputError(f"{str(path)!r} must have an array x; save it with np.savez(path, x=...).")
    inputs = as_array(arrays["x"], "x")
    expected = tuple(about["shape"])
    if inputs.ndim and len(inputs) and inputs.shape[1:] != expected:
        raise InputError(
            f"x in {str(path)!r} must have examples of shape {expected}, as the run was trained with, "
            f"got {inputs.shape[1:]}."
        )
    no_labels = np.zeros(len(inputs) if inputs.ndim else 0, dtype=np.float32)
    tokens = bool(about["tokens"])
    return Dataset.from_arrays(inputs, no_labels, arrays.get("client"), Path(path).stem, tokens=tokens), arrays.get("y")


def targets(y: np.ndarray, labels: Sequence[str] | None, where: str) -> torch.Tensor:
    """Return labels as the run encodes them, 0, 1, …; or real values for regression."""
    y = as_array(y, "y")
    if y.ndim == 2 and y.shape[1] == 1:
        y = y[:, 0]
    if y.ndim != 1:
        raise InputError(f"y in {where} must be one label per example, got shape {y.shape}.")
    if labels is None:
        if y.dtype.kind not in "fiub" or not np.isfinite(y).all():
            raise InputError(f"y in {where} must be finite numbers, as the run was trained with, got others.")
        return torch.from_numpy(y.astype(np.float32))
    if y.dtype.kind == "f":
        raise InputError(
            f"y in {where} must be classes, as the run was trained with ({listing(labels)}), got real numbers; "
            "convert them to integers or text."
        )
    found, codes = np.unique(y, return_inverse=True)
    return torch.from_numpy(_codes([str(name) for name in found.tolist()], labels, where)[codes])


def recoded(y: torch.Tensor, own: Sequence[str], labels: Sequence[str], where: str) -> torch.Tensor:
    """Convert codes of one list of labels into codes of another."""
    used = torch.unique(y).tolist()
    table = torch.zeros(len(own), dtype=torch.int64)
    table[used] = torch.from_numpy(_codes([own[code] for code in used], labels, where))
    return table[y]


def _codes(names: Sequence[str], labels: Sequence[str], where: str) -> np.ndarray:
    position = {name: at for at, name in enumerate(labels)}
    unseen = [name for name in names if name not in position]
    if unseen:
        raise InputError(
            f"the labels in {where} must be among those of the run, {listing(labels, 10)}, got {listing(unseen)}."
        )
    return np.array([position[name] for name in names], dtype=np.int64)
