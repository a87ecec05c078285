"""What the readers share: finding files, reading no more than a limit, and saying what is wrong with a file."""

import gzip
import re
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, cast

import numpy as np

from bespokefl.core.errors import InputError, in_brief
from bespokefl.core.files import refuse_pipe

Arrays = Mapping[str, np.ndarray]
Report = Callable[[str, float, float], None]  # what is being done, how much of it, of how much (0: nobody knows)

LIMIT = 4 << 30  # bytes, unpacked; the largest set here has a quarter of it
DEPTH = 3  # archives keep their files up to this many folders down


def silent(what: str, done: float, total: float) -> None:
    """A report to nobody."""


def damaged(path: Path, kind: str, what: str) -> InputError:
    """The error for a file that cannot be read as what it should be."""
    return InputError(f"cannot read {str(path)!r} as {kind}: {in_brief(what)}; get the file again or name another")


@contextmanager
def opened(path: Path, kind: str) -> Iterator[BinaryIO]:
    """A file's bytes, unpacked if it is gzipped, whatever its name; what goes wrong becomes a sentence."""
    refuse_pipe(path)
    try:
        with path.open("rb") as file:
            packed = file.read(2) == b"\x1f\x8b"
            file.seek(0)
            if packed:
                with gzip.open(file) as unpacked:
                    yield cast("BinaryIO", unpacked)
            else:
                yield file
    except FileNotFoundError:
        raise InputError(f"no file {str(path)!r}") from None
    except (OSError, EOFError, zlib.error) as error:
        raise damaged(path, kind, str(error) or type(error).__name__) from None


def content(path: Path, kind: str, limit: int = LIMIT) -> bytes:
    """All bytes of a file, unpacked; refused if they are more than the limit."""
    with opened(path, kind) as file:
        found = file.read(limit + 1)
    if len(found) > limit:
        raise damaged(path, kind, f"it has more than {limit:,} bytes")
    return found


def find(folder: Path, pattern: str) -> list[Path]:
    """The files whose names match, in the folder or a few levels below, the nearest first. Links are not followed
    downwards, as they may lead in circles."""
    matches = re.compile(pattern).fullmatch
    found: list[Path] = []
    level = [folder]
    for _ in range(DEPTH + 1):
        below: list[Path] = []
        for one in level:
            try:
                entries = sorted(one.iterdir())
            except OSError:  # a folder that one may not look into holds nothing for us
                continue
            found += [entry for entry in entries if matches(entry.name) and entry.is_file()]
            below += [entry for entry in entries if entry.is_dir() and not entry.is_symlink()]
        level = below
    return found


def joined(train: tuple[np.ndarray, ...], test: tuple[np.ndarray, ...]) -> tuple[np.ndarray, ...]:
    """Each array of the training examples followed by that of the test examples; at last, which are for test."""
    mark = np.repeat([False, True], [len(train[0]), len(test[0])])
    return *(np.concatenate(pair) for pair in zip(train, test, strict=True)), mark
