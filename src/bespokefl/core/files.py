"""Files that are there whole or not at all: written beside, synced, renamed."""

import os
from pathlib import Path

from bespokefl.core.errors import InputError


def write_text(path: Path, text: str) -> None:
    """Put a text in a file's place; refuses in a sentence where that cannot be done."""
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with aside.open("w", encoding="utf-8", newline="") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            aside.replace(path)
        finally:
            aside.unlink(missing_ok=True)
    except OSError as error:
        raise InputError(f"cannot write to {str(path)!r}: {error.strerror or error}.") from error


def sync(path: Path) -> None:
    """A file, or the names in a folder, on the disk for good."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
