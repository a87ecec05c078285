"""Decoded arrays are kept whole or not at all, and only once."""

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from bespokefl.data.sources import cache

ARRAYS = {
    "x": np.arange(24, dtype=np.uint8).reshape(4, 2, 3),
    "y": np.array([0, 1, 1, 0], dtype=np.uint8),
    "test": np.array([False, False, True, True]),
    "client": np.array(["ada", "bob", "ada", "ünal"]),
}


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BESPOKE_DATA", str(tmp_path))


def write(name: str = "mini", arrays: dict[str, np.ndarray] = ARRAYS) -> cache.Entry:
    return cache.write(name, arrays, cache.content_hash(arrays), "here", {name: "f" * 64})


def left(tmp_path: Path) -> set[str]:
    return {path.name for path in (tmp_path / "decoded").iterdir()} - {".mini.lock"}


def test_what_is_written_is_found(tmp_path: Path) -> None:
    entry = write()
    assert cache.find("mini") == entry
    found = cache.read(entry)
    assert found is not None
    for key, array in ARRAYS.items():
        assert np.array_equal(found[key], array)
        assert found[key].dtype == array.dtype
    assert isinstance(found["x"], np.memmap)
    assert entry.fingerprints == {"mini": "f" * 64}
    assert left(tmp_path) == {"mini.json", cache.path_of(entry).name}


def test_a_change_in_memory_stays_there() -> None:
    entry = write()
    found = cache.read(entry)
    found["x"][0] = 99
    assert np.array_equal(cache.read(entry)["x"], ARRAYS["x"])


def test_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert cache.directory() == tmp_path
    monkeypatch.delenv("BESPOKE_DATA")
    monkeypatch.setenv("XDG_CACHE_HOME", "/var/my")
    assert cache.directory() == Path("/var/my/bespoke/data")
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")  # which the specification says to ignore
    monkeypatch.setenv("HOME", "/home/ada")
    assert cache.directory() == Path("/home/ada/.cache/bespoke/data")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache.directory() == Path("/home/ada/.cache/bespoke/data")


def test_hash_is_of_everything() -> None:
    known = cache.content_hash(ARRAYS)
    by_hand = [
        b"client text (4,)\n" + "ada\0bob\0ada\0ünal".encode(),
        b"test bool (4,)\n" + bytes([0, 0, 1, 1]),
        b"x uint8 (4, 2, 3)\n" + bytes(range(24)),
        b"y uint8 (4,)\n" + bytes([0, 1, 1, 0]),
    ]
    assert known == hashlib.sha256(b"".join(by_hand)).hexdigest()
    assert cache.content_hash(dict(reversed(ARRAYS.items()))) == known
    assert cache.content_hash({**ARRAYS, "x": np.asfortranarray(ARRAYS["x"])}) == known
    others = [
        {**ARRAYS, "x": ARRAYS["x"] + 1},
        {**ARRAYS, "x": ARRAYS["x"].reshape(4, 3, 2)},
        {**ARRAYS, "y": ARRAYS["y"].astype(np.int64)},
        {**ARRAYS, "client": np.array(["ada", "bob", "ada", "unal"])},
        {key: array for key, array in ARRAYS.items() if key != "test"},
    ]
    assert len({known, *map(cache.content_hash, others)}) == 6


def test_byte_order_does_not_matter() -> None:
    numbers = np.arange(5)
    assert cache.content_hash({"x": numbers.astype(">i8")}) == cache.content_hash({"x": numbers.astype("<i8")})


@pytest.mark.parametrize("damage", ["missing", "cut", "empty", "garbage", "other"])
def test_arrays_that_are_not_whole(damage: str) -> None:
    entry = write()
    path = cache.path_of(entry) / "x.npy"
    content = path.read_bytes()
    path.unlink()
    if damage == "other":
        np.save(path, ARRAYS["x"][:2])
    elif damage != "missing":
        path.write_bytes({"cut": content[:-1], "empty": b"", "garbage": b"hello"}[damage])
    assert cache.read(entry) is None
    assert np.array_equal(cache.read(write())["x"], ARRAYS["x"])  # it is mended by writing it again


@pytest.mark.parametrize(
    "content", ["", "[]", "{}", '{"version": 1, "name": "mini"}', '{"version": 0, "name": "mini"}']
)
def test_an_entry_that_is_not_whole(tmp_path: Path, content: str) -> None:
    write()
    (tmp_path / "decoded" / "mini.json").write_text(content)
    assert cache.find("mini") is None


def test_replaced(tmp_path: Path) -> None:
    old = write()
    mapped = cache.read(old)
    new = write(arrays={**ARRAYS, "x": ARRAYS["x"] + 1})
    assert cache.find("mini") == new
    assert not cache.path_of(old).exists()
    assert np.array_equal(mapped["x"], ARRAYS["x"])  # who has it open keeps it
    assert json.loads((tmp_path / "decoded" / "mini.json").read_text())["hash"] == new.hash


def test_interrupted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is left of a set whose writing stops half-way, and what was there before still is."""
    old = write()
    count = 0

    def full(handle: int) -> None:
        nonlocal count
        count += 1
        if count == 3:
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        write(arrays={**ARRAYS, "x": ARRAYS["x"] + 1})
    assert cache.find("mini") == old
    assert np.array_equal(cache.read(old)["x"], ARRAYS["x"])
    assert left(tmp_path) == {"mini.json", cache.path_of(old).name}


def test_what_a_killed_process_left_is_removed(tmp_path: Path) -> None:
    (tmp_path / "decoded" / ".mini-abc").mkdir(parents=True)
    (tmp_path / "decoded" / ".mini-abc" / "x.npy").write_bytes(b"half")
    (tmp_path / "decoded" / ".mini-abc.json").write_text("{")
    entry = write()
    assert left(tmp_path) == {"mini.json", cache.path_of(entry).name}


WRITER = """
import sys
import numpy as np
from bespokefl.data.sources import cache
for turn in range(30):
    arrays = {"x": np.full((200, 50), (int(sys.argv[1]) + turn) % 3, dtype=np.uint8)}
    cache.write("mini", arrays, cache.content_hash(arrays), "here", {})
    for _ in range(100):
        entry = cache.find("mini")
        found = cache.read(entry) if entry is not None else None
        if found is not None:
            break
    else:
        sys.exit("never whole")
    if cache.content_hash(found) != entry.hash:
        sys.exit("mixed")
"""


def test_processes_do_not_disturb_each_other(tmp_path: Path) -> None:
    """Three write and replace the same set, and read it: what they read is always what its hash says."""
    processes = [subprocess.Popen([sys.executable, "-c", WRITER, str(at)], stderr=subprocess.PIPE) for at in range(3)]
    said = [process.communicate(timeout=120)[1].decode() for process in processes]
    assert [process.returncode for process in processes] == [0, 0, 0], said
    assert cache.read(cache.find("mini")) is not None
