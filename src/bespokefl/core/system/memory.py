"""The available memory: that of the machine, or the limit of a control group, such as a container's."""

import ctypes
import math
import os
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path, PurePosixPath

GROUPS = Path("/proc/self/cgroup")  # of this process: number:controllers:directory
LIMITS = Path("/sys/fs/cgroup")
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # malloc.h of glibc
KEPT = 256 << 20  # bytes at the end of the heap that are kept when freed; a step of training needs less
ON_HEAP = 32 << 20  # bytes of an allocation up to which it is made on the heap, the most that glibc allows


def limit() -> float:
    """The bytes of memory that this process and its workers can use together."""
    if not hasattr(os, "sysconf"):  # on Windows
        return math.inf
    machine = float(os.sysconf("SC_PAGE_SIZE")) * os.sysconf("SC_PHYS_PAGES")
    return min([machine, *_allowed()])


def keep_freed() -> bool:
    """Let this process keep up to 256 MB of freed memory for later allocations; return whether glibc agreed.

    Otherwise the buffers of each training step are given back to the system, and every page is cleared and mapped again
    in the next step. It has no effect with other C libraries.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):  # no glibc
        return False
    return bool(mallopt(M_MMAP_THRESHOLD, ON_HEAP) and mallopt(M_TRIM_THRESHOLD, KEPT))


def give_back() -> None:
    """Return freed memory to the system, where the C library can: glibc keeps what `keep_freed` allows, and holes."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None
    if trim is not None:
        trim(0)


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
