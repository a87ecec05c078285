"""The files through which processes share a run of a deployment: its lock, a request to stop, and its status.

A process that works on a run holds a lock on a file in the run's directory. The operating system releases the lock when
the process ends, however it ends. A request to stop is a file of its own, so that no status update overwrites it.
"""

import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bespokefl.core.files import locked, write_text

LOCK, STOP, STATUS = "lock", "stop", "status.json"
RESULT = "result"  # the directory with a finished run's result
POLL = 0.05  # seconds between two attempts


@contextmanager
def try_lock(directory: Path, timeout: float = 0.0, *, record_pid: bool = False) -> Iterator[bool]:
    """Hold the lock on a run; yields False if another process still holds it after `timeout` seconds.

    With `record_pid` the file has the id of this process, so that others can end it.
    """
    deadline = time.monotonic() + timeout
    while (lock := locked(directory / LOCK)) is None:
        if time.monotonic() >= deadline:
            yield False
            return
        time.sleep(POLL)
    try:
        os.ftruncate(lock, 0)
        os.write(lock, str(os.getpid()).encode() if record_pid else b"")
        yield True
    finally:
        os.close(lock)


def is_locked(directory: Path) -> bool:
    """Whether a process works on a run."""
    with try_lock(directory) as acquired:
        return not acquired


def locking_pid(directory: Path) -> int | None:
    """The id of the process that works on a run, if it has recorded it."""
    try:
        pid = (directory / LOCK).read_text(encoding="utf-8")
    except OSError:
        return None
    return int(pid) if pid.isdigit() and is_locked(directory) else None


def request_stop(directory: Path) -> None:
    write_text(directory / STOP, "")


def stop_requested(directory: Path) -> bool:
    return (directory / STOP).exists()


def withdraw_stop_request(directory: Path) -> None:
    (directory / STOP).unlink(missing_ok=True)


def update_status(directory: Path, **changes: Any) -> None:
    status = read_status(directory) | {"time": time.time()} | changes
    write_text(directory / STATUS, json.dumps(status, indent=2) + "\n")


def read_status(directory: Path) -> dict[str, Any]:
    """The status of a run; empty if it has none yet."""
    try:
        status: dict[str, Any] = json.loads((directory / STATUS).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return status
