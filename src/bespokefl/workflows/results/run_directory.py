"""The folder of a run, or of something like it: it appears complete or not at all."""

import ctypes
import glob
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
from bespokefl.core.files import absolute, locked, sync, unwritten
from bespokefl.core.files import write_text as write_text
from bespokefl.engines.storage.checkpoints import describe_latest, has_checkpoint

log = logging.getLogger("bespokefl")

SIGNS = ("config.toml", "result.json")  # what makes a folder the folder of a run
CHECKPOINTS = "checkpoints"
SPLIT_FILE = "split.json"  # which examples are whose
RUNS = Path("runs")  # for folders that nobody has named
# What there may be before the first checkpoint is, half-written files among them: a new start may have it.
BEGUN = re.compile(rf"{CHECKPOINTS}|(\.?)(config\.toml|split\.json|start\.safetensors)(\.\d+)?")
PATIENCE = 3.0  # seconds in which the workers of a run that was killed are gone, too
EXCHANGE, HERE = 2, -100  # of Linux: to swap two names, and for paths that begin here


def is_unfinished(path: Path) -> bool:
    """Whether a run was begun here that can go on."""
    return (path / "config.toml").is_file() and has_checkpoint(path / CHECKPOINTS)


def no_room(error: DiskError, path: Path, *, stays: bool = False) -> DiskError:
    """The same error of the run in this folder: with what is left of it, and how to go on.

    stays   what is there is still the run that was to be replaced
    """
    left, again = describe_latest(path / CHECKPOINTS), "start it again"
    if stays:
        left = f"there is no checkpoint yet, and the run that was in {str(path)!r} before is as it was"
    elif is_unfinished(path):
        again = f"bespoke resume {shlex.quote(str(path))}"
    return DiskError(error.fact, kept=left, cure=error.cure, then=again)


class ReplacedFolder:
    """Another run's folder, or a place where there is none: it stays as it is until something new is whole."""

    def __init__(self, path: Path) -> None:
        self.path, self.stays = path, path.is_dir() and any(path.iterdir())

    def replace(self, fill: Callable[[Path], None]) -> None:
        write(self.path, fill, overwrite=True)
        self.stays = False


def is_run(path: Path, signs: tuple[str, ...] = SIGNS) -> bool:
    return all((path / name).is_file() for name in signs)


def is_strange(path: Path) -> bool:
    """Whether there is something in the folder that no run leaves before it has results."""
    return not all(BEGUN.fullmatch(one.name) for one in path.iterdir())


def steady(path: Path) -> Path:
    """The same path, absolute where one stands inside: when it is replaced, a relative one leads nowhere."""
    whole = path if path.is_absolute() else absolute(path)
    return whole if _stands_in(whole) else path


def _stands_in(place: Path) -> bool:
    try:
        return Path.cwd().is_relative_to(place)
    except FileNotFoundError:  # it is gone
        return False


@contextmanager
def held(path: Path, *, other: bool = False) -> Iterator[Path]:
    """Nobody else works in this folder meanwhile. other: if it is there or taken, name-2, name-3, … is held instead.

    Gives the path by which it is found to the end.
    """
    path = steady(path)
    made = [one for one in path.parents if not one.exists()]
    if other:
        path, lock = _first(path)
    else:
        lock = _wait(path)
    mark = _mark(path)
    try:
        sweep(path)
        yield path
    finally:
        mark.unlink(missing_ok=True)
        os.close(lock)
        with suppress(OSError):  # there is something in them
            for one in made:
                one.rmdir()


def _wait(path: Path) -> int:
    until = time.monotonic() + PATIENCE
    while (lock := _lock(path)) is None:
        if time.monotonic() > until:
            raise InputError(f"another process works in {str(path)!r}; wait until it ends, or use another folder.")
        time.sleep(0.1)
    return lock


def _first(path: Path) -> tuple[Path, int]:
    found, number = path, 1
    while found.exists() or (lock := _lock(found)) is None:
        number += 1
        found = path.with_name(f"{path.name}-{number}")
    return found, lock


def _mark(path: Path) -> Path:
    whole = path.resolve()
    return whole.with_name(f".{whole.name}.lock")


def _lock(path: Path) -> int | None:
    """A lock beside the folder, which may be replaced under it; None if somebody else has it."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock = locked(_mark(path), needed=False)
    except OSError as error:
        raise unwritten(path, error) from None
    if lock is None:
        return None
    with suppress(FileNotFoundError):
        if os.path.samestat(os.fstat(lock), _mark(path).stat()):  # else whoever had it has just taken it away
            return lock
    os.close(lock)
    return None


def sweep(path: Path) -> None:
    """Take away what was being written into this folder by a process that is no more; what it put aside comes back."""
    whole = path.resolve()
    for one in whole.parent.glob(f".{glob.escape(whole.name)}.*-*"):
        writer = re.fullmatch(r"\.(new|old)-(\d+)-\d+", one.name.removeprefix(f".{whole.name}"))
        if writer is None:
            continue
        try:
            os.kill(int(writer[2]), 0)
        except ProcessLookupError:
            if writer[1] == "old" and not whole.exists():  # it was between the two steps of an exchange
                one.rename(whole)
            shutil.rmtree(one, ignore_errors=True)
        except OSError:  # it is somebody else's, and lives
            continue


def fresh(parent: Path, name: str) -> Path:
    """A folder that is not there yet: name, name-2, name-3, …"""
    path, number = parent / name, 1
    while path.exists():
        number += 1
        path = parent / f"{name}-{number}"
    return path


def check(path: Path, overwrite: bool, signs: tuple[str, ...] = SIGNS, what: str = "a run") -> None:
    """Refuse a place where a run cannot be written, or would replace something. Writes nothing."""
    if path.is_dir():
        if is_unfinished(path):
            if not overwrite:
                raise InputError(
                    f"{str(path)!r} holds an unfinished run: bespoke resume {shlex.quote(str(path))} goes on with it, "
                    "--overwrite replaces it."
                )
        elif is_run(path, signs):
            if not overwrite:
                raise InputError(
                    f"{str(path)!r} already holds {what}; use --overwrite to replace it, or another folder."
                )
        elif is_strange(path):
            raise InputError(f"{str(path)!r} holds something that is not {what} and is left alone; use another folder.")
    elif path.exists() or path.is_symlink():
        raise InputError(f"{str(path)!r} must be a folder or not exist, but it is a file; use another name.")
    check_above(path)


def check_above(path: Path) -> None:
    """Refuse a path in a place where nothing can be written."""
    above = path.resolve().parent
    while not above.exists():
        above = above.parent
    if not above.is_dir() or not os.access(above, os.W_OK | os.X_OK):
        raise InputError(f"cannot write to {str(path)!r}: {str(above)!r} is not a folder one may write to.")


def write(
    path: Path,
    fill: Callable[[Path], None],
    overwrite: bool,
    signs: tuple[str, ...] = SIGNS,
    what: str = "a run",
) -> Path:
    """Let `fill` write into a new folder beside the target, then put that in its place; gives that place."""
    path = steady(path)
    check(path, overwrite, signs, what)
    target = path.resolve()
    mark = f"{os.getpid()}-{time.time_ns()}"
    new = target.parent / f".{target.name}.new-{mark}"
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        new.mkdir()
        try:
            fill(new)
            for file in (one for one in new.iterdir() if one.is_file()):
                file.chmod(new.stat().st_mode & 0o666)  # safetensors writes files for their owner alone
                sync(file)
            sync(new)
            inside = _stands_in(target)
            _put(new, target)
            if inside:
                os.chdir(target)  # libraries do not work in a folder that is gone
                log.warning("the folder you are in was replaced: cd %s shows the new one", shlex.quote(str(target)))
            sync(target.parent)
        finally:
            shutil.rmtree(new, ignore_errors=True)  # what is there now was in the place before
    except (OSError, DiskError) as error:
        reason = error if isinstance(error, OSError) else error.__cause__
        if not isinstance(reason, OSError):
            raise
        raise unwritten(path, reason) from reason  # of the folder that was asked for: the new one is gone
    return path


def _put(new: Path, target: Path) -> None:
    """Bring a folder to its place. What is there comes to where that was, in one step: no instant is without either."""
    if not target.is_dir() or not any(target.iterdir()):
        new.rename(target)
        return
    swap = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None) if sys.platform == "linux" else None
    if swap is None or swap(HERE, os.fsencode(new), HERE, os.fsencode(target), EXCHANGE):
        aside = new.with_name(new.name.replace(".new-", ".old-"))  # such a file system needs two steps
        target.rename(aside)
        try:
            new.rename(target)
        except BaseException:
            aside.rename(target)
            raise
        shutil.rmtree(aside, ignore_errors=True)
