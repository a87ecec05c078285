"""Data files of experiments: each layout becomes a data set, and what is missing or wrong is one sentence."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from bespokefl_evidence.studies.files import by_execution, is_file, load_file

from bespokefl.core.errors import InputError
from bespokefl.data.dataset import Dataset

GENERATOR = np.random.default_rng(0)


def stored(directory: Path, name: str, **arrays: Any) -> Dataset:
    np.savez(directory / f"{name.partition('(')[0]}.npz", **arrays)
    return load_file(name, directory, "it is made up")


def letters() -> np.ndarray:
    return np.array([chr(one) for one in (*range(48, 58), *range(65, 91), *range(97, 123))])


def documents(*lines: str) -> np.ndarray:
    return np.frombuffer("\n".join(lines).encode(), dtype=np.uint8)


def test_handwriting_has_ink_as_in_mnist_and_keeps_some_letters(tmp_path: Path) -> None:
    x = GENERATOR.integers(0, 256, (6, 28, 28), dtype=np.uint8)
    y, writer = np.array([36, 37, 36, 3, 45, 36], dtype=np.uint8), np.array([0, 0, 1, 1, 1, 2], dtype=np.int16)
    arrays = {"x": x, "y": y, "writer": writer, "is_test": y == 37, "classes": letters()}
    data = stored(tmp_path, "femnist_by_writer(labels='abcdefghij')", **arrays)
    assert data.label_names == ("a", "b", "j") and data.shape == (1, 28, 28)
    np.testing.assert_allclose(data.x[0, 0], (255 - x[0].astype(float)) / 255, atol=1e-6)
    assert data.client is not None and data.client.tolist() == [0, 0, 1, 1, 2]
    assert data.columns["test"].tolist() == [False, True, False, False, False]
    several = load_file("femnist_by_writer(least=3)", tmp_path, "")
    assert several.client is not None and set(several.client.tolist()) == {1}
    with pytest.raises(InputError, match="label"):
        load_file("femnist_by_writer(labels='ä')", tmp_path, "")


def test_handwriting_of_some_writers_at_half_the_size(tmp_path: Path) -> None:
    x = GENERATOR.integers(0, 256, (4, 28, 28), dtype=np.uint8)
    arrays = {"x": x, "y": np.arange(4, dtype=np.uint8), "writer": np.array([5, 2, 5, 9]), "is_test": np.zeros(4, bool)}
    data = stored(tmp_path, "femnist_by_writer(writers=2, shrink=2)", **arrays, classes=letters())
    assert data.client is not None and set(data.client.tolist()) == {2, 5} and data.shape == (1, 14, 14)
    assert data.x[0, 0, 0, 0] == pytest.approx((255 - x[0, :2, :2].mean()) / 255, abs=1e-6)


def test_movements_are_summarised_and_executions_stay_together(tmp_path: Path) -> None:
    num = 60
    x, scale = GENERATOR.integers(-9, 9, (num, 7, 6), dtype=np.int16), np.arange(1.0, 7.0, dtype=np.float32)
    execution = np.arange(num) // 4 % 10
    arrays = {"x": x, "scale": scale, "device": np.repeat([0, 1], [20, 40]), "execution": execution}
    arrays |= {"y": np.arange(num) % 2, "labels": np.array(["sit", "walk"]), "subject": np.arange(num) // 40}
    data = stored(tmp_path, "har_geotec_windows(device=1)", **arrays)
    assert data.x.shape == (40, 24) and data.label_names == ("sit", "walk")
    wanted = x[20:] * scale
    np.testing.assert_allclose(data.x[:, :6], wanted.mean(1), rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(data.x[:, 18:], wanted.max(1), rtol=1e-5)
    clients = by_execution(data)
    parts = [clients.train, clients.validation, clients.test]
    own = [[set(data.columns["execution"][part.of(at)].tolist()) for part in parts] for at in range(len(clients))]
    for train, validation, test in own:
        assert max(train) < min(validation) and max(validation) < min(test)
    assert sum(len(part.of(at)) for part in parts for at in range(len(clients))) == 40


def test_mines_by_field(tmp_path: Path) -> None:
    data = stored(tmp_path, "landmine_29tasks", x=np.eye(3, 9), y=np.array([0, 1, 1]), field=np.array([0, 0, 4]))
    assert data.client is not None and data.client.tolist() == [0, 0, 4] and data.x.shape == (3, 9)


def test_superclasses_are_labels_and_classes_are_subclasses(tmp_path: Path) -> None:
    images = {f"x_{part}": GENERATOR.integers(0, 256, (4, 3, 8, 8), dtype=np.uint8) for part in ("train", "test")}
    fine = np.array([0, 1, 2, 3])
    labels = {f"y_fine_{part}": fine for part in ("train", "test")}
    labels |= {f"y_coarse_{part}": fine // 2 for part in ("train", "test")}
    names = {"fine_names": np.array(["elm", "oak", "cat", "dog"]), "coarse_names": np.array(["tree", "animal"])}
    data = stored(tmp_path, "cifar100_subset25k", **images, **labels, **names)
    assert data.columns["test"].tolist() == [False] * 4 + [True] * 4
    assert [data.label_names[one] for one in data.y[:4]] == ["tree", "tree", "animal", "animal"]
    assert data.columns["subclass"].tolist() == ["elm", "oak", "cat", "dog"] * 2
    clients = data.split("subclass + official_test", clients=2, fractions=(1.0, 0.0, 0.0))
    assert clients.train.sizes.tolist() == [2, 2] == clients.test.sizes.tolist()


def test_spoken_digits_detect_one_of_them_and_speakers_differ_in_size(tmp_path: Path) -> None:
    y, speaker, take = (one.ravel().astype(np.uint8) for one in np.meshgrid(range(10), range(2), range(10)))
    arrays = {"x": np.full((len(y), 4, 6), 255, dtype=np.uint8), "y": y, "speaker": speaker, "take": take}
    arrays |= {"lo_hi": np.array([-10.0, 5.0], dtype=np.float32), "speakers": np.array(["ada", "bob"])}
    data = stored(tmp_path, "fsdd_logmel_by_speaker(keyword=7, test_takes=2, shares=(1.0, 0.5))", **arrays)
    assert data.shape == (6, 4) and float(data.x.min()) == 5.0 and data.classes == 2
    assert data.client is not None
    sizes = {name: int((data.client[~data.columns["test"]] == name).sum()) for name in ("ada", "bob")}
    assert sizes == {"ada": 80, "bob": 40} and int(data.columns["test"].sum()) == 40
    assert float(data.y.float().mean()) == pytest.approx(0.1)
    clients = data.split("domains + official_test", clients=2, fractions=(1.0, 0.0, 0.0))
    assert clients.groups == (0, 1) and clients.test.sizes.tolist() == [20] * 2


def test_tweets_are_of_people_who_write_often(tmp_path: Path) -> None:
    text = documents("good day", "bad day", "good", "schön", "bad")
    arrays = {"text_utf8": text, "y": np.array([1, 0, 1, 1, 0], dtype=np.uint8), "user": np.array([5, 5, 5, 9, 9])}
    data = stored(tmp_path, "sent140_by_user(least=3)", **arrays)
    assert len(data) == 3 and data.client is not None and data.client.tolist() == [5, 5, 5]
    assert data.y.tolist() == [1, 0, 1] and data.x[2, 0] == data.x[0, 0]  # "good"


def test_titles_of_some_tags(tmp_path: Path) -> None:
    arrays = {"text_utf8": documents("a", "b", "c"), "y": np.array([0, 1, 2]), "tags": np.array(["qt", "svn", "osx"])}
    data = stored(tmp_path, "stackoverflow_titles20(tags=('osx', 'qt'))", **arrays)
    assert data.label_names == ("osx", "qt") and data.y.tolist() == [1, 0]
    with pytest.raises(InputError, match="tag"):
        load_file("stackoverflow_titles20(tags=('rust',))", tmp_path, "")


def test_a_missing_or_damaged_file_is_one_sentence(tmp_path: Path) -> None:
    assert is_file("sent140_by_user") and not is_file("mnist")
    with pytest.raises(InputError, match=r"sent140_by_user.npz is not in .* it is in the cellar; name its directory"):
        load_file("sent140_by_user", tmp_path, "it is in the cellar")
    np.savez(tmp_path / "sent140_by_user.npz", other=np.zeros(3))
    with pytest.raises(InputError, match="does not have the arrays of sent140_by_user"):
        load_file("sent140_by_user", tmp_path, "")
    (tmp_path / "sent140_by_user.npz").write_bytes(b"nothing")
    with pytest.raises(InputError, match="cannot read"):
        load_file("sent140_by_user", tmp_path, "")
    with pytest.raises(InputError, match="key of sent140_by_user"):
        load_file("sent140_by_user(most=3)", tmp_path, "")
