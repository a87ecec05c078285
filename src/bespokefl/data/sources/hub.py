"""Downloads data sets from the Hugging Face hub with the package `datasets` (extra `hub`)."""

import importlib
import importlib.util
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from bespokefl.core.errors import InputError, said
from bespokefl.data.readers import files
from bespokefl.data.readers.files import Arrays, OnProgress


@dataclass(frozen=True)
class Repository:
    """A data set of images on the hub."""

    name: str
    image: str  # the column with the images
    labels: Mapping[str, str]  # our column names and the hub's
    batches: Sequence[str] = ()  # first labels of the official batches, if the hub has them in another order

    def __str__(self) -> str:
        return f"the hub's {self.name}"


def installed() -> bool:
    """Whether the package `datasets` is installed."""
    return importlib.util.find_spec("datasets") is not None


def fetch(repository: Repository, report: OnProgress = files.no_report) -> Arrays:
    """The training and test examples together."""
    try:
        datasets = importlib.import_module("datasets")
    except ImportError:
        raise InputError("the package datasets is not installed") from None
    report(f"fetching {repository.name} from the hub", 0, 0)
    try:
        found = datasets.load_dataset(repository.name)
        parts = [_read_part(found[split], repository) for split in ("train", "test")]
    except Exception as error:  # network, cache or format errors
        raise InputError(f"{repository} could not be read ({said(error)})") from None
    parts[0] = _in_official_order(parts[0], repository)
    x, *labels, test = files.join_parts(*parts)
    return {"x": x, **dict(zip(repository.labels, labels, strict=True)), "test": test}


def _read_part(split: Any, repository: Repository) -> tuple[np.ndarray, ...]:
    images = np.stack([np.asarray(image, dtype=np.uint8) for image in split[repository.image]])
    x = images[:, np.newaxis] if images.ndim == 3 else images.transpose(0, 3, 1, 2)
    return x, *(np.asarray(split[column], dtype=np.int64) for column in repository.labels.values())


def _in_official_order(part: tuple[np.ndarray, ...], repository: Repository) -> tuple[np.ndarray, ...]:
    """Sort batches by their official numbers; they are recognized by their first labels."""
    num = len(repository.batches)
    if not num or len(part[1]) % num:
        return part
    blocks = np.split(np.arange(len(part[1])), num)
    starts = ["".join(map(str, part[1][block[:10]].tolist())) for block in blocks]
    if sorted(starts) != sorted(repository.batches):
        return part
    order = np.concatenate([blocks[starts.index(start)] for start in repository.batches])
    return tuple(array[order] for array in part)
