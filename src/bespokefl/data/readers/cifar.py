"""CIFAR-10 and CIFAR-100 in three formats.

- Python pickles (`cifar-10-batches-py`, `cifar-100-python`), which are read without being executed;
- the binary version (`data_batch_1.bin`, …): for each image its labels, then its pixels, one byte each;
- PNG sheets: one PNG per batch with a row of pixels for each image, and the labels as lists in JSON.
"""

import io
import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np

from bespokefl.core.errors import InputError
from bespokefl.data.readers import files, safe_pickle
from bespokefl.data.readers.files import Arrays, DamagedError, OnProgress

SHAPE = (3, 32, 32)
SIZE = 3 * 32 * 32
NAMES_10 = (*(f"data_batch_{number}" for number in range(1, 6)), "test_batch")
NAMES_100 = ("train", "test")
PNG_MODES = ("L", "LA", "RGB", "RGBA")  # 8 bits per channel


def read_cifar10(directory: Path, report: OnProgress = files.no_report) -> Arrays | None:
    """CIFAR-10 in any of the formats."""
    return _read_formats(directory, NAMES_10, ("labels",), report) or _read_sheets(directory, report)


def read_cifar100(directory: Path, report: OnProgress = files.no_report) -> Arrays | None:
    """CIFAR-100: y is the fine label, superclass the coarse one."""
    return _read_formats(directory, NAMES_100, ("fine_labels", "coarse_labels"), report)


def read_directory(directory: Path, report: OnProgress = files.no_report) -> Arrays | None:
    """Either of the two."""
    return read_cifar10(directory, report) or read_cifar100(directory, report)


def read(path: Path, keys: tuple[str, ...]) -> tuple[np.ndarray, ...]:
    """Images and labels of one pickle."""
    found = safe_pickle.read(path)
    pixels = found.get("data")
    with files.reading(path, "a CIFAR batch"):
        if not isinstance(pixels, np.ndarray) or pixels.dtype != np.uint8 or pixels.shape[1:] != (SIZE,):
            raise DamagedError("it has no array data of images with 3072 bytes each")
        return pixels.reshape(-1, *SHAPE), *(_check_labels(key, found.get(key), len(pixels)) for key in keys)


def read_binary(path: Path, labels: int) -> tuple[np.ndarray, ...]:
    """Images and labels of one binary file; each image has `labels` labels, the finest last."""
    with files.content(path, "a CIFAR binary file") as content:
        if not content or len(content) % (labels + SIZE):
            raise DamagedError(f"{len(content):,} bytes are not a multiple of {labels + SIZE}")
    rows = np.frombuffer(content, np.uint8).reshape(-1, labels + SIZE)
    fine_first = rows[:, :labels].T[::-1].astype(np.int64)
    return rows[:, labels:].reshape(-1, *SHAPE), *fine_first


def read_sheet(path: Path) -> np.ndarray:
    """Images of one PNG sheet."""
    sheet = read_png(path)
    with files.reading(path, "a sheet of CIFAR images"):
        if sheet.shape[1:] != (32 * 32, 3):
            raise DamagedError(f"it has shape {sheet.shape}, not rows of 1024 pixels")
    return sheet.reshape(-1, 32, 32, 3).transpose(0, 3, 1, 2)


def read_png(path: Path) -> np.ndarray:
    """A PNG image as (height, width, channels), uint8."""
    from PIL import Image, UnidentifiedImageError  # not at the top: few data sets need it, and importing it takes time

    with (
        files.content(path, "a PNG image", SyntaxError, Image.DecompressionBombError, Warning) as content,
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("error", Image.DecompressionBombWarning)
        try:
            with Image.open(io.BytesIO(content), formats=["PNG"]) as image:
                image.verify()  # checks checksums; after it, the image must be opened again
        except UnidentifiedImageError:
            raise DamagedError("it is damaged or has another format") from None
        with Image.open(io.BytesIO(content), formats=["PNG"]) as image:
            if image.mode not in PNG_MODES:
                raise DamagedError(f"expected grey or RGB with 8 bits per channel, got {image.mode}")
            pixels = np.array(image)
    return pixels.reshape(*pixels.shape[:2], -1)


def _check_labels(key: str, values: Any, count: int) -> np.ndarray:
    if not isinstance(values, list) or len(values) != count or not all(type(one) is int for one in values):
        raise DamagedError(f"{key} must be a list of {count} integers")
    if not all(0 <= one <= 255 for one in values):
        raise DamagedError(f"{key} must be numbers from 0 to 255")
    return np.array(values, dtype=np.int64)


def _locate(directory: Path, names: tuple[str, ...], ending: str) -> list[Path]:
    """The files of all batches; empty if the first does not exist."""
    first = next(iter(files.find(directory, names[0] + ending)), None)
    if first is None:
        return []
    paths = [first.with_name(first.name.replace(names[0], name, 1)) for name in names]
    for path in paths:
        if not path.is_file():
            raise InputError(f"{str(first.parent)!r} has {first.name}, but no {path.name}; all batches are needed")
    return paths


def _read_formats(directory: Path, names: tuple[str, ...], keys: tuple[str, ...], report: OnProgress) -> Arrays | None:
    if paths := _locate(directory, names, ""):
        return _join_batches([read(path, keys) for path in files.reported(paths, report)])
    if paths := _locate(directory, names, r"\.bin"):
        return _join_batches([read_binary(path, len(keys)) for path in files.reported(paths, report)])
    return None


def _read_sheets(directory: Path, report: OnProgress) -> Arrays | None:
    paths = _locate(directory, NAMES_10, r"\.png")
    if not paths:
        return None
    sheets = [read_sheet(path) for path in files.reported(paths, report)]
    train, test = (_read_labels(paths[0].parent, part) for part in ("train", "test"))
    ends = np.cumsum([len(sheet) for sheet in sheets])
    if len(train) != ends[-2] or len(test) != len(sheets[-1]):
        raise InputError(
            f"the sheets in {str(paths[0].parent)!r} hold {ends[-2]} and {len(sheets[-1])} images, "
            f"but there are {len(train)} and {len(test)} labels"
        )
    labels = np.split(np.concatenate([train, test]), ends[:-1])
    return _join_batches(list(zip(sheets, labels, strict=True)))


def _read_labels(directory: Path, part: str) -> np.ndarray:
    path = next(iter(files.find(directory, part + r"_la(bel|ble)s\.json")), None)  # both spellings exist
    if path is None:
        raise InputError(f"{str(directory)!r} has sheets of images, but no {part}_labels.json")
    with files.content(path, "a JSON list of labels") as content:
        values = json.loads(content)
        return _check_labels("it", values, len(values) if isinstance(values, list) else 0)


def _join_batches(batches: list[tuple[np.ndarray, ...]]) -> Arrays:
    """All batches; the last one is the test set."""
    train = tuple(np.concatenate(parts) for parts in zip(*batches[:-1], strict=True))
    x, y, *more, test = files.join_parts(train, batches[-1])
    return {"x": x, "y": y, **({"superclass": more[0]} if more else {}), "test": test}
