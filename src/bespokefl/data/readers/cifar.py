"""CIFAR-10 and CIFAR-100 in the forms they are handed round in.

- Python's pickles (`cifar-10-batches-py`, `cifar-100-python`), which are read without being executed;
- the binary version (`data_batch_1.bin`, …): for each picture its labels, then its pixels, a byte each;
- sheets: a PNG for each batch, a row of pixels for each picture, and the labels as lists in JSON.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from bespokefl.core.errors import InputError
from bespokefl.data.readers import files, pickled, png
from bespokefl.data.readers.files import Arrays, Report

SHAPE = (3, 32, 32)
SIZE = 3 * 32 * 32
BATCHES = tuple(f"data_batch_{number}" for number in range(1, 6))
NAMES_10 = (*BATCHES, "test_batch")
NAMES_100 = ("train", "test")
KIND_BINARY = "a CIFAR binary file"
KIND_LABELS = "a JSON list of labels"


def ten(folder: Path, report: Report = files.silent) -> Arrays | None:
    """CIFAR-10 in any of the forms."""
    return (
        _pool(folder, NAMES_10, ("labels",), report)
        or _pool_binary(folder, NAMES_10, 1, report)
        or _pool_sheets(folder, report)
    )


def hundred(folder: Path, report: Report = files.silent) -> Arrays | None:
    """CIFAR-100: y is the fine label, superclass the coarse one."""
    return _pool(folder, NAMES_100, ("fine_labels", "coarse_labels"), report) or _pool_binary(
        folder, NAMES_100, 2, report
    )


def pool(folder: Path, report: Report = files.silent) -> Arrays | None:
    """Either of the two."""
    return ten(folder, report) or hundred(folder, report)


def read(path: Path, keys: tuple[str, ...]) -> tuple[np.ndarray, ...]:
    """Pictures and labels of one pickle."""
    found = pickled.read(path)
    pixels = found.get("data")
    if not isinstance(pixels, np.ndarray) or pixels.dtype != np.uint8 or pixels.ndim != 2 or pixels.shape[1] != SIZE:
        raise files.damaged(path, "a CIFAR batch", "it has no array data of pictures with 3072 bytes each")
    return pixels.reshape(-1, *SHAPE), *(_labels(path, key, found.get(key), len(pixels)) for key in keys)


def read_binary(path: Path, labels: int) -> tuple[np.ndarray, ...]:
    """Pictures and labels of one binary file; `labels`: how many a picture has, the finest last."""
    content = files.content(path, KIND_BINARY)
    if not content or len(content) % (labels + SIZE):
        raise files.damaged(path, KIND_BINARY, f"{len(content):,} bytes are no multiple of {labels + SIZE}")
    rows = np.frombuffer(content, np.uint8).reshape(-1, labels + SIZE)
    fine_first = rows[:, :labels].T[::-1].astype(np.int64)
    return rows[:, labels:].reshape(-1, *SHAPE), *fine_first


def read_sheet(path: Path) -> np.ndarray:
    """Pictures of one sheet."""
    sheet = png.read(path)
    if sheet.shape[1:] != (32 * 32, 3):
        raise files.damaged(path, "a sheet of CIFAR pictures", f"it has shape {sheet.shape}, not rows of 1024 pixels")
    return sheet.reshape(-1, 32, 32, 3).transpose(0, 3, 1, 2)


def _labels(path: Path, key: str, values: Any, count: int) -> np.ndarray:
    if not isinstance(values, list) or len(values) != count or not all(type(one) is int for one in values):
        raise files.damaged(path, "a CIFAR batch", f"{key} must be a list of {count} whole numbers")
    if not all(0 <= one <= 255 for one in values):
        raise files.damaged(path, "a CIFAR batch", f"{key} must be numbers from 0 to 255")
    return np.array(values, dtype=np.int64)


def _located(folder: Path, names: tuple[str, ...], ending: str) -> list[Path] | None:
    """The files, if the first is there; all of them must be."""
    first = next(iter(files.find(folder, names[0] + ending)), None)
    if first is None:
        return None
    paths = [first.with_name(first.name.replace(names[0], name, 1)) for name in names]
    for path in paths:
        if not path.is_file():
            raise InputError(f"{str(first.parent)!r} has {first.name}, but no {path.name}; all batches are needed")
    return paths


def _pool(folder: Path, names: tuple[str, ...], keys: tuple[str, ...], report: Report) -> Arrays | None:
    paths = _located(folder, names, "")
    if paths is None:
        return None
    return _together([read(path, keys) for path in _reported(paths, report)])


def _pool_binary(folder: Path, names: tuple[str, ...], labels: int, report: Report) -> Arrays | None:
    paths = _located(folder, names, r"\.bin")
    if paths is None:
        return None
    return _together([read_binary(path, labels) for path in _reported(paths, report)])


def _pool_sheets(folder: Path, report: Report) -> Arrays | None:
    paths = _located(folder, NAMES_10, r"\.png")
    if paths is None:
        return None
    sheets = [read_sheet(path) for path in _reported(paths, report)]
    train, test = (_listed(paths[0].parent, part) for part in ("train", "test"))
    ends = np.cumsum([len(sheet) for sheet in sheets])
    if len(train) != ends[-2] or len(test) != len(sheets[-1]):
        raise InputError(
            f"the sheets in {str(paths[0].parent)!r} hold {ends[-2]} and {len(sheets[-1])} pictures, "
            f"but there are {len(train)} and {len(test)} labels"
        )
    labels = np.split(np.concatenate([train, test]), ends[:-1])
    return _together(list(zip(sheets, labels, strict=True)))


def _listed(folder: Path, part: str) -> np.ndarray:
    path = next(iter(files.find(folder, part + r"_la(bel|ble)s\.json")), None)  # spelt either way
    if path is None:
        raise InputError(f"{str(folder)!r} has sheets of pictures, but no {part}_labels.json")
    try:
        values = json.loads(files.content(path, KIND_LABELS))
    except (ValueError, RecursionError) as error:
        raise files.damaged(path, KIND_LABELS, str(error)) from None
    return _labels(path, "it", values, len(values) if isinstance(values, list) else 0)


def _reported(paths: list[Path], report: Report) -> Iterator[Path]:
    for done, path in enumerate(paths):
        report("reading", done, len(paths))
        yield path


def _together(batches: list[tuple[np.ndarray, ...]]) -> Arrays:
    """The last batch is for test."""
    train = tuple(np.concatenate(parts) for parts in zip(*batches[:-1], strict=True))
    x, y, *more, test = files.joined(train, batches[-1])
    return {"x": x, "y": y, **({"superclass": more[0]} if more else {}), "test": test}
