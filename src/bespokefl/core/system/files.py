"""Atomic writing of files (temporary file, sync, rename), and locks."""

import errno
import os
from collections.abc import Iterable
from pathlib import Path

from bespokefl.core.errors import BespokeError, DiskError, InputError

FULL = (errno.ENOSPC, errno.EDQUOT)  # no space left on the disk, or in the user's quota


def write_text(path: Path, text: str) -> None:
    """Write text to a file atomically; raise an InputError or DiskError if that fails."""
    write_bytes(path, text.encode())


def write_bytes(path: Path, content: bytes) -> None:
    """Write a file atomically; raise an InputError or DiskError if that fails."""
    write_pieces(path, (content,))


def write_pieces(path: Path, pieces: Iterable[bytes]) -> None:
    """Write a file atomically, piece by piece; raise an InputError or DiskError if that fails."""
    temporary = path.parent / f".{path.name}.{os.getpid()}"
    try:
        if path.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with temporary.open("wb") as file:
                file.writelines(pieces)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)
    except OSError as error:
        raise unwritten(path, error) from error


def unwritten(path: str | os.PathLike[str], error: OSError) -> BespokeError:
    """Return the error for a failed write: a DiskError if the disk is full, else an InputError."""
    fact = f"cannot write to {str(path)!r}: {error.strerror or error}"
    return DiskError(fact) if error.errno in FULL else InputError(f"{fact}; {cure(error)}.")


def cure(error: OSError) -> str:
    """What to do about a failed write."""
    if error.errno == errno.EISDIR:
        return "name a file"
    return "make room" if error.errno in FULL else "make it writable, or use another path"


def absolute(path: str | os.PathLike[str]) -> Path:
    """The absolute path, with symbolic links resolved."""
    try:
        return Path(os.path.realpath(path))
    except FileNotFoundError:  # os.getcwd(): a path itself need not exist
        raise InputError(
            "the current directory no longer exists, perhaps because results replaced it; enter it again, as in: "
            'cd "$PWD".'
        ) from None


def refuse_pipe(path: Path) -> None:
    """Raise an InputError for a pipe or a device, from which reading may never end."""
    if path.exists() and not path.is_file() and not path.is_dir():
        raise InputError(f"{str(path)!r} must be a file, got a pipe or a device; write its contents to a file.")


def locked(path: Path, *, needed: bool = True) -> int | None:
    """Lock a file, which is created if needed, and return its handle; None if another process holds the lock.

    Closing the handle releases the lock, and so does the end of the process. With needed=False, a file system without
    locks is accepted.
    """
    import fcntl  # not at the top, as Windows does not have it

    handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(handle)
        return None
    except OSError:
        if needed:
            os.close(handle)
            raise
    return handle


def sync(path: Path) -> None:
    """Flush a file, or the names in a directory, to disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
