"""Watch other processes: wait for something that they do, and find those that are alive."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

LONGEST = 120.0  # seconds to wait for what usually takes a moment: the machine may be busy
T = TypeVar("T")


def wait_for(what: Callable[[], T], seconds: float = LONGEST) -> T:
    """Call a function until its value is true, and return the value."""
    until = time.monotonic() + seconds
    while not (found := what()):
        assert time.monotonic() < until, f"it did not happen in {seconds:g} s"
        time.sleep(0.01)
    return found


def is_alive(pid: int) -> bool:
    """Whether a process runs; one that has ended but was not waited for does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


def working_in(directory: Path) -> list[int]:
    """Return the processes whose working directory this is."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            here = (process / "cwd").readlink() == directory.resolve()
        except OSError:  # it has ended, or belongs to another user
            continue
        if here:
            found.append(int(process.name))
    return found
