"""A split in other frameworks' layouts, read back as they read it."""

import json
from pathlib import Path

import numpy as np
import pytest

from bespokefl.core.client_index import PARTS
from bespokefl.core.errors import InputError
from bespokefl.data import Clients, Dataset
from bespokefl.data.export import export

X = np.random.default_rng(0).random((60, 1, 2, 2), dtype=np.float32)
DATASET = Dataset.from_arrays(X, np.arange(60) % 3, name="mine")


@pytest.fixture
def clients() -> Clients:
    return DATASET.split("dirichlet(8) + rotation(groups=2) + permuted_labels(groups=2)", clients=4)


def test_pflib_reads_it(clients: Clients, tmp_path: Path) -> None:
    """By the very steps of PFLlib's read_data and read_client_data."""
    export(clients, "pflib", tmp_path / "Mine")
    for part in PARTS:
        for client in range(4):
            with (tmp_path / "Mine" / part / f"{client}.npz").open("rb") as file:
                content = np.load(file, allow_pickle=True)["data"].tolist()
            seen = getattr(clients, part).of(client)
            assert content["x"].dtype == np.float32
            assert np.array_equal(content["x"], clients.x[seen].numpy())
            assert np.array_equal(content["y"], clients.y[seen].numpy())
    config = json.loads((tmp_path / "Mine" / "config.json").read_text())
    assert (config["num_clients"], config["num_classes"]) == (4, 3)
    sizes = [sum(count for _, count in row) for row in config["Size of samples for labels in clients"]]
    assert sizes == clients.sizes.tolist()


def test_flower_reads_it(clients: Clients, tmp_path: Path) -> None:
    """One JSON object a line, as Hugging Face's json loader takes it; partition_id gives the clients."""
    export(clients, "flower", tmp_path / "mine")
    for part, original in zip(PARTS, clients.original_parts, strict=True):
        lines = [json.loads(line) for line in (tmp_path / "mine" / f"{part}.jsonl").read_text().splitlines()]
        for client in range(4):
            rows = [row for row in lines if row["partition_id"] == client]
            seen = getattr(clients, part).of(client)
            assert {row["client"] for row in rows} == {clients.names[client]}
            assert [row["index"] for row in rows] == original.of(client).tolist()
            assert [row["label"] for row in rows] == clients.y[seen].tolist()
            assert np.array_equal(np.array([row["x"] for row in rows], dtype=np.float32), clients.x[seen].numpy())


def test_both_say_what_they_are(clients: Clients, tmp_path: Path) -> None:
    for layout in ("pflib", "flower"):
        export(clients, layout, tmp_path / layout)
        about = json.loads((tmp_path / layout / "bespoke.json").read_text())
        assert about["hash"] == clients.hash
        assert about["names"] == list(clients.names)
        assert about["groups"] == list(clients.groups or ())
    assert sorted(one.name for one in tmp_path.iterdir()) == ["flower", "pflib"]


def test_parts_without_examples(tmp_path: Path) -> None:
    clients = DATASET.split("iid", clients=3, fractions=(1, 0, 0))
    export(clients, "flower", tmp_path / "a")
    assert sorted(one.name for one in (tmp_path / "a").iterdir()) == ["bespoke.json", "train.jsonl"]


def test_tokens_and_targets(tmp_path: Path) -> None:
    words = Dataset.from_arrays(np.arange(12).reshape(6, 2), np.linspace(0, 1, 6), tokens=True).split("iid", clients=2)
    export(words, "flower", tmp_path / "a")
    row = json.loads((tmp_path / "a" / "train.jsonl").read_text().splitlines()[0])
    assert row["x"] == words.x[words.train.of(0)[0]].tolist()
    assert row["label"] == pytest.approx(float(words.y[words.train.of(0)[0]]))
    with pytest.raises(InputError, match="PFLlib has classification tasks only"):
        export(words, "pflib", tmp_path / "b")
    assert not (tmp_path / "b").exists()


def test_refused(clients: Clients, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="unknown layout 'leaf'; known: flower, pflib"):
        export(clients, "leaf", tmp_path / "a")
    with pytest.raises(InputError, match=r"must be new, but .* exists"):
        export(clients, "pflib", tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match=r"cannot export to .*: Not a directory"):
        export(clients, "pflib", tmp_path / "file" / "a")
    assert [one.name for one in tmp_path.iterdir()] == ["file"]
