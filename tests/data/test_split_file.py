"""A saved split gives the same clients again, and only for the data it was made for."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from bespokefl.core.errors import InputError
from bespokefl.data import Clients, Dataset, split_file
from bespokefl.data.clients import split_hash
from bespokefl.data.split_file import describe

X, Y = np.arange(60.0)[:, None], np.arange(60) % 3
DATASET = Dataset.from_arrays(X, Y, name="mine")


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    DATASET.split("classes(k=2)", clients=4, seed=5).save_split(tmp_path / "split.json")
    return tmp_path / "split.json"


def sentence(path: Path, dataset: Dataset = DATASET) -> str:
    with pytest.raises(InputError) as error:
        dataset.with_split(path)
    assert "\n" not in str(error.value)
    assert str(path) in str(error.value)
    return str(error.value)


def test_same_clients_again(saved: Path) -> None:
    clients = DATASET.split("classes(k=2)", clients=4, seed=5)
    again = Dataset.from_arrays(X, Y, name="renamed").with_split(saved)
    assert again.hash == clients.hash
    assert (again.names, again.split_name, again.seed, again.groups) == (clients.names, "classes(k=2)", 5, None)
    for part in ("train", "validation", "test"):
        for client in range(4):
            assert getattr(again, part).of(client).tolist() == getattr(clients, part).of(client).tolist()


def test_readable_by_other_tools(saved: Path) -> None:
    clients = DATASET.split("classes(k=2)", clients=4, seed=5)
    content = json.loads(saved.read_text())
    assert content["format"] == "bespoke split"
    assert (content["version"], content["data"], content["seed"]) == (2, "mine", 5)
    assert content["transforms"] is None
    assert content["fingerprint"] == DATASET.fingerprint
    assert content["hash"] == clients.hash
    assert content["names"] == ["0", "1", "2", "3"]
    assert content["train"][2] == clients.train.of(2).tolist()
    assert [len(one) for one in content["test"]] == clients.test.sizes.tolist()


def test_lists_are_written_some_at_a_time_as_all_at_once(
    saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clients = Clients.from_arrays(np.arange(20.0).reshape(10, 2), np.arange(10) % 2, np.array([0] * 4 + [1] * 5 + [2]))
    clients.save_split(tmp_path / "whole.json")
    monkeypatch.setattr(split_file, "AT_ONCE", 1)
    clients.save_split(tmp_path / "parts.json")
    assert (tmp_path / "parts.json").read_bytes() == (tmp_path / "whole.json").read_bytes()
    lines = (tmp_path / "whole.json").read_text().splitlines()
    train = [part.tolist() for part in (clients.train.of(k) for k in range(3))]
    assert lines[-4] == f'"train": {json.dumps(train, separators=(",", ":"))},' and lines[-1] == "}"


def test_names_and_groups_survive(tmp_path: Path) -> None:
    dataset = Dataset.from_arrays(X, Y, client=["Zoë", "a/b", "c\n"] * 20)
    clients = dataset.split("by_column")
    groups = (0, 1, 0)
    parts = (clients.train, clients.validation, clients.test)
    grouped = replace(clients, groups=groups, hash=split_hash(clients.fingerprint, clients.names, parts, groups))
    assert grouped.hash != clients.hash
    grouped.save_split(tmp_path / "split.json")
    again = dataset.with_split(tmp_path / "split.json")
    assert (again.names, again.groups, again.hash) == (clients.names, groups, grouped.hash)


def test_nothing_else_is_left_in_the_folder(saved: Path) -> None:
    DATASET.split("iid", clients=4).save_split(saved)
    assert list(saved.parent.iterdir()) == [saved]
    assert DATASET.with_split(saved).split_name == "iid"


def test_other_data(saved: Path) -> None:
    other = Dataset.from_arrays(X + 1, Y, name="other")
    said = sentence(saved, other)
    assert "was made for the data 'mine'" in said
    assert DATASET.fingerprint in said
    assert other.fingerprint in said


@pytest.mark.parametrize("part", ["train", "validation", "test"])
def test_a_changed_index(saved: Path, part: str) -> None:
    content = json.loads(saved.read_text())
    content[part][0][0] = (content[part][0][0] + 1) % 60
    saved.write_text(json.dumps(content))
    said = sentence(saved)
    assert "was changed after it was saved" in said
    assert content["hash"] in said
    assert len([word for word in said.replace(";", "").replace(",", "").split() if len(word) == 64]) == 2


def test_examples_moved_between_clients(saved: Path) -> None:
    """The indices end to end stay the same; only the border between two clients moves."""
    content = json.loads(saved.read_text())
    content["train"][1].insert(0, content["train"][0].pop())
    saved.write_text(json.dumps(content))
    assert "was changed after it was saved" in sentence(saved)


def test_a_changed_name_and_added_groups(saved: Path) -> None:
    for key, value in (("names", ["0", "1", "2", "x"]), ("groups", [0, 0, 1, 1])):
        content = json.loads(saved.read_text())
        saved_text = saved.read_text()
        content[key] = value
        saved.write_text(json.dumps(content))
        assert "was changed after it was saved" in sentence(saved)
        saved.write_text(saved_text)


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("format", "other", "is not a split file"),
        ("version", 3, "must be a split file of version 1 or 2, got 3"),
        ("transforms", [], "for each of 4 clients under 'transforms'"),
        ("transforms", [{}] * 4, "for each of 4 clients under 'transforms'"),
        ("transforms", [{"turns": 4, "labels": None}] * 4, "for each of 4 clients under 'transforms'"),
        ("transforms", [{"turns": True, "labels": None}] * 4, "for each of 4 clients under 'transforms'"),
        ("transforms", [{"turns": 0, "labels": [0, 1]}] * 4, "for each of 4 clients under 'transforms'"),
        ("transforms", [{"turns": 0, "labels": [0, 1, 1]}] * 4, "for each of 4 clients under 'transforms'"),
        ("transforms", [{"turns": 0, "labels": [0, 1, 2], "noise": 1}] * 4, "for each of 4 clients under 'transforms'"),
        ("names", None, "'names' is missing or wrong"),
        ("hash", 3, "'hash' is missing or wrong"),
        ("names", ["0", "0", "1", "2"], "must name each client once"),
        ("groups", [1], "must have one group for each client or null"),
        ("train", [[1], [2]], "must list examples 0 to 59 for each of 4 clients under 'train'"),
        ("train", [[1], [2], [3], [60]], "must list examples 0 to 59"),
        ("test", [[1], [2], [3], [-1]], "must list examples 0 to 59"),
        ("test", [[1], [2], [3], [1.0]], "must list examples 0 to 59"),
        ("test", [[1], [2], [3], 4], "must list examples 0 to 59"),
        ("test", None, "must list examples 0 to 59"),
    ],
)
def test_a_file_that_is_not_whole(saved: Path, key: str, value: object, expected: str) -> None:
    saved.write_text(json.dumps(json.loads(saved.read_text()) | {key: value}))
    assert expected in sentence(saved)


@pytest.mark.parametrize("content", ["", "[1, 2]", "{", "[" * 100_000, "\ud800".encode("utf-8", "surrogatepass")])
def test_no_split_file_at_all(tmp_path: Path, content: str | bytes) -> None:
    (tmp_path / "a.json").write_bytes(content if isinstance(content, bytes) else content.encode())
    assert "is not a split file" in sentence(tmp_path / "a.json")


def test_files_that_cannot_be_reached(tmp_path: Path) -> None:
    assert "cannot read the split" in sentence(tmp_path / "none.json")
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match="cannot write to "):
        DATASET.split("iid", clients=4).save_split(tmp_path / "file" / "split.json")
    (tmp_path / "file").unlink()
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "folder").mkdir()
    with pytest.raises(InputError, match=r"cannot write to .*folder.*: Is a directory"):
        DATASET.split("iid", clients=4).save_split(tmp_path / "folder")
    assert list(tmp_path.iterdir()) == [tmp_path / "folder"]


def test_given_sets_can_be_saved(tmp_path: Path) -> None:
    clients = Clients.from_sets([(X[:30], Y[:30]), (X[30:], Y[30:])])
    clients.save_split(tmp_path / "split.json")
    assert Dataset.from_arrays(X, Y).with_split(tmp_path / "split.json").hash == clients.hash


PICTURES = Dataset.from_arrays(
    np.arange(240.0).reshape(60, 1, 2, 2), Y, name="pictures", columns={"test": np.arange(60) % 4 == 3}
)
TRANSFORMED = "dirichlet(8) + rotation(groups=2) + permuted_labels(groups=3) + official_test"


class TestTransforms:
    def test_same_clients_again(self, tmp_path: Path) -> None:
        clients = PICTURES.split(TRANSFORMED, clients=6, seed=1)
        clients.save_split(tmp_path / "split.json")
        again = PICTURES.with_split(tmp_path / "split.json")
        assert again.hash == clients.hash
        assert (again.transforms, again.groups, again.split_name) == (
            clients.transforms,
            clients.groups,
            clients.split_name,
        )
        assert again.x.equal(clients.x)
        assert again.y.equal(clients.y)
        for part in ("train", "validation", "test"):
            assert getattr(again, part).indices.equal(getattr(clients, part).indices)

    def test_other_tools_need_the_original_data_and_the_file_only(self, tmp_path: Path) -> None:
        clients = PICTURES.split(TRANSFORMED, clients=6, seed=1)
        clients.save_split(tmp_path / "split.json")
        content = json.loads((tmp_path / "split.json").read_text())
        x, y = PICTURES.x.numpy(), PICTURES.y.numpy()
        for part in ("train", "validation", "test"):
            for client, (examples, transform) in enumerate(zip(content[part], content["transforms"], strict=True)):
                seen = getattr(clients, part).of(client)
                turned = np.rot90(x[examples], transform["turns"], axes=(-2, -1))
                assert np.array_equal(clients.x[seen].numpy(), turned)
                assert clients.y[seen].tolist() == [transform["labels"][label] for label in y[examples]]

    @pytest.mark.parametrize("change", [{"turns": 1, "labels": None}, {"turns": 0, "labels": [0, 1, 2]}])
    def test_a_changed_transform(self, tmp_path: Path, change: dict[str, object]) -> None:
        path = tmp_path / "split.json"
        PICTURES.split("iid + rotation(groups=2)", clients=2).save_split(path)
        content = json.loads(path.read_text())
        content["transforms"][0] = change
        path.write_text(json.dumps(content))
        assert "was changed after it was saved" in sentence(path, PICTURES)

    def test_transforms_taken_away_or_added(self, saved: Path) -> None:
        content = json.loads(saved.read_text()) | {"transforms": [{"turns": 0, "labels": None}] * 4}
        saved.write_text(json.dumps(content))
        assert "was changed after it was saved" in sentence(saved)


def test_version_one_is_read(saved: Path) -> None:
    content = json.loads(saved.read_text()) | {"version": 1}
    del content["transforms"]
    saved.write_text(json.dumps(content))
    assert DATASET.with_split(saved).hash == DATASET.split("classes(k=2)", clients=4, seed=5).hash


def test_what_a_file_is_about(saved: Path, tmp_path: Path) -> None:
    assert describe(saved) == ("mine", "classes(k=2)")
    (tmp_path / "b.json").write_text('{"format": "bespoke split", "version": 2}')
    with pytest.raises(InputError, match="is not a complete split file"):
        describe(tmp_path / "b.json")
