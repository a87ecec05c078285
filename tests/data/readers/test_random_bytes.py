"""Whatever bytes a file holds, a reader gives arrays or one sentence, never another error."""

import gzip
import json
import pickle
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bespokefl.core.errors import InputError
from bespokefl.data.readers import archive, cifar, idx, leaf, npz, pickled, png
from tests.data.readers import test_archive, test_idx, test_png

ARRAY = np.arange(24, dtype=np.uint8).reshape(2, 3, 4)
PLAIN = {"labels": [1, 2], "data": np.zeros((2, 3072), dtype=np.uint8)}
LEAF = {"users": ["a"], "num_samples": [1], "user_data": {"a": {"x": [[0.5] * 784], "y": [1]}}}

WHOLE: dict[str, tuple[Callable[[Path], object], bytes]] = {
    "idx": (idx.read, test_idx.encoded(ARRAY)),
    "idx.gz": (idx.read, gzip.compress(test_idx.encoded(ARRAY), mtime=0)),
    "png": (png.read, test_png.WHOLE),
    "pickle2": (pickled.read, pickle.dumps(PLAIN, 2)),
    "pickle4": (pickled.read, pickle.dumps(PLAIN, 4)),
    "pickle0": (pickled.read, pickle.dumps({"labels": [1, 2], "more": (None, "a")}, 0)),
    "batch": (lambda path: cifar.read(path, ("labels",)), pickle.dumps(PLAIN, 2)),
    "bin": (lambda path: cifar.read_binary(path, 1), bytes(3073)),
    "leaf": (leaf.read, json.dumps(LEAF).encode()),
}


def made(write: Callable[[Path], None], path: Path) -> bytes:
    write(path)
    return path.read_bytes()


@pytest.fixture(scope="module")
def cases(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Callable[[Path], object], bytes]]:
    folder = tmp_path_factory.mktemp("whole")

    def unpack(path: Path) -> None:
        archive.unpack(path, tmp_path_factory.mktemp("out"))

    return {
        **WHOLE,
        "npz": (npz.read, made(lambda path: np.savez(path, x=ARRAY, y=["a"]), folder / "a.npz")),
        "tgz": (unpack, made(lambda path: test_archive.write_tar(path, ("x", b"one")), folder / "a.tgz")),
        "tar": (unpack, made(lambda path: test_archive.write_tar(path, ("x", b"one"), mode="w"), folder / "a.tar")),
        "zip": (unpack, made(lambda path: test_archive.write_zip(path, ("x", b"one")), folder / "a.zip")),
    }


NAMES = [*WHOLE, "npz", "tgz", "tar", "zip"]


def sentence_or_nothing(read: Callable[[Path], object], path: Path, content: bytes) -> None:
    path.write_bytes(content)
    try:
        read(path)
    except InputError as error:
        assert "\n" not in str(error)


@pytest.mark.parametrize("name", NAMES)
def test_the_whole_file_is_read(cases: dict, tmp_path: Path, name: str) -> None:
    read, content = cases[name]
    (tmp_path / "a").write_bytes(content)
    read(tmp_path / "a")


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=30)
@given(content=st.binary(max_size=300))
def test_random_bytes(cases: dict, tmp_path_factory: pytest.TempPathFactory, name: str, content: bytes) -> None:
    read, whole = cases[name]
    path = tmp_path_factory.getbasetemp() / "random"
    for start in (b"", whole[:2], whole[:8], whole[:40]):
        sentence_or_nothing(read, path, start + content)


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=30)
@given(data=st.data())
def test_damage_anywhere(cases: dict, tmp_path_factory: pytest.TempPathFactory, name: str, data: st.DataObject) -> None:
    """Some bytes replaced, removed or added, or the end cut off."""
    read, whole = cases[name]
    first = data.draw(st.integers(0, len(whole)))
    gone = data.draw(st.integers(0, 8) | st.just(len(whole)))
    new = data.draw(st.binary(max_size=8))
    sentence_or_nothing(read, tmp_path_factory.getbasetemp() / "damaged", whole[:first] + new + whole[first + gone :])
