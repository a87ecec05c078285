"""What the catalogue says of each set is true, as far as can be told without the set."""

import re
from pathlib import Path

import numpy as np
import pytest

from bespokefl.core.errors import InputError
from bespokefl.data.sources import catalogue
from bespokefl.data.sources.catalogue import CATALOGUE
from tests.data import miniature
from tests.data.readers import test_idx


@pytest.mark.parametrize("name", CATALOGUE)
def test_every_set_is_described(name: str) -> None:
    named = CATALOGUE[name]
    assert named.name == name
    assert re.fullmatch(r"[a-z0-9-]+", name)
    assert named.description.endswith(".")
    assert named.licence
    assert named.citation
    assert len(set(named.label_names)) == named.classes > 1
    assert named.built_in or (named.reader and named.how_to_get and named.expected_files)
    assert named.stored in CATALOGUE
    assert named.hash is None or re.fullmatch(r"[0-9a-f]{64}", named.hash)


def test_counts_and_names_of_classes() -> None:
    classes = {name: named.classes for name, named in CATALOGUE.items()}
    assert classes == {
        "digits": 10,
        "mnist": 10,
        "fashion-mnist": 10,
        "cifar10": 10,
        "cifar100": 100,
        "cifar100-coarse": 20,
        "emnist-balanced": 47,
        "emnist-byclass": 62,
        "emnist-bymerge": 47,
        "emnist-letters": 26,
        "emnist-digits": 10,
        "femnist": 62,
        "sent140": 2,
    }
    assert sorted(CATALOGUE["cifar100"].label_names) == list(CATALOGUE["cifar100"].label_names)
    # By NIST's own mapping, class 36 of the balanced set is a, 46 is t.
    assert [CATALOGUE["emnist-balanced"].label_names[at] for at in (9, 10, 35, 36, 46)] == ["9", "A", "Z", "a", "t"]


def test_no_host_names() -> None:
    """Packages are asked for by name; which host has them is for the client to know."""
    folder = Path(catalogue.__file__).parent
    for name in ("catalogue.py", "catalogue.toml", "fetching.py", "hub.py", "npm.py"):
        assert not re.search(r"https?:|\.org\b|\.com\b|\.io\b|\.co\b|\.net\b", (folder / name).read_text()), name


def test_unknown() -> None:
    with pytest.raises(
        InputError, match=re.escape("unknown data 'mnits'; did you mean 'mnist'? See \"bespoke data list\".")
    ):
        catalogue.find("mnits")


def test_labels_are_kept_in_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mini = miniature.named(tmp_path, monkeypatch)
    arrays = miniature.arrays(tmp_path / "files")
    kept, contents = catalogue.verify(mini, {**arrays, "y": arrays["y"].astype(np.int64)}, "there")
    assert kept["y"].dtype == np.uint8
    assert contents == mini.hash


@pytest.mark.parametrize(
    ("key", "value", "sentence"),
    [
        (
            "x",
            np.zeros((8, 1, 3, 2), dtype=np.uint8),
            r"expected images of shape \(1, 2, 3\), uint8, got \(1, 3, 2\)",
        ),
        ("x", np.zeros((8, 1, 2, 3), dtype=np.float32), "got .*float32"),
        ("y", np.full(8, 3), "labels from 0 to 2, got 3"),
        ("y", np.full(8, -1), "labels from 0 to 2"),
        ("test", np.arange(8) > 5, "5 training and 3 test examples, got 6 and 2"),
        ("x", np.zeros((8, 1, 2, 3), dtype=np.uint8), "content with sha256"),
    ],
)
def test_another_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, key: str, value: np.ndarray, sentence: str
) -> None:
    mini = miniature.named(tmp_path, monkeypatch)
    arrays = {**miniature.arrays(tmp_path / "files"), key: value}
    with pytest.raises(InputError, match=f"the data in there are not mini: .*{sentence}"):
        catalogue.verify(mini, arrays, "there")


def test_emnist_is_turned_upright(tmp_path: Path) -> None:
    """Its pictures are transposed, and its letters counted from 1."""
    made = test_idx.write_set(tmp_path, "emnist-letters-", "test")
    labels = np.array([1, 26, 3, 1, 2], dtype=np.uint8)
    (tmp_path / "emnist-letters-train-labels-idx1-ubyte").write_bytes(test_idx.encoded(labels))
    found = CATALOGUE["emnist-letters"].reader(tmp_path, lambda *_: None)
    assert found is not None
    assert np.array_equal(found["x"][0, 0], made["train-images"][0].T)
    assert found["y"].tolist() == [0, 25, 2, 0, 1, 1, 1, 0]
    assert CATALOGUE["emnist-digits"].reader(tmp_path, lambda *_: None) is None
