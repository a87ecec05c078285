"""Decoded data sets on disk: each array is a memory-mapped .npy file, so that a data set is decoded only once.

DIRECTORY/decoded/NAME.json        metadata: shapes, hash of the content, fingerprints
DIRECTORY/decoded/NAME-HASH/*.npy  the arrays; never changed once they exist

The arrays are written into a temporary directory, which is synced and renamed; the JSON file, which makes them valid,
is written after that. So any number of processes may use a data set at once, and none sees half of it.
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

from bespokefl.core.system.files import sync, write_text
from bespokefl.data.readers import files
from bespokefl.data.readers.files import Arrays, OnProgress

VERSION = 1  # of the layout


@dataclass(frozen=True)
class Entry:
    """The metadata of a decoded data set."""

    name: str
    hash: str  # of the content
    origin: str  # where it was decoded from
    fingerprints: Mapping[str, str]  # of the `Dataset`s made of it, by name
    arrays: Mapping[str, tuple[str, tuple[int, ...]]]  # dtype and shape
    version: int = VERSION


def directory() -> Path:
    """The data directory: $BESPOKE_DATA, or one in the user's cache."""
    chosen = os.environ.get("BESPOKE_DATA")
    if chosen:
        return Path(chosen).expanduser()
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base and Path(base).is_absolute() else Path.home() / ".cache") / "bespoke" / "data"


def path_of(entry: Entry) -> Path:
    """The directory of the arrays."""
    return directory() / "decoded" / f"{entry.name}-{entry.hash[:16]}"


def _metadata_file(name: str) -> Path:
    return directory() / "decoded" / f"{name}.json"


def content_hash(arrays: Arrays) -> str:
    """SHA-256 of, for each array by name, a line with name, type and shape and then its little-endian bytes.

    Text is hashed as UTF-8 with zero bytes as separators.
    """
    sha = hashlib.sha256()
    for key in sorted(arrays):
        array = np.ascontiguousarray(arrays[key])
        sha.update(f"{key} {'text' if array.dtype.kind == 'U' else array.dtype.name} {array.shape}\n".encode())
        if array.dtype.kind == "U":
            sha.update("\0".join(array.ravel().tolist()).encode())
        else:
            little_endian = np.ascontiguousarray(array.astype(array.dtype.newbyteorder("<"), copy=False))
            sha.update(little_endian.view(np.uint8).data)
    return sha.hexdigest()


def find(name: str) -> Entry | None:
    """The metadata of a decoded data set, or None if it does not exist or has another layout version."""
    try:
        found = json.loads(_metadata_file(name).read_text(encoding="utf-8"))
        if found["version"] != VERSION or found["name"] != name:
            return None
        arrays = {str(key): (str(dtype), tuple(map(int, shape))) for key, (dtype, shape) in found["arrays"].items()}
        fingerprints = {str(key): str(value) for key, value in found["fingerprints"].items()}
        return Entry(name, str(found["hash"]), str(found["origin"]), fingerprints, arrays)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def read(entry: Entry) -> dict[str, np.ndarray] | None:
    """The arrays, memory-mapped copy-on-write; None if some are missing or damaged."""
    try:
        found = {key: np.load(path_of(entry) / f"{key}.npy", mmap_mode="c", allow_pickle=False) for key in entry.arrays}
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
    report: OnProgress = files.no_report,
) -> Entry:
    """Store the arrays; `contents` is their hash.

    Raises OSError, or a BespokeError caused by one, if the directory cannot be written.
    """
    known = {key: (array.dtype.str, array.shape) for key, array in arrays.items()}
    entry = Entry(name, contents, origin, fingerprints, known)
    with _lock(name):
        before = find(name)
        if read(entry) is None:
            _write_arrays(entry, arrays, report)
        write_text(_metadata_file(name), json.dumps(asdict(entry), indent=1, sort_keys=True))
        sync(_metadata_file(name).parent)
        if before is not None and before.hash != entry.hash:
            shutil.rmtree(path_of(before), ignore_errors=True)
    return entry


def remove(entry: Entry) -> None:
    """Delete a data set."""
    with _lock(entry.name):
        _metadata_file(entry.name).unlink(missing_ok=True)
        shutil.rmtree(path_of(entry), ignore_errors=True)


@contextmanager
def _lock(name: str) -> Iterator[None]:
    """Allow one writer of a data set at a time and delete what a killed one has left; readers need no lock."""
    import fcntl  # not at the top: it does not exist on Windows, which can read data nevertheless

    parent = directory() / "decoded"
    parent.mkdir(parents=True, exist_ok=True)
    with (parent / f".{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for left in (*parent.glob(f".{name}-*"), *parent.glob(f".{name}.json.*")):
            if left.is_dir():
                shutil.rmtree(left, ignore_errors=True)
            else:
                left.unlink(missing_ok=True)
        yield


def _write_arrays(entry: Entry, arrays: Arrays, report: OnProgress) -> None:
    target = path_of(entry)
    temporary = Path(tempfile.mkdtemp(prefix=f".{entry.name}-", dir=target.parent))
    try:
        for done, (key, array) in enumerate(arrays.items()):
            report("writing", done, len(arrays))
            np.save(temporary / f"{key}.npy", np.ascontiguousarray(array), allow_pickle=False)
            sync(temporary / f"{key}.npy")
        temporary.chmod(0o755)
        sync(temporary)
        shutil.rmtree(target, ignore_errors=True)  # exists only if it is damaged
        temporary.rename(target)
        sync(target.parent)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
