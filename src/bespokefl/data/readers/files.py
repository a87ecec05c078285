"""What the readers share: finding files, limiting their size, and errors of damaged files."""

import gzip
import os
import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, TypeVar, cast

import numpy as np

from bespokefl.core.errors import InputError, in_brief
from bespokefl.core.system.files import refuse_pipe

Arrays = Mapping[str, np.ndarray]
OnProgress = Callable[[str, float, float], None]  # the current step, how much is done, of how much (0: unknown)
T = TypeVar("T")

LIMIT = 4 << 30  # bytes, uncompressed; the largest known data set has a quarter of it
LIMIT_VARIABLE = "BESPOKE_MAX_UNPACKED"  # an environment variable with another limit, in bytes
RAISE_LIMIT = f"if you trust it, set the environment variable {LIMIT_VARIABLE} to a larger number of bytes"
MAX_DEPTH = 3  # subdirectory levels that are searched


def no_report(what: str, done: float, total: float) -> None:
    """A progress report that does nothing."""


def reported(items: Iterable[T], report: OnProgress) -> Iterator[T]:
    """Report progress while reading one item after the other."""
    known = list(items)
    for done, item in enumerate(known):
        report("reading", done, len(known))
        yield item


class DamagedError(ValueError):
    """What is wrong with a file; `reading` adds which file it is."""


def limit() -> int:
    """The bytes that a file may have uncompressed: `LIMIT`, or what the environment variable says."""
    given = os.environ.get(LIMIT_VARIABLE)
    if given is None:
        return LIMIT
    if not (given.isascii() and given.isdigit() and len(given) < 19):
        raise InputError(
            f"the environment variable {LIMIT_VARIABLE} must be a number of bytes, got {in_brief(given)!r}"
        )
    return int(given)


@contextmanager
def reading(path: Path, kind: str, *errors: type[Exception]) -> Iterator[None]:
    """Turn the usual errors of damaged files, and those in `errors`, into an InputError that names the file."""
    refuse_pipe(path)
    expected: tuple[type[Exception], ...] = (OSError, EOFError, ValueError, RuntimeError, zlib.error, *errors)
    try:
        yield
    except FileNotFoundError:
        raise InputError(f"no file {str(path)!r}") from None
    except expected as error:
        what = in_brief(str(error) or type(error).__name__)
        raise InputError(
            f"cannot read {str(path)!r} as {kind}: {what}; get the file again or use another one"
        ) from None


@contextmanager
def opened(path: Path, kind: str, *errors: type[Exception]) -> Iterator[BinaryIO]:
    """Open a file for `reading`, decompressing gzip."""
    with reading(path, kind, *errors), path.open("rb") as file:
        is_gzip = file.read(2) == b"\x1f\x8b"
        file.seek(0)
        yield cast("BinaryIO", gzip.GzipFile(fileobj=file)) if is_gzip else file


@contextmanager
def content(path: Path, kind: str, *errors: type[Exception]) -> Iterator[bytes]:
    """All bytes of a file for `reading`, decompressed; at most `limit()`."""
    with opened(path, kind, *errors) as file:
        most = limit()
        found = file.read(most + 1)
        if len(found) > most:
            raise DamagedError(f"it has more than {most:,} bytes ({RAISE_LIMIT})")
        yield found


def find(directory: Path, pattern: str) -> list[Path]:
    """Files whose names match, in the directory and a few levels below, the nearest first.

    Links to directories are not followed, because they may form cycles.
    """
    matches = re.compile(pattern).fullmatch
    found: list[Path] = []
    for parent, below, names in os.walk(directory):  # skips directories that this user cannot read
        found += [Path(parent, name) for name in names if matches(name)]
        if len(Path(parent).relative_to(directory).parts) == MAX_DEPTH:
            below.clear()
    return sorted((path for path in found if path.is_file()), key=lambda path: (len(path.parts), path))


def join_parts(train: tuple[np.ndarray, ...], test: tuple[np.ndarray, ...]) -> tuple[np.ndarray, ...]:
    """Concatenate each training array with its test array; the last result is True for test examples."""
    is_test = np.repeat([False, True], [len(train[0]), len(test[0])])
    return *(np.concatenate(pair) for pair in zip(train, test, strict=True)), is_test
