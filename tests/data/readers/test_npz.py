"""Arrays in .npz files, also as training and test pictures."""

import os
import zipfile
from pathlib import Path

import numpy as np
import pytest

from bespokefl.core.errors import InputError
from bespokefl.data.readers import files, npz


def test_some_or_all(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=[1, 2], y=[3], other=["a"])
    assert set(npz.read(tmp_path / "a.npz")) == {"x", "y", "other"}
    assert set(npz.read(tmp_path / "a.npz", ("x", "client"))) == {"x"}


@pytest.mark.parametrize("shape", [(28, 28), (1, 28, 28), (28, 28, 1), (32, 32, 3), (3, 32, 32)])
def test_pictures(tmp_path: Path, shape: tuple[int, ...]) -> None:
    """As (channels, height, width), however they lie in the file."""
    x = np.random.default_rng(0).integers(0, 256, (5, *shape)).astype(np.uint8)
    y = np.arange(5).reshape(5, 1)
    np.savez(tmp_path / "a.npz", x_train=x[:3], y_train=y[:3], x_test=x[3:], y_test=y[3:])
    found = npz.read_parts(tmp_path / "a.npz")
    channels, side = (1, 28) if 28 in shape else (3, 32)
    assert found["x"].shape == (5, channels, side, side)
    plane = found["x"][4, 0]
    assert np.array_equal(plane, x[4] if len(shape) == 2 else x[4, 0] if shape[0] == channels else x[4, :, :, 0])
    assert found["y"].tolist() == [0, 1, 2, 3, 4]
    assert found["test"].tolist() == [False] * 3 + [True] * 2


def test_other_arrays(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=[1])
    assert npz.read_parts(tmp_path / "a.npz") is None
    np.savez(tmp_path / "a.npz", x_train=np.zeros((2, 4, 4)), y_train=[0, 1], x_test=np.zeros((1, 4, 4)))
    with pytest.raises(InputError, match="but has no y_test"):
        npz.read_parts(tmp_path / "a.npz")
    np.savez(tmp_path / "a.npz", x_train=np.zeros((2, 4, 4)), y_train=[0], x_test=np.zeros((1, 4, 4)), y_test=[0])
    with pytest.raises(InputError, match="a label for each"):
        npz.read_parts(tmp_path / "a.npz")


def test_a_bomb_is_not_unpacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    np.savez_compressed(tmp_path / "a.npz", x=np.zeros(10**6))
    assert (tmp_path / "a.npz").stat().st_size < 10_000
    monkeypatch.setattr(os, "sysconf", {"SC_PAGE_SIZE": 4096, "SC_PHYS_PAGES": 1000}.__getitem__)
    monkeypatch.setattr(zipfile.ZipFile, "open", None)  # it is refused before anything is unpacked
    with pytest.raises(InputError, match="more than this machine has in memory"):
        npz.read(tmp_path / "a.npz", ("x",))


def member(name: str, content: bytes, path: Path) -> Path:
    """A file with the array x and another member."""
    np.savez(path, x=np.arange(4.0))
    with zipfile.ZipFile(path, "a") as file:
        file.writestr(name, content)
    return path


@pytest.mark.filterwarnings("ignore:Duplicate name")
@pytest.mark.parametrize("name", ["notes.txt", "x", "__MACOSX/._x.npy~", "../evil", "x.npy"])
def test_foreign_members(name: str, tmp_path: Path) -> None:
    path = member(name, b"anything", tmp_path / "a.npz")
    with pytest.raises(InputError, match=r"that is no array; save it with np.savez|two arrays of one name"):
        npz.read(path)


def header(text: str) -> bytes:
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text.encode()


@pytest.mark.parametrize(
    "content",
    [
        header("{'descr': '<f8', 'fortran_order': False, 'shape': (10000000000000,), }") + bytes(8),
        header("{'descr': '<f8', 'fortran_order': False, 'shape': (-1,), }") + bytes(8),
        header("{'descr': '<f8', 'fortran_order': False, 'shape': (2,), }") + bytes(8),
        header("{'descr': '<f8', 'fortran_order': False, 'shape': (1,), }") + bytes(16),
        header("{'descr': '|O', 'fortran_order': False, 'shape': (1,), }") + bytes(8),
        header("{'descr': 5}"),
        header("["),
        b"\x93NUMPY\x09\x00",
        b"",
    ],
)
def test_broken_headers(content: bytes, tmp_path: Path) -> None:
    path = member("y.npy", content, tmp_path / "a.npz")
    with pytest.raises(InputError, match=r"cannot read .* as an .npz file"):
        npz.read(path)
    assert npz.read(path, ("x",))["x"].tolist() == [0, 1, 2, 3]  # what is not asked for is not read


def test_a_small_file_that_unpacks_to_very_much(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    np.savez_compressed(tmp_path / "a.npz", x=np.zeros(1_000_000, dtype=np.uint8))
    assert len(npz.read(tmp_path / "a.npz")["x"]) == 1_000_000
    monkeypatch.setenv(files.LIMIT_VARIABLE, "1000")
    with pytest.raises(InputError, match=r"unpacks to 1,000,1\d\d bytes; if you trust it, .*BESPOKE_MAX_UNPACKED"):
        npz.read(tmp_path / "a.npz")
    noise = np.random.default_rng(0).integers(0, 256, 10_000).astype(np.uint8)
    np.savez(tmp_path / "a.npz", x=noise)  # as large as it is
    assert len(npz.read(tmp_path / "a.npz")["x"]) == 10_000
    monkeypatch.setenv(files.LIMIT_VARIABLE, "4G")
    with pytest.raises(InputError, match="must be a number of bytes, got '4G'"):
        files.limit()
