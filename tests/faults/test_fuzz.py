"""Whatever a file contains, its reader returns data or raises a one-sentence error: no traceback, no hang, no writes.

Hypothesis modifies, truncates and inserts bytes in valid files, and tries random bytes. CI tries 200 inputs per reader;
BESPOKE_FUZZ sets another number. `tests/sandbox.py` observes the time and what is written.
"""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bespokefl.core.errors import BespokeError
from bespokefl.data import Clients
from bespokefl.data.dataset import Dataset
from bespokefl.data.preprocessing.transform import Preparation
from bespokefl.data.sources.loader import load
from bespokefl.data.tables import table as tables
from bespokefl.engines.storage.checkpoints import CheckpointInterval, Checkpoints
from bespokefl.workflows.run.api import run
from bespokefl.workflows.run.settings import Config, read
from tests import sandbox
from tests.data.readers import test_idx

INPUTS = int(os.environ.get("BESPOKE_FUZZ", "200"))
Reader = Callable[[Path], Any]
Made = tuple[Path, bytes, Reader]  # path of the file, valid content, and its reader


def arrays() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    return rng.normal(size=(24, 3)), np.arange(24) % 2, np.arange(24) % 3


# Tokens with a meaning for some reader, which random bytes rarely hit.
SIGNS = b'" "" , ; . = [ ] { } # _ \\ \r \n \r\n \0 - nan inf 1e999 -1 0x1 1_0 3,14 true null \xff \xef\xbb\xbf'.split(
    b" "
)


def damaged(content: bytes) -> st.SearchStrategy[bytes]:
    """Generate a valid file with a few bytes modified, removed or inserted; or random bytes."""
    places = st.integers(0, max(0, len(content) - 1))

    def altered(changes: list[tuple[int, bytes, int]]) -> bytes:
        new = bytearray(content)
        for at, put, cut in changes:
            new[at : at + cut] = put
        return bytes(new)

    put = st.binary(max_size=6) | st.sampled_from(SIGNS)
    some = st.lists(st.tuples(places, put, st.integers(0, 40)), min_size=1, max_size=4)
    bytes_only = st.one_of(some.map(altered), places.map(lambda at: content[:at]), st.binary(max_size=200))
    try:
        whole = json.loads(content)
    except ValueError:
        return bytes_only
    return st.one_of(
        bytes_only, st.lists(st.tuples(st.integers(0), VALUES), min_size=1, max_size=3).map(exchanged(whole))
    )


WORDS = st.sampled_from(["", "..", "../../outside", "/etc/passwd", "nan", "1e400", "users", "train"])
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=5) | WORDS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5) | WORDS, inner, max_size=3),
    max_leaves=5,
)


def exchanged(whole: Any) -> Callable[[list[tuple[int, Any]]], bytes]:
    """Return a function that replaces values anywhere in a JSON document and keeps it well-formed."""

    def places(value: Any) -> list[tuple[Any, Any]]:
        keys = value.keys() if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
        return [(value, key) for key in keys] + [place for key in keys for place in places(value[key])]

    def made(changes: list[tuple[int, Any]]) -> bytes:
        new = json.loads(json.dumps(whole))
        for at, value in changes:
            found = places(new)
            if not found:
                break
            holder, key = found[at % len(found)]
            holder[key] = value
        return json.dumps(new).encode()

    return made


def tried(folder: Path, name: str) -> Path:
    """Return a path in a new directory of its own."""
    (folder.parent / "tried").mkdir()
    return folder.parent / "tried" / name


def config_file(folder: Path) -> Made:
    text = Config(method="ditto", split="iid", set={"lr": 0.1, "prox_weight": 1.0}).to_toml()
    return tried(folder, "config.toml"), text.encode(), lambda path: Config.of(read(path))


def split_file(folder: Path) -> Made:
    x, y, _ = arrays()
    dataset = Dataset.from_arrays(x, y)
    dataset.split("iid", clients=3).save_split(folder / "valid.json")
    return tried(folder, "split.json"), (folder / "valid.json").read_bytes(), dataset.with_split


def npz_file(folder: Path) -> Made:
    x, y, client = arrays()
    np.savez(folder / "valid.npz", x=x, y=y, client=client)
    return tried(folder, "own.npz"), (folder / "valid.npz").read_bytes(), load


def csv_content() -> bytes:
    x, y, client = arrays()
    rows = [f"{a[0]:.3f},{'left' if b else 'right'},{c},{b}" for a, b, c in zip(x, y, client, strict=True)]
    return ("\n".join(["size,side,client,label", *rows]) + "\n").encode()


def load_table(path: Path) -> Dataset:
    return tables.load(path, label="label", client="client")


def csv_file(folder: Path) -> Made:
    return tried(folder, "own.csv"), csv_content(), load_table


def semicolon_file(folder: Path) -> Made:
    content = csv_content().replace(b",", b";").replace(b".", b",")
    return tried(folder, "own.csv"), content, load_table


def npz_table(folder: Path) -> Made:
    x, y, client = arrays()
    sides = np.array(["left", "right"])[y]
    np.savez(folder / "valid.npz", size=x[:, 0], side=sides, client=client, label=y)
    return tried(folder, "own.npz"), (folder / "valid.npz").read_bytes(), load_table


def in_folder(path: Path) -> Any:
    """Read the directory of this file, as `--data DIRECTORY` does."""
    return load(path.parent)


def idx_file(folder: Path) -> Made:
    test_idx.write_set(folder)
    path = folder / "train-images-idx3-ubyte"
    return path, path.read_bytes(), in_folder


def leaf_file(folder: Path) -> Made:
    x, y, _ = arrays()
    data = {name: {"x": x[at::2].tolist(), "y": y[at::2].tolist()} for at, name in enumerate(("ann", "bob"))}
    text = json.dumps({"users": list(data), "num_samples": [12, 12], "user_data": data})
    return tried(folder, "all.json"), text.encode(), in_folder


def preparation_file(folder: Path) -> Made:
    (folder / "valid.csv").write_bytes(csv_content())
    from bespokefl.data.preprocessing.fit import prepare

    text = prepare(load_table(folder / "valid.csv").split("by_column"))[1].to_json()
    path = tried(folder, "preparation.json")
    return path, text.encode(), lambda path: Preparation.from_json(path.read_text(errors="replace"))


def checkpoint_part(part: str) -> Callable[[Path], Made]:
    def make(folder: Path) -> Made:
        x, y, client = arrays()
        clients = Clients.from_arrays(x, y, client)
        options: dict[str, Any] = {"model": "logistic", "rounds": 3, "workers": 1}
        run("ditto", clients, checkpoint=folder, checkpoint_every=1, **options)
        inside = folder / "checkpoints" / "round-00000002"
        identity = json.loads((inside / "record.json").read_text())["content"]["identity"]
        kept = Checkpoints(folder / "checkpoints", CheckpointInterval(), identity)

        def reader(path: Path) -> None:
            found = kept.load_latest(3, len(clients))
            assert found is not None
            if found.number == 2:  # then only white space differs
                assert path.read_bytes().split() == content.split() or json.loads(path.read_bytes()) == json.loads(
                    content
                )

        content = (inside / part).read_bytes()
        return inside / part, content, reader

    return make


MAKERS = {
    "config": config_file,
    "split": split_file,
    "npz": npz_file,
    "npz table": npz_table,
    "csv": csv_file,
    "semicolons": semicolon_file,
    "idx": idx_file,
    "leaf": leaf_file,
    "preparation": preparation_file,
    "checkpoint record": checkpoint_part("record.json"),
    "checkpoint state": checkpoint_part("state.safetensors"),
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", MAKERS)
def test_damaged_files_raise_one_sentence(kind: str, tmp_path: Path) -> None:
    folder = tmp_path / "above" / "valid"
    folder.mkdir(parents=True)
    path, content, reader = MAKERS[kind](folder)
    path.write_bytes(content)
    sandbox.answer(reader, path, tmp_path)  # a valid file is read

    @settings(max_examples=INPUTS, deadline=None, suppress_health_check=list(HealthCheck))
    @given(damaged(content))
    def attempt(other: bytes) -> None:
        path.write_bytes(other)
        try:
            sandbox.answer(reader, path, tmp_path)
        except BespokeError as error:
            assert "\n" not in str(error) and len(str(error)) < 1000

    attempt()
