"""CIFAR in all the forms it is handed round in gives the same arrays."""

import json
import pickle
from pathlib import Path

import numpy as np
import pytest

from bespokefl.core.errors import InputError
from bespokefl.data.readers import cifar
from tests.data.readers import test_png

X = np.random.default_rng(0).integers(0, 256, (6 * 3, 3, 32, 32)).astype(np.uint8)
Y = np.arange(18) % 10
COARSE = np.arange(18) % 4


def write_pickles(folder: Path) -> None:
    folder.mkdir(parents=True)
    for at, name in enumerate(cifar.NAMES_10):
        part = slice(3 * at, 3 * at + 3)
        batch = {
            "batch_label": name,
            "labels": Y[part].tolist(),
            "data": X[part].reshape(3, -1),
            "filenames": ["a"] * 3,
        }
        (folder / name).write_bytes(pickle.dumps(batch, 2))


def write_binary(folder: Path) -> None:
    folder.mkdir(parents=True)
    rows = np.concatenate([Y[:, None].astype(np.uint8), X.reshape(18, -1)], axis=1)
    for at, name in enumerate(cifar.NAMES_10):
        (folder / f"{name}.bin").write_bytes(rows[3 * at : 3 * at + 3].tobytes())


def write_sheets(folder: Path) -> None:
    folder.mkdir(parents=True)
    for at, name in enumerate(cifar.NAMES_10):
        sheet = X[3 * at : 3 * at + 3].transpose(0, 2, 3, 1).reshape(3, 1024, 3)
        (folder / f"{name}.png").write_bytes(test_png.encoded(sheet, [1, 4, 3]))
    (folder / "train_lables.json").write_text(json.dumps(Y[:15].tolist()))
    (folder / "test_labels.json").write_text(json.dumps(Y[15:].tolist()))


def write_hundred(folder: Path) -> None:
    folder.mkdir(parents=True)
    for name, part in (("train", slice(0, 12)), ("test", slice(12, 18))):
        batch = {b"fine_labels": Y[part].tolist(), b"coarse_labels": COARSE[part].tolist()}
        (folder / name).write_bytes(pickle.dumps({**batch, b"data": X[part].reshape(-1, 3072)}, 2))


def write_hundred_binary(folder: Path) -> None:
    folder.mkdir(parents=True)
    rows = np.concatenate([COARSE[:, None], Y[:, None], X.reshape(18, -1)], axis=1).astype(np.uint8)
    (folder / "train.bin").write_bytes(rows[:12].tobytes())
    (folder / "test.bin").write_bytes(rows[12:].tobytes())


@pytest.mark.parametrize("write", [write_pickles, write_binary, write_sheets])
def test_ten(tmp_path: Path, write: object) -> None:
    write(tmp_path / "cifar-10-batches-py")
    for found in (cifar.read_cifar10(tmp_path), cifar.read_directory(tmp_path)):
        assert np.array_equal(found["x"], X)
        assert np.array_equal(found["y"], Y)
        assert found["test"].tolist() == [False] * 15 + [True] * 3
    assert cifar.read_cifar100(tmp_path) is None


@pytest.mark.parametrize("write", [write_hundred, write_hundred_binary])
def test_hundred(tmp_path: Path, write: object) -> None:
    write(tmp_path / "cifar-100")
    for found in (cifar.read_cifar100(tmp_path), cifar.read_directory(tmp_path)):
        assert np.array_equal(found["x"], X)
        assert np.array_equal(found["y"], Y)
        assert np.array_equal(found["superclass"], COARSE)
        assert found["test"].tolist() == [False] * 12 + [True] * 6
    assert cifar.read_cifar10(tmp_path) is None


def test_nothing_there(tmp_path: Path) -> None:
    assert cifar.read_directory(tmp_path) is None
    (tmp_path / "train").mkdir()  # a folder is no batch
    assert cifar.read_directory(tmp_path) is None


def test_a_batch_is_missing(tmp_path: Path) -> None:
    write_pickles(tmp_path / "a")
    (tmp_path / "a" / "data_batch_3").unlink()
    with pytest.raises(InputError, match="has data_batch_1, but no data_batch_3"):
        cifar.read_cifar10(tmp_path)


@pytest.mark.parametrize(
    ("batch", "sentence"),
    [
        ({"labels": [1, 2]}, "no array data"),
        ({"labels": [1, 2], "data": np.zeros((2, 3072))}, "no array data"),
        ({"labels": [1, 2], "data": np.zeros((2, 3071), dtype=np.uint8)}, "no array data"),
        ({"labels": [1], "data": np.zeros((2, 3072), dtype=np.uint8)}, "labels must be a list of 2 integers"),
        ({"labels": [1, "2"], "data": np.zeros((2, 3072), dtype=np.uint8)}, "list of 2 integers"),
        ({"labels": [1, -2], "data": np.zeros((2, 3072), dtype=np.uint8)}, "from 0 to 255"),
        ({"data": np.zeros((2, 3072), dtype=np.uint8)}, "labels must be a list"),
    ],
)
def test_a_pickle_of_something_else(tmp_path: Path, batch: dict, sentence: str) -> None:
    write_pickles(tmp_path / "a")
    (tmp_path / "a" / "data_batch_2").write_bytes(pickle.dumps(batch, 2))
    with pytest.raises(InputError, match=sentence):
        cifar.read_cifar10(tmp_path)


def test_a_binary_file_is_cut_off(tmp_path: Path) -> None:
    write_binary(tmp_path / "a")
    path = tmp_path / "a" / "test_batch.bin"
    for content in (path.read_bytes()[:-1], b""):
        path.write_bytes(content)
        with pytest.raises(InputError, match="not a multiple of 3073"):
            cifar.read_cifar10(tmp_path)


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ("[1, 2]", "hold 15 and 3 images, but there are 2 and 3 labels"),
        ("[1, 2", "as a JSON list of labels"),
        ('{"a": 1}', "must be a list"),
        ("[" * 100_000, "as a JSON list of labels"),
        ('["1"]', "integers"),
    ],
)
def test_labels_of_sheets(tmp_path: Path, content: str, sentence: str) -> None:
    write_sheets(tmp_path / "a")
    (tmp_path / "a" / "train_lables.json").write_text(content)
    with pytest.raises(InputError, match=sentence):
        cifar.read_cifar10(tmp_path)


def test_sheets_without_labels_or_of_another_size(tmp_path: Path) -> None:
    write_sheets(tmp_path / "a")
    (tmp_path / "a" / "test_batch.png").write_bytes(test_png.WHOLE)
    with pytest.raises(InputError, match=r"it has shape \(6, 5, 3\), not rows of 1024 pixels"):
        cifar.read_cifar10(tmp_path)
    write_sheets(tmp_path / "b")
    (tmp_path / "b" / "test_labels.json").unlink()
    with pytest.raises(InputError, match=r"no test_labels\.json"):
        cifar.read_cifar10(tmp_path / "b")
