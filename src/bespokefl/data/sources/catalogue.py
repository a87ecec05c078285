"""The data sets that are known by name: what they hold, where to find them, and how to verify them.

They are described in catalogue.toml; a new data set in a known format is one more table there.
"""

import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from bespokefl.core.errors import InputError, unknown
from bespokefl.data.readers import cifar, idx, leaf
from bespokefl.data.readers.files import Arrays, OnProgress
from bespokefl.data.sources import cache
from bespokefl.data.sources.hub import Repository
from bespokefl.data.sources.npm import Package


@dataclass(frozen=True)
class DatasetInfo:
    """A data set that is known by name."""

    name: str
    description: str
    shape: tuple[int, ...]  # of an example; () for text, whose length depends on the data
    label_names: tuple[str, ...]
    reader: Callable[[Path, OnProgress], Arrays | None] | None = None  # of its directories; None: built in
    counts: tuple[int, int] | None = None  # training and test examples, if all copies have the same number
    hash: str | None = None  # of the decoded arrays, if it is known
    columns: tuple[str, ...] = ("test",)  # what is known about each example, apart from its label
    npz: bool = False  # whether it may be an .npz file with x_train, y_train, x_test and y_test
    system_directory: Path | None = None  # of a package of the operating system
    package: Package | None = None
    hub: Repository | None = None
    how_to_get: str = ""
    expected_files: str = ""
    licence: str = ""
    citation: str = ""
    coarse_version_of: str = ""  # another data set, whose superclasses are the labels of this one
    built_in: bool = False

    @property
    def stored(self) -> str:
        """The name of its arrays in the cache."""
        return self.coarse_version_of or self.name

    @property
    def classes(self) -> int:
        """The number of classes."""
        return len(self.label_names)


def find(name: str) -> DatasetInfo:
    """The data set with this name."""
    if name not in CATALOGUE:
        raise unknown("data", name, CATALOGUE, see="bespoke data list")
    return CATALOGUE[name]


def verify(info: DatasetInfo, arrays: Arrays, origin: str) -> tuple[dict[str, np.ndarray], str]:
    """The arrays in the form that is stored, and their hash; other data than expected are rejected."""
    expected = find(info.stored) if info.coarse_version_of else info
    stored = {key: _narrow(array) if key in ("y", "superclass") else array for key, array in arrays.items()}

    def check(fits: bool, wanted: str, found: str) -> None:
        if not fits:
            raise InputError(f"the data in {origin} are not {expected.name}: expected {wanted}, got {found}")

    if expected.shape:
        shape, dtype = stored["x"].shape[1:], stored["x"].dtype
        fits = shape == expected.shape and dtype == np.uint8
        check(fits, f"images of shape {expected.shape}, uint8", f"{shape}, {dtype}")
    smallest, largest = int(stored["y"].min()), int(stored["y"].max())
    fits = smallest >= 0 and largest < expected.classes
    check(fits, f"labels from 0 to {expected.classes - 1}", str(largest))
    found = int((~stored["test"]).sum()), int(stored["test"].sum())
    if expected.counts is not None:
        wanted = "{} training and {} test examples".format(*expected.counts)
        check(found == expected.counts, wanted, "{} and {}".format(*found))
    contents = cache.content_hash(stored)
    if expected.hash is not None:
        check(contents == expected.hash, f"content with sha256 {expected.hash[:16]}…", f"{contents[:16]}…")
    return stored, contents


def _narrow(labels: np.ndarray) -> np.ndarray:
    """Labels in one byte, if they fit."""
    fits = labels.dtype.kind in "iub" and int(labels.min()) >= 0 and int(labels.max()) <= 255
    return labels.astype(np.uint8) if fits else labels.astype(np.int64)


def _read_emnist(directory: Path, report: OnProgress, *, prefix: str, first_label: int) -> Arrays | None:
    """EMNIST stores its images transposed; the labels of its letters start at 1."""
    found = idx.read_directory(directory, report, prefix=prefix)
    if found is None:
        return None
    y = found["y"].astype(np.int64) - first_label
    return {**found, "x": np.ascontiguousarray(found["x"].transpose(0, 1, 3, 2)), "y": y}


READERS: dict[str, Callable[..., Arrays | None]] = {
    "idx": idx.read_directory,
    "emnist": _read_emnist,
    "cifar10": cifar.read_cifar10,
    "cifar100": cifar.read_cifar100,
    "femnist": leaf.read_femnist,
    "sent140": leaf.read_sent140,
}


def _to_info(name: str, tables: Mapping[str, Any]) -> DatasetInfo:
    """The data set of one table of catalogue.toml."""
    own = tables[name]
    values = {"reader": "", **tables.get(own.get("based_on"), {}), **own}
    values.pop("based_on", None)
    labels = values["label_names"]
    values["label_names"] = labels.split() if isinstance(labels, str) else labels
    values = {key: tuple(value) if isinstance(value, list) else value for key, value in values.items()}
    reader = READERS.get(values["reader"])
    if "first_label" in values:
        reader = partial(_read_emnist, prefix=f"{name}-", first_label=values.pop("first_label"))
    converted = {
        "reader": reader,
        "system_directory": Path(values["system_directory"]) if "system_directory" in values else None,
        "package": Package(**values["package"]) if "package" in values else None,
        "hub": Repository(**values["hub"]) if "hub" in values else None,
        "expected_files": values.get("expected_files", "").format(name=name),
    }
    return DatasetInfo(name=name, **{**values, **converted})


_TABLES = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
CATALOGUE: dict[str, DatasetInfo] = {name: _to_info(name, _TABLES) for name in _TABLES}
