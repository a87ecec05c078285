"""The available memory: that of the machine, or the limit of a control group, such as a container's."""

import math
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path, PurePosixPath

GROUPS = Path("/proc/self/cgroup")  # of this process: number:controllers:directory
LIMITS = Path("/sys/fs/cgroup")


def limit() -> float:
    """The bytes of memory that this process and its workers can use together."""
    if not hasattr(os, "sysconf"):  # on Windows
        return math.inf
    machine = float(os.sysconf("SC_PAGE_SIZE")) * os.sysconf("SC_PHYS_PAGES")
    return min([machine, *_allowed()])


def _allowed() -> Iterator[float]:
    """The limits of control groups, of both versions: this process's own and those around it."""
    try:
        lines = GROUPS.read_text(encoding="utf-8").splitlines()
    except OSError:
        return
    for line in lines:
        controllers, _, own = line.partition(":")[2].partition(":")
        if controllers == "":
            directory, name = LIMITS, "memory.max"
        elif "memory" in controllers.split(","):
            directory, name = LIMITS / "memory", "memory.limit_in_bytes"
        else:
            continue
        inside = PurePosixPath(own.lstrip("/"))
        for group in (inside, *inside.parents):  # a container may see its own group as the outermost
            with suppress(OSError, ValueError):  # no file, or "max"
                yield float((directory / group / name).read_text(encoding="utf-8"))
