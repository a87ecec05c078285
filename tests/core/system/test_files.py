"""A file is locked by one at a time, and what that means where there are no locks."""

import errno
import fcntl
import os
from pathlib import Path

import pytest

from bespokefl.core.system.files import locked


def test_one_at_a_time(tmp_path: Path) -> None:
    first = locked(tmp_path / "lock")
    assert first is not None and locked(tmp_path / "lock") is None
    os.close(first)
    again = locked(tmp_path / "lock")
    assert again is not None
    os.close(again)


def test_a_file_system_without_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def none(handle: int, how: int) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", none)
    with pytest.raises(OSError, match="No locks available"):
        locked(tmp_path / "lock")
    handle = locked(tmp_path / "lock", needed=False)
    assert handle is not None
    os.close(handle)
