"""A real disk that becomes full: a small one, which only a process and those that it starts can see."""

import shlex
from pathlib import Path

PAGE = 4096  # bytes: files take up whole pages


def small_disk(folder: Path, size: int, keep: Path | None = None) -> tuple[str, ...]:
    """What to put before a command, so that it finds an empty disk of so many bytes in the place of the folder.

    keep    a folder to copy everything to that is on the disk in the end, when it goes
    """
    mount = f"mount -t tmpfs -o size={size} none {shlex.quote(str(folder))}"
    work = 'exec "$@"'
    if keep is not None:
        work = f'"$@"; code=$?; cp -a {shlex.quote(str(folder))}/. {shlex.quote(str(keep))} && exit $code'
    return ("unshare", "--map-root-user", "--mount", "sh", "-c", f"{mount} || exit 99; {work}", "sh")


def taken(path: Path) -> int:
    """Bytes of a small disk that a file takes up, or all files in a folder."""
    files = [path] if path.is_file() else [one for one in path.rglob("*") if one.is_file()]
    return sum(-(-file.stat().st_size // PAGE) * PAGE for file in files)
