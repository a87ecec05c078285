"""The directory of a run or of similar results: locked while it is used, and written completely or not at all."""

import ctypes
import glob
import itertools
import logging
import os
import re
import shlex
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from bespokefl.core.errors import DiskError, InputError
from bespokefl.core.system.files import absolute, locked, sync, unwritten
from bespokefl.core.system.files import write_text as write_text
from bespokefl.engines.storage.checkpoints import describe_latest, has_checkpoint

log = logging.getLogger("bespokefl")

SIGNS = ("config.toml", "result.json")  # the files by which the directory of a run is recognized
COMPARISON_SIGNS, TUNING_SIGNS = ("plan.json",), ("tuning.json",)
CHECKPOINTS = "checkpoints"
SPLIT_FILE = "split.json"  # which examples each client has
RUNS = Path("runs")  # the parent of directories that the user does not name
# Files that a run writes before its first checkpoint, also half-written ones: a new run may replace them.
UNFINISHED_FILES = re.compile(rf"{CHECKPOINTS}|(\.?)(config\.toml|split\.json|start\.safetensors)(\.\d+)?")
LOCK_TIMEOUT = 3.0  # seconds; the workers of a killed run need a moment to end
RENAME_EXCHANGE, AT_FDCWD = 2, -100  # of Linux: swap two names; paths are relative to the current directory


def is_run(path: Path, signs: tuple[str, ...] = SIGNS) -> bool:
    """Whether the directory holds finished results."""
    return all((path / name).is_file() for name in signs)


def is_unfinished(path: Path) -> bool:
    """Whether the directory holds a run that can be resumed."""
    return (path / "config.toml").is_file() and has_checkpoint(path / CHECKPOINTS)


def has_foreign_files(path: Path) -> bool:
    """Whether the directory holds files that no run writes before it has results."""
    return not all(UNFINISHED_FILES.fullmatch(one.name) for one in path.iterdir())


def explain_disk_error(error: DiskError, path: Path, *, unchanged: bool = False) -> DiskError:
    """Extend an error by what is left of the run (or, if `unchanged`, of the one to be replaced) and how to resume."""
    left, again = describe_latest(path / CHECKPOINTS), "start it again"
    if unchanged:
        left = f"there is no checkpoint yet, and the previous run in {str(path)!r} is unchanged"
    elif is_unfinished(path):
        again = f"bespoke resume {shlex.quote(str(path))}"
    return DiskError(error.fact, kept=left, cure=error.cure, then=again)


class ReplacedFolder:
    """A directory that stays unchanged until new content is complete."""

    def __init__(self, path: Path) -> None:
        self.path, self.unchanged = path, path.is_dir() and any(path.iterdir())

    def replace(self, fill: Callable[[Path], None]) -> None:
        """Replace the directory by a new one that `fill` fills."""
        write(self.path, fill, overwrite=True)
        self.unchanged = False


def stable_path(path: Path) -> Path:
    """Return the path, absolute if it contains the current directory: a relative one is invalid after a replacement."""
    whole = path if path.is_absolute() else absolute(path)
    return whole if _contains_current(whole) else path


def _contains_current(path: Path) -> bool:
    try:
        return Path.cwd().is_relative_to(path)
    except FileNotFoundError:  # the current directory was removed
        return False


@contextmanager
def lock(path: Path, *, rename: bool = False) -> Iterator[Path]:
    """Lock a directory and yield its path; with `rename`, the first of name, name-2, name-3, … that is free."""
    path = stable_path(path)
    missing = [one for one in path.parents if not one.exists()]
    if not rename:
        until = time.monotonic() + LOCK_TIMEOUT
        while (handle := _try_lock(path)) is None:
            if time.monotonic() > until:
                raise InputError(f"another process uses {str(path)!r}; wait until it ends, or use another directory.")
            time.sleep(0.1)
    else:
        unused = (one for one in _numbered(path) if not one.exists())
        path, handle = next((one, held) for one in unused if (held := _try_lock(one)) is not None)
    file = _lock_file(path)
    try:
        remove_leftovers(path)
        yield path
    finally:
        file.unlink(missing_ok=True)
        os.close(handle)
        with suppress(OSError):  # they are not empty
            for one in missing:
                one.rmdir()


def _numbered(path: Path) -> Iterator[Path]:
    """Yield name, name-2, name-3, …"""
    yield path
    yield from (path.with_name(f"{path.name}-{number}") for number in itertools.count(2))


def _lock_file(path: Path) -> Path:
    whole = path.resolve()
    return whole.with_name(f".{whole.name}.lock")


def _try_lock(path: Path) -> int | None:
    """Lock a file next to the directory, which may be replaced meanwhile; None if another process holds the lock."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle = locked(_lock_file(path), needed=False)
    except OSError as error:
        raise unwritten(path, error) from None
    if handle is None:
        return None
    with suppress(FileNotFoundError):
        if os.path.samestat(os.fstat(handle), _lock_file(path).stat()):  # else its last owner has just removed it
            return handle
    os.close(handle)
    return None


def remove_leftovers(path: Path) -> None:
    """Remove what a killed process was writing for this directory, and restore what it had moved aside."""
    whole = path.resolve()
    for one in whole.parent.glob(f".{glob.escape(whole.name)}.*-*"):
        writer = re.fullmatch(r"\.(new|old)-(\d+)-\d+", one.name.removeprefix(f".{whole.name}"))
        if writer is None:
            continue
        try:
            os.kill(int(writer[2]), 0)
        except ProcessLookupError:
            if writer[1] == "old" and not whole.exists():  # killed between the two steps of an exchange
                one.rename(whole)
            shutil.rmtree(one, ignore_errors=True)
        except OSError:  # a process of another user
            continue


def fresh(parent: Path, name: str) -> Path:
    """Return the first of name, name-2, name-3, … that does not exist."""
    return next(path for path in _numbered(parent / name) if not path.exists())


def check(path: Path, overwrite: bool, signs: tuple[str, ...] = SIGNS, what: str = "a run") -> None:
    """Raise an error if the path cannot be written, or if that would replace something unasked. Writes nothing."""
    shown = repr(str(path))
    if path.is_dir():
        if is_unfinished(path):
            if not overwrite:
                resume = f"bespoke resume {shlex.quote(str(path))}"
                raise InputError(f"{shown} holds an unfinished run: {resume} resumes it, --overwrite replaces it.")
        elif is_run(path, signs):
            if not overwrite:
                raise InputError(f"{shown} already holds {what}; use --overwrite to replace it, or another directory.")
        elif has_foreign_files(path):
            raise InputError(
                f"{shown} holds something that is not {what} and is left unchanged; use another directory."
            )
    elif path.exists() or path.is_symlink():
        raise InputError(f"{shown} must be a directory or not exist, but it is a file; use another name.")
    check_above(path)


def check_above(path: Path) -> None:
    """Raise an error if the path's parent directory is not writable."""
    above = path.resolve().parent
    while not above.exists():
        above = above.parent
    if not above.is_dir() or not os.access(above, os.W_OK | os.X_OK):
        raise InputError(f"cannot write to {str(path)!r}: {str(above)!r} is not a writable directory.")


def write(
    path: Path, fill: Callable[[Path], None], overwrite: bool, signs: tuple[str, ...] = SIGNS, what: str = "a run"
) -> Path:
    """Let `fill` write into a new directory next to the target, then move that to the target; return its path."""
    path = stable_path(path)
    check(path, overwrite, signs, what)
    target = path.resolve()
    new = target.parent / f".{target.name}.new-{os.getpid()}-{time.time_ns()}"
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        new.mkdir()
        try:
            fill(new)
            for file in (one for one in new.iterdir() if one.is_file()):
                file.chmod(new.stat().st_mode & 0o666)  # safetensors makes files readable for their owner only
                sync(file)
            sync(new)
            inside = _contains_current(target)
            _move(new, target)
            if inside:
                os.chdir(target)  # libraries fail in a directory that was removed
                log.warning("the current directory was replaced: cd %s shows the new one", shlex.quote(str(target)))
            sync(target.parent)
        finally:
            shutil.rmtree(new, ignore_errors=True)  # after the exchange, this is the previous content
    except (OSError, DiskError) as error:
        reason = error if isinstance(error, OSError) else error.__cause__
        if not isinstance(reason, OSError):
            raise
        raise unwritten(path, reason) from reason  # name the target: the new directory is removed
    return path


def _move(new: Path, target: Path) -> None:
    """Move a directory to its target. Existing content is exchanged in one step, so that the target always exists."""
    if not target.is_dir() or not any(target.iterdir()):
        new.rename(target)
        return
    swap = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None) if sys.platform == "linux" else None
    if swap is None or swap(AT_FDCWD, os.fsencode(new), AT_FDCWD, os.fsencode(target), RENAME_EXCHANGE):
        aside = new.with_name(new.name.replace(".new-", ".old-"))  # this file system needs two steps
        target.rename(aside)
        try:
            new.rename(target)
        except BaseException:
            aside.rename(target)
            raise
        shutil.rmtree(aside, ignore_errors=True)
