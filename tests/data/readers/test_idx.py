"""IDX files are read as they are, and refused if they are not what they say."""

import gzip
import struct
from pathlib import Path

import numpy as np
import pytest

from bespokefl.core.errors import InputError
from bespokefl.data.readers import files, idx

CODES = {"u1": 0x08, "i1": 0x09, "i2": 0x0B, "i4": 0x0C, "f4": 0x0D, "f8": 0x0E}


def encoded(array: np.ndarray) -> bytes:
    code = CODES[array.dtype.str[1:]]
    header = struct.pack(f">BBBB{array.ndim}I", 0, 0, code, array.ndim, *array.shape)
    return header + array.astype(array.dtype.newbyteorder(">")).tobytes()


def write_set(
    folder: Path, prefix: str = "", test: str = "t10k", ending: str = "-idx{}-ubyte"
) -> dict[str, np.ndarray]:
    """Five examples to train with, three for test, of 2 × 3 pixels."""
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(0)
    made = {
        "train-images": rng.integers(0, 256, (5, 2, 3)).astype(np.uint8),
        "train-labels": np.array([0, 1, 2, 1, 0], dtype=np.uint8),
        f"{test}-images": rng.integers(0, 256, (3, 2, 3)).astype(np.uint8),
        f"{test}-labels": np.array([2, 2, 1], dtype=np.uint8),
    }
    for name, array in made.items():
        (folder / f"{prefix}{name}{ending.format(array.ndim)}").write_bytes(encoded(array))
    return made


@pytest.mark.parametrize("kind", CODES)
@pytest.mark.parametrize("shape", [(7,), (2, 3), (2, 3, 4)])
@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_every_type(tmp_path: Path, kind: str, shape: tuple[int, ...], pack: type[bytes]) -> None:
    array = (np.arange(np.prod(shape)).reshape(shape) * 5).astype(kind)
    (tmp_path / "a").write_bytes(pack(encoded(array)))
    found = idx.read(tmp_path / "a")
    assert found.dtype == array.dtype
    assert np.array_equal(found, array)


@pytest.mark.parametrize("test", ["t10k", "test"])
@pytest.mark.parametrize("ending", ["-idx{}-ubyte", ".idx{}-ubyte"])
@pytest.mark.parametrize("below", ["", "package/data"])
def test_a_set_is_pooled(tmp_path: Path, test: str, ending: str, below: str) -> None:
    made = write_set(tmp_path / below, test=test, ending=ending)
    found = idx.read_directory(tmp_path)
    assert found is not None
    assert found["x"].shape == (8, 1, 2, 3)
    assert np.array_equal(found["x"][:5, 0], made["train-images"])
    assert np.array_equal(found["x"][5:, 0], made[f"{test}-images"])
    assert found["y"].tolist() == [0, 1, 2, 1, 0, 2, 2, 1]
    assert found["test"].tolist() == [False] * 5 + [True] * 3


def test_one_set_of_several(tmp_path: Path) -> None:
    write_set(tmp_path, "emnist-letters-", "test")
    made = write_set(tmp_path, "emnist-digits-", "test")
    sentence = "several data sets, whose names start with 'emnist-digits-', 'emnist-letters-'"
    with pytest.raises(InputError, match=sentence):
        idx.read_directory(tmp_path)
    found = idx.read_directory(tmp_path, prefix="emnist-digits-")
    assert found is not None
    assert np.array_equal(found["x"][:5, 0], made["train-images"])
    assert idx.read_directory(tmp_path, prefix="emnist-balanced-") is None


def test_nothing_there(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("idx")
    assert idx.read_directory(tmp_path) is None


def test_a_file_is_missing(tmp_path: Path) -> None:
    write_set(tmp_path)
    (tmp_path / "t10k-labels-idx1-ubyte").unlink()
    with pytest.raises(InputError, match="not the test labels"):
        idx.read_directory(tmp_path)


def test_labels_do_not_match(tmp_path: Path) -> None:
    write_set(tmp_path)
    (tmp_path / "train-labels-idx1-ubyte").write_bytes(encoded(np.zeros(4, dtype=np.uint8)))
    with pytest.raises(InputError, match=r"a label for each, got shapes \(5, 2, 3\) and \(4,\)"):
        idx.read_directory(tmp_path)


WHOLE = encoded(np.arange(60, dtype=np.uint8).reshape(5, 4, 3))


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"", "starts with b''"),
        (b"GIF89a", "starts with b'GIF8'"),
        (b"\0\0\x07\x01\0\0\0\0", "starts with"),
        (WHOLE[:10], "ends within its header"),
        (WHOLE[:-1], r"should hold 60 bytes for shape \(5, 4, 3\), but has only 59"),
        (WHOLE + b"x", "but has more"),
        (gzip.compress(WHOLE, mtime=0)[:-9], "end-of-stream"),
        (gzip.compress(WHOLE, mtime=0)[:-8] + b"\0" * 8, "CRC"),
        (gzip.compress(WHOLE, mtime=0)[:20], "cannot read"),
        (b"\x1f\x8b what", "cannot read"),
        (struct.pack(">BBBB4I", 0, 0, 8, 4, *[2**32 - 1] * 4), "its header declares"),
    ],
)
def test_damage(tmp_path: Path, content: bytes, sentence: str) -> None:
    path = tmp_path / "train-images-idx3-ubyte.gz"
    path.write_bytes(content)
    with pytest.raises(InputError, match=sentence) as error:
        idx.read(path)
    assert str(path) in str(error.value)
    assert "\n" not in str(error.value)


def test_a_bomb_is_not_unpacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A small file that unpacks to a lot is read no further than its header promises."""
    array = np.zeros(100, dtype=np.uint8)
    (tmp_path / "a").write_bytes(gzip.compress(encoded(array) + bytes(10**7)))
    with pytest.raises(InputError, match="but has more"):
        idx.read(tmp_path / "a")
    monkeypatch.setattr(files, "LIMIT", 99)
    with pytest.raises(InputError, match="its header declares 100 bytes"):
        idx.read(tmp_path / "a")
