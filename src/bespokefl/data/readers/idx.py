"""IDX files, the format of MNIST and similar data sets, gzipped or not.

Two zero bytes, the data type, the number of dimensions; each dimension as a big-endian 32-bit number; then the data.
Images and labels are in one file each, for training and test: `train-images-idx3-ubyte.gz`, …
"""

import math
import re
from pathlib import Path

import numpy as np

from bespokefl.core.errors import InputError, listing
from bespokefl.data.readers import files
from bespokefl.data.readers.files import Arrays, DamagedError, OnProgress

KIND = "an IDX file"
DTYPES = {0x08: ">u1", 0x09: ">i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}
NAME = r"(?P<prefix>.*?)(?P<part>train|t10k|test)-(?P<what>images|labels)[-.]idx\d-ubyte(\.gz)?"


def read(path: Path) -> np.ndarray:
    """The array in one file."""
    with files.opened(path, KIND) as file:
        start = file.read(4)
        if len(start) < 4 or start[:2] != b"\0\0" or start[2] not in DTYPES or not 1 <= start[3] <= 4:
            raise DamagedError(f"it starts with {start!r}")
        dimensions, dtype = start[3], np.dtype(DTYPES[start[2]])
        header = file.read(4 * dimensions)
        if len(header) < 4 * dimensions:
            raise DamagedError("it ends within its header")
        shape = tuple(np.frombuffer(header, ">u4").tolist())
        size = math.prod(shape) * dtype.itemsize
        if size > files.limit():
            raise DamagedError(f"its header declares {size:,} bytes")
        content = file.read(size + 1)  # one more byte, to check the end; with gzip this verifies the checksum, too
        if len(content) != size:
            found = "more" if len(content) > size else f"only {len(content):,}"
            raise DamagedError(f"it should hold {size:,} bytes for shape {shape}, but has {found}")
    return np.frombuffer(content, dtype).reshape(shape).astype(dtype.newbyteorder("="), copy=False)


def read_directory(
    directory: Path, report: OnProgress = files.no_report, *, prefix: str | None = None
) -> Arrays | None:
    """Images as (examples, 1, height, width).

    `prefix` selects one of several data sets in the same directory by the start of the file names, as in EMNIST.
    """
    found: dict[str, dict[tuple[str, str], Path]] = {}
    for path in files.find(directory, NAME):
        match = re.fullmatch(NAME, path.name)
        assert match is not None
        part = "train" if match["part"] == "train" else "test"
        found.setdefault(match["prefix"], {}).setdefault((part, match["what"]), path)
    if prefix is not None:
        found = {key: paths for key, paths in found.items() if key == prefix}
    if not found:
        return None
    if len(found) > 1:
        prefixes = listing([repr(key) for key in found], 10)
        raise InputError(
            f"{str(directory)!r} holds IDX files of several data sets, whose names start with {prefixes}; "
            "put those of one data set into a directory of their own, or fetch them by name"
        )
    paths = next(iter(found.values()))
    arrays: list[np.ndarray] = []
    for step in files.reported([(part, what) for part in ("train", "test") for what in ("images", "labels")], report):
        if step not in paths:
            raise InputError(f"{str(directory)!r} has IDX files, but not the {step[0]} {step[1]}; add them")
        arrays.append(read(paths[step]))
    for x, y, part in ((arrays[0], arrays[1], "train"), (arrays[2], arrays[3], "test")):
        if x.ndim != 3 or y.shape != x.shape[:1] or x.shape[1:] != arrays[0].shape[1:] or y.dtype.kind == "f":
            raise InputError(
                f"the {part} files in {str(directory)!r} must hold images of one size and a label for each, "
                f"got shapes {x.shape} and {y.shape}"
            )
    x, y, test = files.join_parts((arrays[0], arrays[1]), (arrays[2], arrays[3]))
    return {"x": x[:, np.newaxis], "y": y, "test": test}
