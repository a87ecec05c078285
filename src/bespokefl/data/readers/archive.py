"""Archives (tar, compressed or not, and zip), unpacked safely into a directory."""

import lzma
import shutil
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import IO

from bespokefl.core.errors import InputError
from bespokefl.data.readers import files
from bespokefl.data.readers.files import DamagedError, OnProgress

KIND = "a tar or zip archive"
MAX_FILES = 100_000


def is_archive(path: Path) -> bool:
    """Whether the path is a file with the name of a tar or zip archive."""
    return path.is_file() and (path.suffix in (".tgz", ".tar", ".zip") or path.name.endswith((".tar.gz", ".tar.xz")))


def unpack(path: Path, directory: Path, report: OnProgress = files.no_report) -> None:
    """Write the archive's files below the directory.

    Paths that lead out of it, links, devices and more than `files.limit()` bytes in total are rejected.
    """
    left = most = files.limit()
    with files.reading(path, KIND, tarfile.TarError, zipfile.BadZipFile, lzma.LZMAError):
        for count, (name, size, file) in enumerate(_members(path)):
            report("unpacking", most - left, 0)
            left -= size
            if left < 0 or count >= MAX_FILES:
                raise DamagedError(
                    f"it unpacks to more than {most:,} bytes or {MAX_FILES:,} files ({files.RAISE_LIMIT})"
                )
            target = directory / _relative_path(path, name)
            target.parent.mkdir(parents=True, exist_ok=True)
            with target.open("xb") as written:
                shutil.copyfileobj(file, written, 1 << 20)
            if target.stat().st_size != size:
                raise DamagedError(f"{name!r} in it is truncated")


def _members(path: Path) -> Iterator[tuple[str, int, IO[bytes]]]:
    """Name, size and content of each regular file."""
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            for entry in archive.infolist():
                if entry.is_dir():
                    continue
                if entry.external_attr >> 16 & 0o170000 not in (0, 0o100000):
                    raise DamagedError(f"{entry.filename!r} in it is not a regular file")
                with archive.open(entry) as file:
                    yield entry.filename, entry.file_size, file
        return
    with tarfile.open(path) as archive:
        for member in archive:
            if member.isdir():
                continue
            content = archive.extractfile(member) if member.isreg() else None
            if content is None:
                raise DamagedError(f"{member.name!r} in it is not a regular file")
            yield member.name, member.size, content


def _relative_path(path: Path, name: str) -> Path:
    parts = PurePosixPath(name.replace("\\", "/"))
    if parts.is_absolute() or ".." in parts.parts or not parts.parts or ":" in name or "\0" in name:
        raise InputError(f"the archive {str(path)!r} has a path outside its directory, {name!r}; do not trust it")
    return Path(*parts.parts)
