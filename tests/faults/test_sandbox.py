"""The sandbox detects everything that a reader must not do."""

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest

from bespokefl.core.errors import InputError
from tests import sandbox


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "sandbox" / "above" / "tried" / "file"
    path.parent.mkdir(parents=True)
    path.write_bytes(b"content")
    return path


def answer(reader: Callable[[Path], object], file: Path, out: Path | None = None) -> object:
    return sandbox.answer(reader, file, file.parents[2], out=out)


def made_and_removed(path: Path) -> None:
    (path.parent / "folder").mkdir()
    (path.parent / "folder").rmdir()


def in_a_thread(path: Path) -> None:
    thread = threading.Thread(target=(path.parents[3] / "far").write_text, args=("x",))
    thread.start()
    thread.join()


def refused(path: Path) -> None:
    (path.parents[1] / "outside").write_text("x")
    raise InputError("it is damaged")


READERS: dict[str, Callable[[Path], object]] = {
    "beside it": lambda path: (path.parent / "more").write_text("x"),
    "above": lambda path: (path.parent / ".." / "outside").write_text("x"),
    "above, and a sentence": refused,
    "further up": lambda path: (path.parent / ".." / ".." / "outside").write_text("x"),
    "outside the sandbox": lambda path: (path.parents[3] / "x").write_text("x"),
    "for temporary files": lambda path: tempfile.TemporaryFile().close(),
    "itself": lambda path: path.write_text("x"),
    "without opening it": lambda path: os.truncate(path, 0),
    "another time": lambda path: os.utime(path, (1, 1)),
    "a folder for a moment": made_and_removed,
    "a new name": lambda path: path.rename(path.parent / "renamed"),
    "away": lambda path: path.unlink(),
    "a link": lambda path: (path.parents[3] / "link").symlink_to(path),
    "a copy": lambda path: shutil.copy(path, path.parents[3] / "copy"),
    "in a thread": in_a_thread,
    "a process": lambda path: subprocess.run([sys.executable, "-c", ""], check=True),
    "a shell": lambda path: os.system("true"),
}


@pytest.mark.parametrize("name", READERS)
def test_writes_are_detected(name: str, file: Path) -> None:
    with pytest.raises(AssertionError, match="reading it"):
        answer(READERS[name], file)


def test_reading_is_allowed(file: Path) -> None:
    assert answer(Path.read_bytes, file) == b"content"
    with pytest.raises(InputError, match="no"):
        answer(lambda path: (_ for _ in ()).throw(InputError("no")), file)
    (file.parents[3] / "later").write_text("x")  # no longer observed


def test_only_the_output_directory_may_be_written(file: Path) -> None:
    out = file.parent / "out"
    out.mkdir()
    answer(lambda path: ((out / "deep").mkdir(), (out / "deep" / "one").write_text("x")), file, out)
    with pytest.raises(AssertionError, match="outside"):
        answer(lambda path: (out / ".." / "outside").write_text("x"), file, out)
    (out / "link").symlink_to(file.parents[3])
    with pytest.raises(AssertionError, match="through"):
        answer(lambda path: (out / "link" / "through").write_text("x"), file, out)


def test_warnings_are_detected(file: Path) -> None:
    with pytest.raises(AssertionError, match="let a library warn: old"):
        answer(lambda path: warnings.warn("old", DeprecationWarning, stacklevel=1), file)


def forever(path: Path) -> None:
    while True:
        pass


def forever_and_careless(path: Path) -> None:
    while True:
        with contextlib.suppress(Exception):
            time.sleep(1)


def late_and_silent(path: Path) -> None:
    with contextlib.suppress(BaseException):
        time.sleep(5)


@pytest.mark.parametrize("reader", [forever, forever_and_careless, late_and_silent])
def test_hangs_are_detected(reader: Callable[[Path], None], file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox, "SECONDS", 0.1)
    with pytest.raises(sandbox.NoAnswer, match=r"no answer in 0\.1 s to 7 bytes: b'content'"):
        answer(reader, file)
