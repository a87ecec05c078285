"""Run a file reader in a sandbox: it must return in time, without library warnings, and write only where it may.

Writes are detected by comparing the sandbox's files before and after, and by audit events of all calls that open a file
for writing, rename, remove, create directories, start processes or connect. Nothing is prevented; violations are
reported afterwards, so that no `except` of the reader can hide them.
"""

import faulthandler
import os
import signal
import stat
import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

SECONDS = 20.0  # limit for one input, which usually takes a hundredth of a second
END_SECONDS = 120.0  # after which the process ends: for code that no exception can interrupt
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
# For each event, the positions of paths in its arguments, and of the directory descriptors they are relative to.
PATHS: dict[str, tuple[tuple[int, int | None], ...]] = {
    "open": ((0, None),),
    "os.rename": ((0, 2), (1, 3)),
    "os.link": ((0, 2), (1, 3)),
    "os.symlink": ((1, 2),),
    "os.mkdir": ((0, 2),),
    "os.remove": ((0, 1),),
    "os.rmdir": ((0, 1),),
    "os.truncate": ((0, None),),
    "os.chmod": ((0, 2),),
    "os.chown": ((0, 3),),
    "os.utime": ((0, 3),),
}
NEVER = ("subprocess.", "socket.connect", "socket.bind", "socket.getaddrinfo", "shutil.", "tempfile.")
NEVER += ("os.system", "os.exec", "os.fork", "os.forkpty", "os.posix_spawn", "os.spawn")


class NoAnswer(BaseException):
    """A reader takes too long. `except Exception` does not catch it, and hypothesis does not shrink it."""


@dataclass
class Watch:
    """Collects forbidden audit events while a reader works."""

    out: Path | None  # the only directory that may be written to
    seen: list[str] = field(default_factory=list)

    def __call__(self, event: str, values: tuple[Any, ...]) -> None:
        if event.startswith(NEVER):
            self.seen.append(f"{event} {values!r}")
            return
        if event == "open" and not (isinstance(values[2], int) and values[2] & WRITING):
            return
        for at, begin in PATHS.get(event, ()):
            path = _path(values[at], -1 if begin is None else values[begin])
            meant = path is None or str(path) == os.devnull or self.out in (path, *path.parents)
            if not meant:
                self.seen.append(f"{event} {path}")


_watches: list[Watch] = []  # that of the current reader, if any; an audit hook cannot be removed


def _hook(event: str, values: tuple[Any, ...]) -> None:
    for watch in _watches:
        watch(event, values)


sys.addaudithook(_hook)


def answer(reader: Callable[[Path], Any], path: Path, sandbox: Path, *, out: Path | None = None) -> Any:
    """Return what the reader returns for this file.

    sandbox  a directory that contains the file at least two levels deep, so that writes to ../outside are detected
    out      a directory that the reader may write to, if any
    """
    assert sandbox in path.parent.parent.parents, "there must be room above the file"
    watch, rung, before = Watch(None if out is None else out.resolve()), list[bool](), listing(sandbox, out)

    def ring(number: int, frame: FrameType | None) -> None:
        rung.append(True)
        raise NoAnswer(_late(path))

    usual, compiled = signal.signal(signal.SIGALRM, ring), sys.dont_write_bytecode
    sys.dont_write_bytecode = True  # compiled modules are not written by the reader
    faulthandler.dump_traceback_later(END_SECONDS, exit=True)
    signal.setitimer(signal.ITIMER_REAL, SECONDS, SECONDS)
    _watches[:] = [watch]
    try:
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            try:
                return reader(path)
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)  # again: the timer may have rung just before the line above
        _watches.clear()
        signal.signal(signal.SIGALRM, usual)
        faulthandler.cancel_dump_traceback_later()
        sys.dont_write_bytecode = compiled
        if rung:
            raise NoAnswer(_late(path))
        assert not warned, f"reading it let a library warn: {warned[0].message}"
        assert not watch.seen, f"reading it wrote: {watch.seen[:3]}"
        assert listing(sandbox, out) == before, "reading it changed files"


def listing(folder: Path, out: Path | None = None) -> dict[Path, tuple[int, int, int]]:
    """Return mode, size and modification time of everything below a directory, except inside `out`."""
    about = folder.lstat()
    if folder == out:
        return {folder: (about.st_mode, 0, 0)}
    found = {folder: (about.st_mode, about.st_size, about.st_mtime_ns)}
    for one in folder.iterdir() if stat.S_ISDIR(about.st_mode) else ():
        found |= listing(one, out)
    return found


def _late(path: Path) -> str:
    content = path.read_bytes()
    return f"no answer in {SECONDS:g} s to {len(content)} bytes: {content[:2000]!r}"


def _path(given: Any, begin: int) -> Path | None:
    """Resolve links and `..` in a path; None for a file descriptor."""
    if not isinstance(given, str | bytes | os.PathLike):
        return None
    folder = Path() if begin < 0 else Path(f"/proc/self/fd/{begin}").readlink()
    return (folder / os.fsdecode(given)).resolve()
