"""A small real disk that becomes full, visible only to one process and its children."""

import shlex
from pathlib import Path

from tests.requirements import require_mount_namespace

PAGE = 4096  # bytes; files occupy complete pages


def small_disk(folder: Path, size: int, keep: Path | None = None) -> tuple[str, ...]:
    """Return a command prefix that mounts an empty disk of this size, in bytes, at the directory.

    keep    a directory to which the content of the disk is copied at the end
    """
    mount = f"mount -t tmpfs -o size={size} none {shlex.quote(str(folder))}"
    work = 'exec "$@"'
    if keep is not None:
        work = f'"$@"; code=$?; cp -a {shlex.quote(str(folder))}/. {shlex.quote(str(keep))} && exit $code'
    return (*require_mount_namespace(), "sh", "-c", f"{mount} || exit 99; {work}", "sh")


def taken(path: Path) -> int:
    """Return how many bytes of a small disk a file occupies, or all files in a directory."""
    files = [path] if path.is_file() else [one for one in path.rglob("*") if one.is_file()]
    return sum(-(-file.stat().st_size // PAGE) * PAGE for file in files)
