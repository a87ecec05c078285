"""Decoded data on disk: each array a .npy file that is mapped into memory, so that it is decoded only once.

FOLDER/decoded/NAME.json        what is there: shapes, the hash of the contents, fingerprints
FOLDER/decoded/NAME-HASH/*.npy  the arrays; never changed once they are there

The arrays are written into a folder with a name of its own, which is synced and then renamed; only after that the JSON
file is, which makes them valid. So any number of processes may use a set at once, and none sees half of it.
"""

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from bespokefl.core.files import sync
from bespokefl.data.readers import files
from bespokefl.data.readers.files import Arrays, Report

VERSION = 1  # of the layout


@dataclass(frozen=True)
class Entry:
    """A decoded set."""

    name: str
    hash: str  # of the contents
    origin: str  # where it was decoded from
    fingerprints: Mapping[str, str]  # of the data sets made of it, by name
    arrays: Mapping[str, tuple[str, tuple[int, ...]]]  # dtype and shape
    version: int = VERSION


def folder() -> Path:
    """$BESPOKE_DATA, or the user's cache folder."""
    chosen = os.environ.get("BESPOKE_DATA")
    if chosen:
        return Path(chosen).expanduser()
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base and Path(base).is_absolute() else Path.home() / ".cache") / "bespoke" / "data"


def place(entry: Entry) -> Path:
    """Where the arrays are."""
    return folder() / "decoded" / f"{entry.name}-{entry.hash[:16]}"


def content_hash(arrays: Arrays) -> str:
    """SHA-256 of: for each array, by name, a line with its name, type and shape, then its little-endian bytes; text as
    UTF-8 with a zero byte between."""
    sha = hashlib.sha256()
    for key in sorted(arrays):
        array = np.ascontiguousarray(arrays[key])
        sha.update(f"{key} {'text' if array.dtype.kind == 'U' else array.dtype.name} {array.shape}\n".encode())
        if array.dtype.kind == "U":
            sha.update("\0".join(array.ravel().tolist()).encode())
        else:
            sha.update(
                np.ascontiguousarray(array.astype(array.dtype.newbyteorder("<"), copy=False)).view(np.uint8).data
            )
    return sha.hexdigest()


def find(name: str) -> Entry | None:
    """The decoded set, or None if it is not there, or from a version that kept it otherwise."""
    try:
        found = json.loads((folder() / "decoded" / f"{name}.json").read_text(encoding="utf-8"))
        if found["version"] != VERSION or found["name"] != name:
            return None
        arrays = {str(key): (str(dtype), tuple(map(int, shape))) for key, (dtype, shape) in found["arrays"].items()}
        prints = {str(key): str(value) for key, value in found["fingerprints"].items()}
        return Entry(name, str(found["hash"]), str(found["origin"]), prints, arrays)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def read(entry: Entry) -> dict[str, np.ndarray] | None:
    """The arrays, mapped into memory (a change stays with the process that makes it); None if some are not whole."""
    try:
        found = {key: np.load(place(entry) / f"{key}.npy", mmap_mode="c", allow_pickle=False) for key in entry.arrays}
    except (OSError, ValueError, EOFError):
        return None
    if any((array.dtype.str, array.shape) != entry.arrays[key] for key, array in found.items()):
        return None
    return found


def write(
    name: str,
    arrays: Arrays,
    contents: str,
    origin: str,
    fingerprints: Mapping[str, str],
    report: Report = files.silent,
) -> Entry:
    """Keep the arrays; `contents`: their hash. Raises OSError where nothing can be written."""
    entry = Entry(
        name, contents, origin, fingerprints, {key: (array.dtype.str, array.shape) for key, array in arrays.items()}
    )
    with _alone(name):
        before = find(name)
        if read(entry) is None:
            _write_arrays(entry, arrays, report)
        _write_entry(entry)
        if before is not None and before.hash != entry.hash:
            shutil.rmtree(place(before), ignore_errors=True)
    return entry


@contextmanager
def _alone(name: str) -> Iterator[None]:
    """One writer of a set at a time; what a killed one has left is removed. Readers need not wait."""
    import fcntl  # not at the top: Windows has none, and can read data all the same

    parent = folder() / "decoded"
    parent.mkdir(parents=True, exist_ok=True)
    with (parent / f".{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for left in parent.glob(f".{name}-*"):
            if left.is_dir():
                shutil.rmtree(left, ignore_errors=True)
            else:
                left.unlink(missing_ok=True)
        yield


def _write_arrays(entry: Entry, arrays: Arrays, report: Report) -> None:
    target = place(entry)
    aside = Path(tempfile.mkdtemp(prefix=f".{entry.name}-", dir=target.parent))
    try:
        for done, (key, array) in enumerate(arrays.items()):
            report("writing", done, len(arrays))
            with (aside / f"{key}.npy").open("wb") as file:
                np.save(file, np.ascontiguousarray(array), allow_pickle=False)
                file.flush()
                os.fsync(file.fileno())
        aside.chmod(0o755)
        sync(aside)
        shutil.rmtree(target, ignore_errors=True)  # damaged, or there would be nothing to write
        aside.rename(target)
        sync(target.parent)
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def remove(entry: Entry) -> None:
    """Forget a set."""
    with _alone(entry.name):
        (folder() / "decoded" / f"{entry.name}.json").unlink(missing_ok=True)
        shutil.rmtree(place(entry), ignore_errors=True)


def _write_entry(entry: Entry) -> None:
    target = folder() / "decoded" / f"{entry.name}.json"
    handle, aside = tempfile.mkstemp(prefix=f".{entry.name}-", suffix=".json", dir=target.parent)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            json.dump(asdict(entry), file, indent=1, sort_keys=True)
            file.flush()
            os.fsync(file.fileno())
        Path(aside).chmod(0o644)
        Path(aside).replace(target)
    finally:
        Path(aside).unlink(missing_ok=True)
    sync(target.parent)
