"""What the readers share: finding files, limiting their size, and the error for a damaged file."""

import gzip
import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, TypeVar, cast

import numpy as np

from bespokefl.core.errors import InputError, in_brief
from bespokefl.core.files import refuse_pipe

Arrays = Mapping[str, np.ndarray]
Report = Callable[[str, float, float], None]  # the current step, how much is done, of how much (0: unknown)
T = TypeVar("T")

LIMIT = 4 << 30  # bytes, uncompressed; the largest known data set has a quarter of it
MAX_DEPTH = 3  # subdirectory levels that are searched


def no_report(what: str, done: float, total: float) -> None:
    """A progress report that does nothing."""


def reported(items: Iterable[T], report: Report) -> Iterator[T]:
    """Report progress while reading one item after the other."""
    known = list(items)
    for done, item in enumerate(known):
        report("reading", done, len(known))
        yield item


def unreadable(path: Path, kind: str, what: str) -> InputError:
    """The error for a file that does not have the expected format."""
    return InputError(f"cannot read {str(path)!r} as {kind}: {in_brief(what)}; get the file again or use another one")


@contextmanager
def opened(path: Path, kind: str) -> Iterator[BinaryIO]:
    """Open a file, decompressing gzip; errors while reading it become an InputError."""
    refuse_pipe(path)
    try:
        with path.open("rb") as file:
            is_gzip = file.read(2) == b"\x1f\x8b"
            file.seek(0)
            if is_gzip:
                with gzip.open(file) as content:
                    yield cast("BinaryIO", content)
            else:
                yield file
    except FileNotFoundError:
        raise InputError(f"no file {str(path)!r}") from None
    except (OSError, EOFError, zlib.error) as error:
        raise unreadable(path, kind, str(error) or type(error).__name__) from None


def read_bytes(path: Path, kind: str, limit: int = LIMIT) -> bytes:
    """All bytes of a file, decompressed; at most `limit`."""
    with opened(path, kind) as file:
        found = file.read(limit + 1)
    if len(found) > limit:
        raise unreadable(path, kind, f"it has more than {limit:,} bytes")
    return found


def find(directory: Path, pattern: str) -> list[Path]:
    """Files whose names match, in the directory and a few levels below, the nearest first.

    Links to directories are not followed, because they may form cycles.
    """
    matches = re.compile(pattern).fullmatch
    found: list[Path] = []
    level = [directory]
    for _ in range(MAX_DEPTH + 1):
        below: list[Path] = []
        for one in level:
            try:
                entries = sorted(one.iterdir())
            except OSError:  # not readable for this user
                continue
            found += [entry for entry in entries if matches(entry.name) and entry.is_file()]
            below += [entry for entry in entries if entry.is_dir() and not entry.is_symlink()]
        level = below
    return found


def join_parts(train: tuple[np.ndarray, ...], test: tuple[np.ndarray, ...]) -> tuple[np.ndarray, ...]:
    """Concatenate each training array with its test array; the last result is True for test examples."""
    is_test = np.repeat([False, True], [len(train[0]), len(test[0])])
    return *(np.concatenate(pair) for pair in zip(train, test, strict=True)), is_test
