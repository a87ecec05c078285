"""Files that are there whole or not at all: written beside, synced, renamed."""

import errno
import os
from pathlib import Path

from bespokefl.core.errors import BespokeError, DiskError, InputError

FULL = (errno.ENOSPC, errno.EDQUOT)  # no room left on the disk, or for this user


def write_text(path: Path, text: str) -> None:
    """Put a text in a file's place; refuses in a sentence where that cannot be done."""
    aside = path.parent / f".{path.name}.{os.getpid()}"
    try:
        if path.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with aside.open("w", encoding="utf-8", newline="") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            aside.replace(path)
        finally:
            aside.unlink(missing_ok=True)
    except OSError as error:
        raise unwritten(path, error) from error


def unwritten(path: str | os.PathLike[str], error: OSError) -> BespokeError:
    """The error for what could not be written: the disk is full, or the place is wrong."""
    fact = f"cannot write to {str(path)!r}: {error.strerror or error}"
    return DiskError(fact) if error.errno in FULL else InputError(f"{fact}; {cure(error)}.")


def cure(error: OSError) -> str:
    """What to do about something that could not be written."""
    if error.errno == errno.EISDIR:
        return "name a file"
    return "make room" if error.errno in FULL else "make it writable, or use another place"


def absolute(path: str | os.PathLike[str]) -> Path:
    """The same place, to be found from anywhere."""
    try:
        return Path(os.path.realpath(path))
    except FileNotFoundError:  # os.getcwd(): a path itself need not exist
        raise InputError(
            "the current folder is gone, perhaps replaced by results that were written there; go to it again, as in: "
            'cd "$PWD".'
        ) from None


def refuse_pipe(path: Path) -> None:
    """Refuse what is neither a file nor a folder: it may have no end, or never begin."""
    if path.exists() and not path.is_file() and not path.is_dir():
        raise InputError(f"{str(path)!r} must be a file, got a pipe or a device; write what comes from it to a file.")


def locked(path: Path, *, needed: bool = True) -> int | None:
    """A lock on a file, which is made if it is not there; None if somebody else has it.

    Closing what is returned gives it back, and so does the end of the process, however it ends.

    needed  False: on a file system without locks one goes on without
    """
    import fcntl  # not at the top: Windows has none, and is a node all the same

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
    """A file, or the names in a folder, on the disk for good."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
