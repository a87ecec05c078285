"""Numpy's .npz files of named arrays."""

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bespokefl.core.errors import InputError, in_brief, said
from bespokefl.core.system import memory
from bespokefl.core.system.files import refuse_pipe
from bespokefl.data.readers import files
from bespokefl.data.readers.files import Arrays

MAX_RATIO = 100  # of the sizes unpacked and packed of a file larger than the limit
ARRAYS = ("x_train", "y_train", "x_test", "y_test")


def read(
    path: Path, keys: Sequence[str] | None = None, choose: Callable[[Sequence[str]], Sequence[str]] = list
) -> dict[str, np.ndarray]:
    """The arrays with these names that the file has, by default all; of them, those that `choose` selects."""
    refuse_pipe(path)
    try:
        file = np.load(path, allow_pickle=False)
        if isinstance(file, np.ndarray):
            raise InputError(f"{str(path)!r} must be an .npz file with named arrays, got a single array")
        with file:
            inside = file.zip.NameToInfo
            foreign = sorted(name for name in inside if not name.endswith(".npy"))
            if foreign or len(inside) < len(file.zip.infolist()):
                what = f"a member {foreign[0]!r} that is no array" if foreign else "two arrays of one name"
                raise InputError(f"{str(path)!r} has {in_brief(what)}; save it with np.savez")
            wanted = choose(file.files if keys is None else [key for key in keys if key in file])
            size = sum(inside[f"{key}.npy"].file_size for key in wanted)
            _check_size(path, size)
            return {key: _array(file, key, inside[f"{key}.npy"].file_size) for key in wanted}
    except InputError:
        raise
    except FileNotFoundError:
        raise InputError(f"no file {str(path)!r}; give a path to an .npz file") from None
    except Exception as error:  # a damaged file can raise errors of zipfile, zlib, lzma or numpy
        objects = "it must hold plain arrays of numbers or text, got Python objects or something else"
        what = objects if "allow_pickle" in str(error) else said(error)
        raise InputError(f"cannot read {str(path)!r} as an .npz file: {what}; save it with np.savez") from None


def _check_size(path: Path, size: int) -> None:
    """Reject a file that does not fit into memory, or that is small and unpacks to very much."""
    if size > memory.limit():
        raise InputError(f"{str(path)!r} has {size:,} bytes uncompressed, more than this machine has in memory")
    if size > files.limit() and size > MAX_RATIO * path.stat().st_size:
        raise InputError(f"{str(path)!r} unpacks to {size:,} bytes; {files.RAISE_LIMIT}")


def _array(file: Any, key: str, size: int) -> np.ndarray:
    """An array of a file; its header must fit its bytes, as numpy reserves the memory that the header asks for."""
    with file.zip.open(f"{key}.npy") as member:
        version = np.lib.format.read_magic(member)
        read_header = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
        if version in read_header:
            shape, _, dtype = read_header[version](member)
            if not dtype.hasobject and math.prod(shape) * dtype.itemsize + member.tell() != size:
                raise ValueError(f"the header of {key!r} does not fit its {size:,} bytes")
    found: np.ndarray = file[key]
    return found


def read_parts(path: Path) -> Arrays | None:
    """Images from arrays x_train, y_train, x_test and y_test, a common layout, with channels first or last."""
    found = read(path, ARRAYS)
    if not found:
        return None
    missing = [key for key in ARRAYS if key not in found]
    if missing:
        raise InputError(f"{str(path)!r} must have arrays {', '.join(ARRAYS)}, but has no {missing[0]}")
    x_train, y_train, x_test, y_test = (found[key] for key in ARRAYS)
    y_train, y_test = y_train.reshape(len(y_train), -1), y_test.reshape(len(y_test), -1)
    fits = x_train.ndim in (3, 4) and x_train.shape[1:] == x_test.shape[1:] and y_train.shape[1] == 1 == y_test.shape[1]
    if not fits or len(x_train) != len(y_train) or len(x_test) != len(y_test):
        raise InputError(
            f"{str(path)!r} must hold images of one size and a label for each, got shapes "
            + ", ".join(f"{key} {found[key].shape}" for key in ARRAYS)
        )
    x, y, test = files.join_parts((x_train, y_train[:, 0]), (x_test, y_test[:, 0]))
    if x.ndim == 3:
        x = x[:, np.newaxis]
    elif x.shape[1] not in (1, 3) and x.shape[3] in (1, 3):
        x = x.transpose(0, 3, 1, 2)
    return {"x": np.ascontiguousarray(x), "y": y, "test": test}
