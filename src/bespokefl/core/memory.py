"""How much memory there is to use: the machine's, or what a control group, as a container's, allows of it."""

import math
import os
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

GROUPS = Path("/proc/self/cgroup")  # those of this process: number:controllers:folder
LIMITS = Path("/sys/fs/cgroup")


def limit() -> float:
    """Bytes of memory that this process and its workers can have together."""
    if not hasattr(os, "sysconf"):  # Windows does not tell
        return math.inf
    machine = float(os.sysconf("SC_PAGE_SIZE")) * os.sysconf("SC_PHYS_PAGES")
    return min([machine, *_allowed()])


def _allowed() -> Iterator[float]:
    """What control groups allow, of both versions, this process's own and those around it."""
    try:
        lines = GROUPS.read_text(encoding="utf-8").splitlines()
    except OSError:
        return
    for line in lines:
        controllers, _, own = line.partition(":")[2].partition(":")
        if controllers == "":
            place, name = LIMITS, "memory.max"
        elif "memory" in controllers.split(","):
            place, name = LIMITS / "memory", "memory.limit_in_bytes"
        else:
            continue
        inside = PurePosixPath(own.lstrip("/"))
        for group in (inside, *inside.parents):  # a container may see its own as the outermost
            yield _number(place / group / name)


def _number(file: Path) -> float:
    try:
        return float(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):  # none, or "max"
        return math.inf
