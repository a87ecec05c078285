"""Whatever a file holds, its reader answers with data or with one sentence: no traceback, no hang, nothing written.

Hypothesis damages valid files (bytes altered, cut, inserted) and tries bytes that are no such file at all. CI tries
200 inputs per reader; BESPOKE_FUZZ asks for more.
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
from bespokefl.data import Clients, tables
from bespokefl.data.dataset import Dataset
from bespokefl.data.prepare import Preparation
from bespokefl.data.sources import load
from bespokefl.engines.checkpoint import Checkpoints, Every
from bespokefl.experiments.config import Config, read
from bespokefl.experiments.run import run

INPUTS = int(os.environ.get("BESPOKE_FUZZ", "200"))
Reader = Callable[[Path], Any]


def arrays() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    return rng.normal(size=(24, 3)), np.arange(24) % 2, np.arange(24) % 3


def damaged(content: bytes) -> st.SearchStrategy[bytes]:
    """A valid file with a few bytes altered, cut out or put in; or any bytes."""
    places = st.integers(0, max(0, len(content) - 1))

    def altered(changes: list[tuple[int, bytes, int]]) -> bytes:
        new = bytearray(content)
        for at, put, cut in changes:
            new[at : at + cut] = put
        return bytes(new)

    some = st.lists(st.tuples(places, st.binary(max_size=6), st.integers(0, 40)), min_size=1, max_size=4)
    return st.one_of(some.map(altered), places.map(lambda at: content[:at]), st.binary(max_size=200))


def config_file(folder: Path) -> tuple[str, bytes, Reader]:
    text = Config(method="ditto", split="iid", set={"lr": 0.1, "pull": 1.0}).to_toml()
    return "config.toml", text.encode(), lambda path: Config.of(read(path))


def split_file(folder: Path) -> tuple[str, bytes, Reader]:
    x, y, _ = arrays()
    dataset = Dataset.from_arrays(x, y)
    dataset.split("iid", clients=3).save_split(folder / "valid.json")
    return "split.json", (folder / "valid.json").read_bytes(), dataset.with_split


def npz_file(folder: Path) -> tuple[str, bytes, Reader]:
    x, y, client = arrays()
    np.savez(folder / "valid.npz", x=x, y=y, client=client)
    return "own.npz", (folder / "valid.npz").read_bytes(), load


def csv_file(folder: Path) -> tuple[str, bytes, Reader]:
    x, y, client = arrays()
    rows = [f"{a[0]:.3f},{'left' if b else 'right'},{c},{b}" for a, b, c in zip(x, y, client, strict=True)]
    text = "\n".join(["size,side,client,label", *rows]) + "\n"
    return "own.csv", text.encode(), lambda path: tables.load(path, label="label", client="client")


def preparation_file(folder: Path) -> tuple[str, bytes, Reader]:
    _, content, load_table = csv_file(folder)
    (folder / "valid.csv").write_bytes(content)
    from bespokefl.data.prepare import prepare

    text = prepare(load_table(folder / "valid.csv").split("by_column"))[1].to_json()
    return "preparation.json", text.encode(), lambda path: Preparation.from_json(path.read_text(errors="replace"))


def checkpoint_part(part: str) -> Callable[[Path], tuple[str, bytes, Reader]]:
    def make(folder: Path) -> tuple[str, bytes, Reader]:
        x, y, client = arrays()
        clients = Clients.from_arrays(x, y, client)
        options: dict[str, Any] = {"model": "logistic", "rounds": 3, "workers": 1}
        run("ditto", clients, checkpoint=folder, checkpoint_every=1, **options)
        inside = folder / "checkpoints" / "round-00000002"
        identity = json.loads((inside / "record.json").read_text())["content"]["identity"]
        kept = Checkpoints(folder / "checkpoints", Every(), identity)

        def reader(path: Path) -> None:
            (inside / part).write_bytes(path.read_bytes())
            found = kept.latest()
            assert found is not None
            if found.number == 2:  # then nothing but the space between words is another
                assert path.read_bytes().split() == content.split() or json.loads(path.read_bytes()) == json.loads(
                    content
                )

        content = (inside / part).read_bytes()
        return "damaged", content, reader

    return make


MAKERS = {
    "config": config_file,
    "split": split_file,
    "npz": npz_file,
    "csv": csv_file,
    "preparation": preparation_file,
    "checkpoint record": checkpoint_part("record.json"),
    "checkpoint state": checkpoint_part("state.safetensors"),
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", MAKERS)
def test_damaged_files_are_refused_in_a_sentence(kind: str, tmp_path: Path) -> None:
    (tmp_path / "valid").mkdir()
    (tmp_path / "tried").mkdir()
    name, content, reader = MAKERS[kind](tmp_path / "valid")
    path = tmp_path / "tried" / name
    path.write_bytes(content)
    reader(path)  # the valid one is read

    @settings(max_examples=INPUTS, deadline=None, suppress_health_check=list(HealthCheck))
    @given(damaged(content))
    def attempt(tried: bytes) -> None:
        path.write_bytes(tried)
        try:
            reader(path)
        except BespokeError as error:
            assert "\n" not in str(error) and len(str(error)) < 1000
        assert [one.name for one in path.parent.iterdir()] == [name]

    attempt()
