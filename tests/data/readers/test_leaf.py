"""LEAF's JSON folders: users become clients."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bespokefl.core.errors import InputError
from bespokefl.data.readers import leaf


def write(path: Path, clients: dict[str, tuple[list[Any], list[Any]]], **changes: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    whole = {
        "users": list(clients),
        "num_samples": [len(y) for _, y in clients.values()],
        "user_data": {name: {"x": x, "y": y} for name, (x, y) in clients.items()},
    }
    path.write_text(json.dumps({**whole, **changes}))


PIXELS = np.random.default_rng(0).integers(0, 256, (4, 784))
PICTURES = [[value / 255 for value in row] for row in PIXELS.tolist()]


def test_pictures_by_writer(tmp_path: Path) -> None:
    """Shares of 255 become the bytes they were, whatever way they are rounded in the file."""
    rounded = [[round(value, 6) for value in row] for row in PICTURES[2:]]
    write(tmp_path / "train" / "all_data_0.json", {"f1": (PICTURES[:1], [61]), "f0": (PICTURES[1:2], [0])})
    write(tmp_path / "train" / "all_data_1.json", {"f2": (rounded[:1], [3])})
    write(tmp_path / "test" / "all_data_0.json", {"f1": (rounded[1:], [9]), "nobody": ([], [])})
    found = leaf.read_femnist(tmp_path)
    assert np.array_equal(found["x"].reshape(4, 784), PIXELS)
    assert found["x"].shape == (4, 1, 28, 28)
    assert found["y"].tolist() == [61, 0, 3, 9]
    assert found["client"].tolist() == ["f1", "f0", "f2", "f1"]
    assert found["test"].tolist() == [False, False, False, True]


@pytest.mark.parametrize("place", [".", "all_data", "data/all_data"])
def test_without_parts(tmp_path: Path, place: str) -> None:
    write(tmp_path / place / "a.json", {"f1": (PICTURES, [1, 2, 3, 4])})
    found = leaf.read_directory(tmp_path)
    assert np.allclose(found["x"], PIXELS / 255)
    assert not found["test"].any()


def tweet(text: str) -> list[str]:
    return ["1467810369", "Mon Apr 06 22:19:45 PDT 2009", "NO_QUERY", "ada", text, "training"]


def test_tweets(tmp_path: Path) -> None:
    x = [tweet("so sad  today\n"), tweet("what a día"), "plain text"]
    write(tmp_path / "data" / "train" / "a.json", {"ada": (x[:2], [0, 4]), "bob": (x[2:], ["1"])})
    found = leaf.read_sent140(tmp_path)
    assert found["text_utf8"].tobytes().decode().split("\n") == ["so sad today", "what a día", "plain text"]
    assert found["y"].tolist() == [0, 1, 1]
    assert found["client"].tolist() == ["ada", "ada", "bob"]


def test_nothing_there(tmp_path: Path) -> None:
    (tmp_path / "split.json").write_text('{"format": 1}')
    assert leaf.read_directory(tmp_path) is None


GOOD = {"f1": (PICTURES[:2], [1, 2])}


@pytest.mark.parametrize(
    ("users", "changes", "sentence"),
    [
        (GOOD, {"users": "f1"}, "must have users"),
        (GOOD, {"users": [1]}, "must have users"),
        (GOOD, {"user_data": []}, "must have users"),
        (GOOD, {"users": ["f1", "f2"], "num_samples": None}, "user 'f2' must have lists x and y"),
        (GOOD, {"num_samples": [3]}, "has 2 examples, but num_samples is 3"),
        (GOOD, {"num_samples": [3, 4]}, "a number for each of users"),
        ({"f1": (PICTURES[:2], [1])}, {}, "lists x and y of the same length"),
        ({"f1": ([PICTURES[0], PICTURES[1][:-1]], [1, 2])}, {}, "lists of numbers, of one shape"),
        ({"f1": ([["a"] * 784], [1])}, {}, "lists of numbers"),
        ({"f1": ([[float("nan")] * 784], [1])}, {}, "finite"),
        ({"f1": ([[2.0] * 784], [1])}, {}, "28 × 28 numbers from 0 to 1"),
        ({"f1": ([[0.0] * 783], [1])}, {}, "28 × 28 numbers from 0 to 1"),
        ({"f1": (PICTURES[:1], ["a"])}, {}, "y of user 'f1' must be integers"),
        ({"f1": (PICTURES[:1], [-1])}, {}, "labels from 0"),
        ({"f1": ([], [])}, {}, "hold no examples"),
    ],
)
def test_something_else(tmp_path: Path, users: dict, changes: dict, sentence: str) -> None:
    write(tmp_path / "train" / "a.json", users, **changes)
    with pytest.raises(InputError, match=sentence) as error:
        leaf.read_femnist(tmp_path)
    assert "\n" not in str(error.value)


def test_shapes_differ_between_users(tmp_path: Path) -> None:
    write(tmp_path / "a.json", {"f1": ([[1, 2]], [0]), "f2": ([[1, 2, 3]], [0])})
    with pytest.raises(InputError, match=r"user 'f2' have shape \(3,\), others \(2,\)"):
        leaf.read_directory(tmp_path)


def test_tweets_that_are_none(tmp_path: Path) -> None:
    write(tmp_path / "a.json", {"ada": ([["1", "2"]], [0])})
    with pytest.raises(InputError, match="must have tweets"):
        leaf.read_sent140(tmp_path)


def test_cut_off(tmp_path: Path) -> None:
    write(tmp_path / "a.json", GOOD)
    whole = (tmp_path / "a.json").read_text()
    for content in (whole[:-1], whole[: len(whole) // 2], '{"users": ' + "[" * 100_000, '{"users": ["\\ud800"]}'):
        (tmp_path / "a.json").write_text(content)
        with pytest.raises(InputError, match="as a LEAF JSON file"):
            leaf.read_directory(tmp_path)
