"""Whatever bytes a file holds, a reader gives arrays or one sentence, in time, and writes only what it is to unpack."""

import gzip
import json
import os
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bespokefl.core.errors import InputError
from bespokefl.data.readers import archive, cifar, idx, leaf, npz, png, safe_pickle
from tests import sandbox
from tests.data.readers import test_archive, test_idx, test_png

INPUTS = int(os.environ.get("BESPOKE_FUZZ", "30"))
ARRAY = np.arange(24, dtype=np.uint8).reshape(2, 3, 4)
PLAIN = {"labels": [1, 2], "data": np.zeros((2, 3072), dtype=np.uint8)}
LEAF = {"users": ["a"], "num_samples": [1], "user_data": {"a": {"x": [[0.5] * 784], "y": [1]}}}

WHOLE: dict[str, tuple[Callable[[Path], object], bytes]] = {
    "idx": (idx.read, test_idx.encoded(ARRAY)),
    "idx.gz": (idx.read, gzip.compress(test_idx.encoded(ARRAY), mtime=0)),
    "png": (png.read, test_png.WHOLE),
    "pickle2": (safe_pickle.read, pickle.dumps(PLAIN, 2)),
    "pickle4": (safe_pickle.read, pickle.dumps(PLAIN, 4)),
    "pickle0": (safe_pickle.read, pickle.dumps({"labels": [1, 2], "more": (None, "a")}, 0)),
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

    return {
        **WHOLE,
        "npz": (npz.read, made(lambda path: np.savez(path, x=ARRAY, y=["a"]), folder / "a.npz")),
        "tgz": (unpack, made(lambda path: test_archive.write_tar(path, ("x", b"one")), folder / "a.tgz")),
        "tar": (unpack, made(lambda path: test_archive.write_tar(path, ("x", b"one"), mode="w"), folder / "a.tar")),
        "zip": (unpack, made(lambda path: test_archive.write_zip(path, ("x", b"one")), folder / "a.zip")),
    }


ARCHIVES = ("tgz", "tar", "zip")
NAMES = [*WHOLE, "npz", *ARCHIVES]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where files are tried."""
    path = tmp_path_factory.mktemp("sandbox") / "above" / "tried" / "a"
    path.parent.mkdir(parents=True)
    return path


def unpack(path: Path) -> None:
    archive.unpack(path, path.parent / "out")


def answer(name: str, read: Callable[[Path], object], path: Path, content: bytes) -> None:
    path.write_bytes(content)
    out = path.parent / "out"
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir()
    sandbox.answer(read, path, path.parents[2], out=out if name in ARCHIVES else None)


def sentence_or_nothing(name: str, read: Callable[[Path], object], path: Path, content: bytes) -> None:
    try:
        answer(name, read, path, content)
    except InputError as error:
        assert "\n" not in str(error)


@pytest.mark.parametrize("name", NAMES)
def test_the_whole_file_is_read(cases: dict, place: Path, name: str) -> None:
    read, content = cases[name]
    answer(name, read, place, content)


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=INPUTS)
@given(content=st.binary(max_size=300))
def test_random_bytes(cases: dict, place: Path, name: str, content: bytes) -> None:
    read, whole = cases[name]
    for start in (b"", whole[:2], whole[:8], whole[:40]):
        sentence_or_nothing(name, read, place, start + content)


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=INPUTS)
@given(data=st.data())
def test_damage_anywhere(cases: dict, place: Path, name: str, data: st.DataObject) -> None:
    """Some bytes replaced, removed or added, or the end cut off."""
    read, whole = cases[name]
    first = data.draw(st.integers(0, len(whole)))
    gone = data.draw(st.integers(0, 8) | st.just(len(whole)))
    new = data.draw(st.binary(max_size=8))
    sentence_or_nothing(name, read, place, whole[:first] + new + whole[first + gone :])
