"""IDX files, the format of MNIST and its kin, gzipped or not.

Two zero bytes, the type of the numbers, the number of dimensions; each dimension as a big-endian 32-bit number; then
the numbers. Pictures and labels are in a file each, for training and test: `train-images-idx3-ubyte.gz`, …
"""

import math
import re
from pathlib import Path

import numpy as np

from bespokefl.core.errors import InputError, listing
from bespokefl.data.readers import files
from bespokefl.data.readers.files import Arrays, Report

KIND = "an IDX file"
TYPES = {0x08: ">u1", 0x09: ">i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}
NAME = r"(?P<prefix>.*?)(?P<part>train|t10k|test)-(?P<what>images|labels)[-.]idx\d-ubyte(\.gz)?"


def read(path: Path) -> np.ndarray:
    with files.opened(path, KIND) as file:
        start = file.read(4)
        if len(start) < 4 or start[:2] != b"\0\0" or start[2] not in TYPES or not 1 <= start[3] <= 4:
            raise files.damaged(path, KIND, f"it begins with {start!r}")
        dimensions, kind = start[3], np.dtype(TYPES[start[2]])
        header = file.read(4 * dimensions)
        if len(header) < 4 * dimensions:
            raise files.damaged(path, KIND, "it ends within its header")
        shape = tuple(np.frombuffer(header, ">u4").tolist())
        size = math.prod(shape) * kind.itemsize
        if size > files.LIMIT:
            raise files.damaged(path, KIND, f"it claims to hold {size:,} bytes")
        numbers = file.read(size + 1)  # one more, to see that it ends there; for gzip this checks the sum, too
    if len(numbers) != size:
        more = "more" if len(numbers) > size else f"only {len(numbers):,}"
        raise files.damaged(path, KIND, f"it should hold {size:,} bytes for shape {shape}, but has {more}")
    array = np.frombuffer(numbers, kind).reshape(shape)
    return array.astype(kind.newbyteorder("="), copy=False)


def pool(folder: Path, report: Report = files.silent, *, prefix: str | None = None) -> Arrays | None:
    """Pictures as (examples, 1, height, width). `prefix`: what the files' names begin with, if there are several sets
    in one folder, as EMNIST's."""
    found: dict[str, dict[tuple[str, str], Path]] = {}
    for path in files.find(folder, NAME):
        match = re.fullmatch(NAME, path.name)
        assert match is not None
        part = "train" if match["part"] == "train" else "test"
        found.setdefault(match["prefix"], {}).setdefault((part, match["what"]), path)
    if prefix is not None:
        found = {key: paths for key, paths in found.items() if key == prefix}
    if not found:
        return None
    if len(found) > 1:
        sets = listing([repr(key) for key in found], 10)
        raise InputError(
            f"{str(folder)!r} holds IDX files of several sets, whose names begin with {sets}; "
            "put those of one set into a folder of their own, or fetch them by name"
        )
    paths = next(iter(found.values()))
    steps = [(part, what) for part in ("train", "test") for what in ("images", "labels")]
    arrays: list[np.ndarray] = []
    for done, step in enumerate(steps):
        report("reading", done, len(steps))
        if step not in paths:
            raise InputError(f"{str(folder)!r} has IDX files, but not those with the {step[0]} {step[1]}; add them")
        arrays.append(read(paths[step]))
    for x, y, part in ((arrays[0], arrays[1], "train"), (arrays[2], arrays[3], "test")):
        if x.ndim != 3 or y.shape != x.shape[:1] or x.shape[1:] != arrays[0].shape[1:] or y.dtype.kind == "f":
            raise InputError(
                f"the {part} files in {str(folder)!r} must hold pictures of one size and a label for each, "
                f"got shapes {x.shape} and {y.shape}"
            )
    x, y, test = files.joined((arrays[0], arrays[1]), (arrays[2], arrays[3]))
    return {"x": x[:, np.newaxis], "y": y, "test": test}
