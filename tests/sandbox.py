"""A reader in a sandbox: it must answer in time, without a library's warning, and write nothing but what it is for.

Two things tell what it wrote: the files of the sandbox before and after, and what Python reports of all calls that open
a file to write, rename, remove, make folders, start processes or connect. Nothing is prevented: it is told afterwards,
so that no `except` of the reader can hide it.
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

SECONDS = 10.0  # for one input; usually it takes a hundredth of one
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
# What each event tells of: where in its arguments paths are, and the folders' descriptors that these begin at.
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
    """A reader takes too long. No `except Exception` catches it, and hypothesis looks for no smaller one."""


@dataclass
class Watch:
    """What is seen while a reader works."""

    out: Path | None  # the only folder that may be written into
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


_watches: list[Watch] = []  # that of the reader at work, if there is one: a hook cannot be taken away


def _hook(event: str, values: tuple[Any, ...]) -> None:
    for watch in _watches:
        watch(event, values)


sys.addaudithook(_hook)


def answer(reader: Callable[[Path], Any], path: Path, sandbox: Path, *, out: Path | None = None) -> Any:
    """What the reader makes of this file.

    sandbox  a folder that the file is in, at least two folders deep, so that ../outside is seen
    out      a folder that the reader is to write into, if it is
    """
    assert sandbox in path.parent.parent.parents, "there must be room above the file"
    watch, rung, before = Watch(None if out is None else out.resolve()), list[bool](), listing(sandbox, out)

    def ring(number: int, frame: FrameType | None) -> None:
        rung.append(True)
        raise NoAnswer(_late(path))

    usual, compiled = signal.signal(signal.SIGALRM, ring), sys.dont_write_bytecode
    sys.dont_write_bytecode = True  # a module that is imported only now is no file of the reader's
    faulthandler.dump_traceback_later(6 * SECONDS, exit=True)  # for code that no exception can come into
    signal.setitimer(signal.ITIMER_REAL, SECONDS, SECONDS)
    _watches[:] = [watch]
    try:
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            return reader(path)
    finally:
        _watches.clear()
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, usual)
        faulthandler.cancel_dump_traceback_later()
        sys.dont_write_bytecode = compiled
        if rung:
            raise NoAnswer(_late(path))
        assert not warned, f"reading it let a library warn: {warned[0].message}"
        assert not watch.seen, f"reading it wrote: {watch.seen[:3]}"
        assert listing(sandbox, out) == before, "reading it changed files"


def listing(folder: Path, out: Path | None = None) -> dict[Path, tuple[int, int, int]]:
    """Everything below a folder: kind, size and time of change; but for what is inside `out`."""
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
    """Where it is, whatever links and .. are in it; None: a file that was open already."""
    if not isinstance(given, str | bytes | os.PathLike):
        return None
    folder = Path() if begin < 0 else Path(f"/proc/self/fd/{begin}").readlink()
    return (folder / os.fsdecode(given)).resolve()
