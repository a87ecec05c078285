"""Data are found by name or in a file of arrays."""

import zipfile
from pathlib import Path

import numpy as np
import pytest
from sklearn.datasets import load_digits

from bespokefl.core.errors import InputError
from bespokefl.data import load, names

X = np.arange(12, dtype=np.float32).reshape(6, 2)
Y = np.array([0, 1, 2, 0, 1, 2])


def test_digits() -> None:
    dataset = load("digits")
    pictures, labels = load_digits(return_X_y=True)
    assert names() == ("digits",)
    assert dataset.name == "digits"
    assert dataset.shape == (1, 8, 8)
    assert (float(dataset.x.min()), float(dataset.x.max())) == (0, 1)
    assert np.array_equal(dataset.x.numpy().reshape(-1, 64) * 16, pictures)
    assert np.array_equal(dataset.y.numpy(), labels)


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_file_of_arrays(tmp_path: Path, save: object) -> None:
    save(tmp_path / "mine.npz", x=X, y=Y, client=["a", "b"] * 3, other=[1])
    for path in (tmp_path / "mine.npz", str(tmp_path / "mine.npz")):
        dataset = load(path)
        assert dataset.name == "mine"
        assert dataset.x.tolist() == X.tolist()
        assert dataset.split("by_column").names == ("a", "b")


def test_clients_are_not_needed(tmp_path: Path) -> None:
    np.savez(tmp_path / "mine.npz", x=X, y=Y / 2)
    dataset = load(tmp_path / "mine.npz")
    assert dataset.client is None
    assert dataset.classes is None


@pytest.mark.parametrize(
    ("source", "sentence"),
    [
        ("digts", "unknown data 'digts'; did you mean 'digits'?"),
        ("mnist", "unknown data 'mnist'; known: a path to an .npz file, digits."),
        ("none.npz", "no file 'none.npz'; give a path to an .npz file or one of: digits"),
    ],
)
def test_unknown(source: str, sentence: str) -> None:
    with pytest.raises(InputError) as error:
        load(source)
    assert str(error.value) == sentence


class TestUnreadable:
    def sentence(self, path: Path) -> str:
        with pytest.raises(InputError) as error:
            load(path)
        assert str(path) in str(error.value) or "x" in str(error.value)
        assert "\n" not in str(error.value)
        return str(error.value)

    def test_missing_array(self, tmp_path: Path) -> None:
        np.savez(tmp_path / "a.npz", x=X, labels=Y)
        assert "must have arrays x and y, but has no y; save it" in self.sentence(tmp_path / "a.npz")

    def test_no_arrays_at_all(self, tmp_path: Path) -> None:
        np.savez(tmp_path / "a.npz")
        assert "but has no x and no y" in self.sentence(tmp_path / "a.npz")

    def test_objects(self, tmp_path: Path) -> None:
        np.savez(tmp_path / "a.npz", x=np.array([1, "a", None], dtype=object), y=Y[:3])
        assert "must hold plain arrays" in self.sentence(tmp_path / "a.npz")

    def test_one_array_alone(self, tmp_path: Path) -> None:
        with (tmp_path / "a.npz").open("wb") as file:
            np.save(file, X)
        assert "got a single array" in self.sentence(tmp_path / "a.npz")

    @pytest.mark.parametrize("content", [b"", b"hello, this is text", b"PK\x03\x04 cut off", b"\x93NUMPY"])
    def test_something_else(self, tmp_path: Path, content: bytes) -> None:
        (tmp_path / "a.npz").write_bytes(content)
        assert "npz" in self.sentence(tmp_path / "a.npz")

    @pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
    @pytest.mark.parametrize("byte", [b"\x00", b"\xff"])
    @pytest.mark.parametrize("start", [0, 40, 400])
    def test_damage(self, tmp_path: Path, method: int, byte: bytes, start: int) -> None:
        path = tmp_path / "a.npz"
        with zipfile.ZipFile(path, "w", method) as file:
            for key, array in (("x", np.random.default_rng(0).random((1000, 4))), ("y", np.arange(1000) % 2)):
                with file.open(f"{key}.npy", "w") as member:
                    np.save(member, array)
        assert load(path).shape == (4,)
        content = path.read_bytes()
        first = content.index(b"x.npy") + len("x.npy") + start  # inside the member, after its header
        path.write_bytes(content[:first] + byte * 60 + content[first + 60 :])
        assert "save it with np.savez" in self.sentence(path)

    def test_folder(self, tmp_path: Path) -> None:
        (tmp_path / "a.npz").mkdir()
        assert "cannot read" in self.sentence(tmp_path / "a.npz")

    def test_values_are_checked_too(self, tmp_path: Path) -> None:
        np.savez(tmp_path / "a.npz", x=X * np.nan, y=Y)
        assert "x must be finite" in self.sentence(tmp_path / "a.npz")
