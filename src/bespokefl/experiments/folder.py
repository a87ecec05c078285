"""The folder of a run, or of something like it: it appears complete or not at all."""

import os
import shlex
import shutil
import time
from collections.abc import Callable
from pathlib import Path

from bespokefl.core.errors import DiskError, InputError
from bespokefl.core.files import sync, unwritten
from bespokefl.core.files import write_text as write_text
from bespokefl.engines.checkpoint import any_in, kept

SIGNS = ("config.toml", "result.json")  # what makes a folder the folder of a run


CHECKPOINTS = "checkpoints"


def is_unfinished(path: Path) -> bool:
    """Whether a run was begun here that can go on."""
    return (path / "config.toml").is_file() and any_in(path / CHECKPOINTS)


def no_room(error: DiskError, path: Path) -> DiskError:
    """The same error of the run in this folder: with what is left of it, and how to go on."""
    again = f'bespoke resume "{path}"' if is_unfinished(path) else "start it again"
    return DiskError(error.fact, kept=kept(path / CHECKPOINTS), cure=error.cure, then=again)


def is_run(path: Path, signs: tuple[str, ...] = SIGNS) -> bool:
    return all((path / name).is_file() for name in signs)


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
        if is_run(path, signs):
            if not overwrite:
                raise InputError(
                    f"{str(path)!r} already holds {what}; use --overwrite to replace it, or another folder."
                )
        elif is_unfinished(path):
            if not overwrite:
                raise InputError(
                    f"{str(path)!r} holds an unfinished run: bespoke resume {shlex.quote(str(path))} goes on with it, "
                    "--overwrite replaces it."
                )
        elif any(path.iterdir()):
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
) -> None:
    """Let `fill` write into a new folder beside the target, then put that in its place."""
    check(path, overwrite, signs, what)
    target = path.resolve()
    mark = f"{os.getpid()}-{time.time_ns()}"
    new, old = (target.parent / f".{target.name}.{kind}-{mark}" for kind in ("new", "old"))
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        new.mkdir()
        try:
            fill(new)
            for file in (one for one in new.iterdir() if one.is_file()):
                file.chmod(new.stat().st_mode & 0o666)  # safetensors writes files for their owner alone
                sync(file)
            sync(new)
            if is_run(target, signs) or is_unfinished(target):
                target.rename(old)
            new.rename(target)
        except BaseException:
            shutil.rmtree(new, ignore_errors=True)
            if old.exists() and not target.exists():
                old.rename(target)
            raise
        sync(target.parent)
        shutil.rmtree(old, ignore_errors=True)
    except (OSError, DiskError) as error:
        reason = error if isinstance(error, OSError) else error.__cause__
        if not isinstance(reason, OSError):
            raise
        raise unwritten(path, reason) from reason  # of the folder that was asked for: the new one is gone
