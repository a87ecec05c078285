"""A folder for each client becomes data, and parts that are there already stay as they are."""

from pathlib import Path

import numpy as np
import pytest
import torch

from bespokefl.core.errors import InputError
from bespokefl.data.preprocessing.fit import prepare
from bespokefl.data.tables import client_directories


def write(top: Path, files: dict[str, str]) -> Path:
    for name, content in files.items():
        path = top / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    return top


def test_files_of_a_client_are_put_together(tmp_path: Path) -> None:
    write(tmp_path, {"b/1.csv": "a,y\n1,0\n2,1\n", "b/2.csv": "y,a\n0,3\n", "a/x.csv": "a,y\n4,1\n"})
    assert client_directories.has_tables(tmp_path)
    assert not client_directories.has_tables(tmp_path / "a")
    table = client_directories.load(tmp_path)
    assert table.client is not None
    assert dict(zip(table.x[:, 0].tolist(), table.client.tolist(), strict=True)) == {4: "a", 1: "b", 2: "b", 3: "b"}
    assert table.split("by_column").names == ("a", "b")
    assert "part" not in table.columns


def test_parts_stay(tmp_path: Path) -> None:
    parts = {"train": "a,y\n1,0\n2,1\n", "validation": "a,y\n3,0\n", "test": "a,y\n4,1\n5,1\n"}
    write(tmp_path, {f"p/{part}.csv": content for part, content in parts.items()})
    write(tmp_path, {"q/train.csv": "a,y\n6,1\n"})
    clients = client_directories.clients(client_directories.load(tmp_path))
    assert clients.names == ("p", "q")
    found = {part: clients.x[getattr(clients, part).indices, 0].tolist() for part in parts}
    assert found == {"train": [1, 2, 6], "validation": [3], "test": [4, 5]}
    assert [getattr(clients, part).sizes.tolist() for part in parts] == [[2, 1], [1, 0], [2, 0]]
    prepared, _ = prepare(clients)
    assert torch.allclose(prepared.x[prepared.train.indices].mean(0), torch.zeros(1), atol=1e-6)


def test_arrays(tmp_path: Path) -> None:
    for name, value in (("p", 1.0), ("q", 2.0)):
        (tmp_path / name).mkdir()
        np.savez(tmp_path / name / "data.npz", x=np.full((3, 4, 2), value), y=[0, 1, 1])
    table = client_directories.load(tmp_path)
    assert table.shape == (4, 2)
    assert table.x[:, 0, 0].tolist() == [1, 1, 1, 2, 2, 2]


def test_a_column_that_is_text_for_one_client_is_text_for_all(tmp_path: Path) -> None:
    write(tmp_path, {"p/a.csv": "code,b,y\n01,,0\n1,,1\n", "q/a.csv": "code,b,y\nx,u,0\n"})
    table = client_directories.load(tmp_path, missing="mean")
    assert table.features.names == ("code=01", "code=1", "code=x", "b=u")
    assert table.x[:, :3].tolist() == [[1, 0, 0], [0, 1, 0], [0, 0, 1]]
    assert table.x[:, 3].nan_to_num(-1).tolist() == [-1, -1, 1]


@pytest.mark.parametrize(
    ("files", "sentence"),
    [
        ({"p/a.csv": "a,y\n1,0\n", "q/a.csv": "b,y\n1,1\n"}, "must have the same columns, but 'a' is in"),
        (
            {"p/train.csv": "a,y\n1,0\n", "p/more.csv": "a,y\n1,1\n"},
            "either all files are called train, validation, test",
        ),
        ({"p/a.csv": "a,y\n1,0\n", "q/read.me": ""}, "got nothing in q"),
        ({"p/a.csv": "a,y,client\n1,0,p\n2,1,p\n"}, "the directories of"),
        (
            {"p/a.csv": "a,y\n1,0\n", "q/a.csv": "a,y\n1,1\n,0\n"},
            "column 'a' lacks 1 of 3 values, the first in row 2 of",
        ),
        ({"p/test.csv": "a,y\n1,0\n", "q/train.csv": "a,y\n1,1\n"}, "every client needs at least one training example"),
        ({"readme.txt": ""}, "for each client, got no directory in it"),
    ],
)
def test_refused(tmp_path: Path, files: dict[str, str], sentence: str) -> None:
    write(tmp_path, files)
    with pytest.raises(InputError) as error:
        client_directories.clients(client_directories.load(tmp_path))
    assert sentence in str(error.value)
    assert "\n" not in str(error.value)


def test_shapes_that_differ(tmp_path: Path) -> None:
    for name, width in (("p", 2), ("q", 3)):
        (tmp_path / name).mkdir()
        np.savez(tmp_path / name / "data.npz", x=np.ones((3, width)), y=[0, 1, 1])
    with pytest.raises(
        InputError, match=r"'x' in '.*q/data.npz' must have examples of shape \(2,\), as in '.*', got \(3"
    ):
        client_directories.load(tmp_path)


def test_no_folder(tmp_path: Path) -> None:
    with pytest.raises(
        InputError, match=r"expected a directory '.*nothing' with a directory for each client, got none"
    ):
        client_directories.load(tmp_path / "nothing")
