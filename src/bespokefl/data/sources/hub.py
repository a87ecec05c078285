"""Data from the Hugging Face hub, through the package `datasets` where it is installed: the extra `hub`."""

import importlib
import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from bespokefl.core.errors import InputError, said
from bespokefl.data.readers import files
from bespokefl.data.readers.files import Arrays, Report


@dataclass(frozen=True)
class Repository:
    name: str
    picture: str  # the column with the pictures
    labels: Mapping[str, str]  # our names for columns, theirs
    batches: tuple[str, ...] = field(default=())  # first labels of the official batches, if the hub shuffles these

    def __str__(self) -> str:
        return f"the hub's {self.name}"


def installed() -> bool:
    return importlib.util.find_spec("datasets") is not None


def fetch(repository: Repository, report: Report = files.silent) -> Arrays:
    """The training and test split together."""
    try:
        datasets = importlib.import_module("datasets")
    except ImportError:
        raise InputError("the package datasets is not installed") from None
    report(f"fetching {repository.name} from the hub", 0, 0)
    try:
        found = datasets.load_dataset(repository.name)
        parts = [_part(found[split], repository) for split in ("train", "test")]
    except Exception as error:  # of the network, of its cache, of its formats
        raise InputError(f"{repository} could not be read ({said(error)})") from None
    parts[0] = _in_official_order(parts[0], repository)
    x, *labels, test = files.joined(*parts)
    return {"x": x, **dict(zip(repository.labels, labels, strict=True)), "test": test}


def _part(split: Any, repository: Repository) -> tuple[np.ndarray, ...]:
    pictures = np.stack([np.asarray(picture, dtype=np.uint8) for picture in split[repository.picture]])
    x = pictures[:, np.newaxis] if pictures.ndim == 3 else pictures.transpose(0, 3, 1, 2)
    return x, *(np.asarray(split[theirs], dtype=np.int64) for theirs in repository.labels.values())


def _in_official_order(part: tuple[np.ndarray, ...], repository: Repository) -> tuple[np.ndarray, ...]:
    """Batches in the order of their numbers, known by their first labels."""
    if not repository.batches:
        return part
    blocks = (
        np.split(np.arange(len(part[1])), len(repository.batches))
        if len(part[1]) % len(repository.batches) == 0
        else []
    )
    starts = ["".join(map(str, part[1][block[:10]].tolist())) for block in blocks]
    if sorted(starts) != sorted(repository.batches):
        return part
    order = np.concatenate([blocks[starts.index(start)] for start in repository.batches])
    return tuple(array[order] for array in part)
