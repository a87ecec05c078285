"""Only one process at a time works on a run of a deployment, and everybody else can ask it to stop.

Whoever works on a run holds a lock on a file in its folder, which the system takes back when the process ends, however
it ends. A wish to stop is a file of its own: nothing that a process says of the run can overwrite it.
"""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bespokefl.core.files import locked, write_text

LOCK, STOP = "lock", "stop"
LOOK = 0.05  # seconds between two tries


@contextmanager
def alone(place: Path, longest: float = 0.0, *, sign: bool = False) -> Iterator[bool]:
    """Be the only one that works on a run; False if somebody else still does after so many seconds.

    sign    leave the number of this process, by which others may end it
    """
    until = time.monotonic() + longest
    while (lock := locked(place / LOCK)) is None:
        if time.monotonic() >= until:
            yield False
            return
        time.sleep(LOOK)
    try:
        os.ftruncate(lock, 0)
        os.write(lock, str(os.getpid()).encode() if sign else b"")
        yield True
    finally:
        os.close(lock)


def worked_on(place: Path) -> bool:
    """Whether a process is at work on a run."""
    with alone(place) as free:
        return not free


def worker_of(place: Path) -> int | None:
    """The process that is at work on a run, if it has signed."""
    try:
        signed = (place / LOCK).read_text(encoding="utf-8")
    except OSError:
        return None
    return int(signed) if signed.isdigit() and worked_on(place) else None


def ask_to_stop(place: Path) -> None:
    write_text(place / STOP, "")


def asked_to_stop(place: Path) -> bool:
    return (place / STOP).exists()


def let_go_on(place: Path) -> None:
    (place / STOP).unlink(missing_ok=True)
