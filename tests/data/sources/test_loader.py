"""Data are found by name or in a file of arrays."""

import zipfile
from pathlib import Path

import numpy as np
import pytest
from sklearn.datasets import load_digits

from bespokefl.core.errors import InputError
from bespokefl.data import load, names
from tests.data import miniature
from tests.data.readers import test_cifar, test_leaf

X = np.arange(12, dtype=np.float32).reshape(6, 2)
Y = np.array([0, 1, 2, 0, 1, 2])


def test_digits() -> None:
    dataset = load("digits")
    pictures, labels = load_digits(return_X_y=True)
    assert "digits" in names()
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
        ("mnits", "unknown data 'mnits'; did you mean 'mnist'?"),
        ("none.npz", "no file 'none.npz'; give a path to an .npz file"),
        ("x", "unknown data 'x'; known: a path to a file or directory, cifar10, cifar100, "),
    ],
)
def test_unknown(source: str, sentence: str) -> None:
    with pytest.raises(InputError) as error:
        load(source)
    assert str(error.value).startswith(sentence)


def test_folder_of_idx_files(tmp_path: Path) -> None:
    arrays = miniature.arrays(tmp_path / "pictures")
    dataset = load(tmp_path / "pictures")
    assert (dataset.name, dataset.shape, dataset.classes) == ("pictures", (1, 2, 3), 3)
    assert np.array_equal(dataset.x.numpy(), arrays["x"] / np.float32(255))
    assert dataset.y.tolist() == arrays["y"].tolist()
    assert dataset.columns["test"].tolist() == [False] * 5 + [True] * 3


def test_folder_of_cifar_batches(tmp_path: Path) -> None:
    test_cifar.write_pickles(tmp_path / "cifar-10-batches-py")
    dataset = load(str(tmp_path / "cifar-10-batches-py"))
    assert (len(dataset), dataset.shape) == (18, (3, 32, 32))
    assert dataset.y.tolist() == test_cifar.Y.tolist()


def test_folder_of_leaf_files(tmp_path: Path) -> None:
    test_leaf.write(tmp_path / "train" / "a.json", {"ada": ([[1, 2], [3, 4]], [0, 1]), "bob": ([[5, 6]], [1])})
    dataset = load(tmp_path)
    assert dataset.x.tolist() == [[1, 2], [3, 4], [5, 6]]
    assert dataset.client is not None
    assert dataset.client.tolist() == ["ada", "ada", "bob"]


def test_folder_of_something_else(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="must hold IDX files, CIFAR batches"):
        load(tmp_path)


def test_tables(tmp_path: Path) -> None:
    for name in ("ada", "bob"):
        (tmp_path / "clients" / name).mkdir(parents=True)
        (tmp_path / "clients" / name / "a.csv").write_text("height,y\n1.5,0\n2.5,1\n3,1\n")
    assert load(tmp_path / "clients" / "ada" / "a.csv").x.tolist() == [[1.5], [2.5], [3]]
    assert len(load(tmp_path / "clients")) == 6


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
