"""Arrays that come after the training, from an .npz file: made to fit the run they are for."""

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


def read(path: str | PathLike[str], needed: Sequence[str]) -> dict[str, np.ndarray]:
    """The arrays x, y and client of an .npz file; it must have those that are needed."""
    arrays = npz.read(Path(path), ("x", "y", "client"))
    missing = [key for key in needed if key not in arrays]
    if missing:
        raise InputError(
            f"{str(path)!r} must have an array {missing[0]}; save it with np.savez(path, {missing[0]}=...)."
        )
    return arrays


def examples(
    path: str | PathLike[str], about: Mapping[str, Any], preparation: Preparation | None
) -> tuple[Dataset, np.ndarray | None]:
    """The raw examples of a file, as the run that it is for read its own; and the labels, where it has them."""
    if preparation is None or preparation.features.kind not in ("table", "text"):
        arrays = read(path, ("x",))
        return inputs(path, about, arrays), arrays.get("y")
    found = columns.inputs(path, preparation.features)
    x = torch.from_numpy(found.x)
    nothing = torch.zeros(len(x))
    return Dataset(Path(path).stem, x, nothing, found.client), found.y


def inputs(path: str | PathLike[str], examples: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> Dataset:
    """The examples without labels, if they have the shape that the run's had; `examples`: what the run says of its."""
    x = as_array(arrays["x"], "x")
    expected = tuple(examples["shape"])
    if x.ndim and len(x) and x.shape[1:] != expected:
        raise InputError(
            f"x in {str(path)!r} must have examples of shape {expected}, as the run was trained with, "
            f"got {x.shape[1:]}."
        )
    nothing = np.zeros(len(x) if x.ndim else 0, dtype=np.float32)
    return Dataset.from_arrays(x, nothing, arrays.get("client"), Path(path).stem, tokens=bool(examples["tokens"]))


def targets(y: np.ndarray, labels: Sequence[str] | None, where: str) -> torch.Tensor:
    """Labels as the run counts them, 0, 1, …; or real values, where the run has those."""
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
            "convert them to whole numbers or text."
        )
    found, codes = np.unique(y, return_inverse=True)
    return torch.from_numpy(_known([str(name) for name in found.tolist()], labels, where)[codes])


def recoded(y: torch.Tensor, own: Sequence[str], labels: Sequence[str], where: str) -> torch.Tensor:
    """Codes for one list of labels as codes for another."""
    used = torch.unique(y).tolist()
    table = torch.zeros(len(own), dtype=torch.int64)
    table[used] = torch.from_numpy(_known([own[code] for code in used], labels, where))
    return table[y]


def _known(names: Sequence[str], labels: Sequence[str], where: str) -> np.ndarray:
    position = {name: at for at, name in enumerate(labels)}
    foreign = [name for name in names if name not in position]
    if foreign:
        raise InputError(
            f"the labels in {where} must be among those of the run, {listing(labels, 10)}, got {listing(foreign)}."
        )
    return np.array([position[name] for name in names], dtype=np.int64)
