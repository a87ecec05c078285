"""Archives (tar, gzipped or not, and zip), unpacked into a folder of their own and nowhere else."""

import lzma
import shutil
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import IO

from bespokefl.core.errors import InputError
from bespokefl.data.readers import files
from bespokefl.data.readers.files import Report

KIND = "a tar or zip archive"
MOST = 100_000  # members


def is_archive(path: Path) -> bool:
    return path.is_file() and (path.suffix in (".tgz", ".tar", ".zip") or path.name.endswith((".tar.gz", ".tar.xz")))


def unpack(path: Path, folder: Path, report: Report = files.silent) -> None:
    """Write the archive's files below the folder. Refused: paths that lead out of it, links, devices, and more than
    `files.LIMIT` bytes in all."""
    left = files.LIMIT
    try:
        for count, (name, size, file) in enumerate(_members(path)):
            report("unpacking", files.LIMIT - left, 0)
            left -= size
            if left < 0 or count >= MOST:
                raise files.damaged(path, KIND, f"it unpacks to more than {files.LIMIT:,} bytes or {MOST:,} files")
            target = folder / _inside(path, name)
            target.parent.mkdir(parents=True, exist_ok=True)
            with target.open("xb") as written:
                shutil.copyfileobj(file, written, 1 << 20)
            if target.stat().st_size != size:
                raise files.damaged(path, KIND, f"{name!r} in it is cut off")
    except InputError:
        raise
    except FileNotFoundError:
        raise InputError(f"no file {str(path)!r}") from None
    except (OSError, EOFError, tarfile.TarError, zipfile.BadZipFile, zlib.error, lzma.LZMAError) as error:
        raise files.damaged(path, KIND, str(error) or type(error).__name__) from None
    except (RuntimeError, NotImplementedError, ValueError) as error:  # encrypted, or packed in ways zipfile lacks
        raise files.damaged(path, KIND, str(error)) from None


def _members(path: Path) -> Iterator[tuple[str, int, IO[bytes]]]:
    """Each regular file: name, size, contents."""
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            for entry in archive.infolist():
                if entry.is_dir():
                    continue
                if entry.external_attr >> 16 & 0o170000 not in (0, 0o100000):
                    raise files.damaged(path, KIND, f"{entry.filename!r} in it is no regular file")
                with archive.open(entry) as file:
                    yield entry.filename, entry.file_size, file
        return
    with tarfile.open(path) as archive:
        for member in archive:
            if member.isdir():
                continue
            contents = archive.extractfile(member) if member.isreg() else None
            if contents is None:
                raise files.damaged(path, KIND, f"{member.name!r} in it is no regular file")
            yield member.name, member.size, contents


def _inside(path: Path, name: str) -> Path:
    parts = PurePosixPath(name.replace("\\", "/"))
    if parts.is_absolute() or ".." in parts.parts or not parts.parts or ":" in name or "\0" in name:
        raise InputError(f"the archive {str(path)!r} has a path outside its folder, {name!r}; do not trust it")
    return Path(*parts.parts)
