"""Pickles are read without being executed."""

import collections
import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bespokefl.core.errors import InputError
from bespokefl.data.readers import safe_pickle


def read(tmp_path: Path, content: bytes) -> dict[str, Any]:
    (tmp_path / "a").write_bytes(content)
    return safe_pickle.read(tmp_path / "a")


@pytest.mark.parametrize("protocol", [0, 1, 2, 3, 4])
def test_plain_data(tmp_path: Path, protocol: int) -> None:
    data = {
        "labels": [1, 2, 300, 70_000, -1, 2**40],
        "name": "batch 1",
        "rate": 0.5,
        "more": (None, True, False, (1,), ()),
    }
    assert read(tmp_path, pickle.dumps(data, protocol)) == data
    assert read(tmp_path, pickle.dumps({}, protocol)) == {}
    assert read(tmp_path, pickle.dumps({"a": [[1], [1, 2]]}, protocol)) == {"a": [[1], [1, 2]]}


@pytest.mark.parametrize("protocol", [0, 1, 2, 3, 4])
@pytest.mark.parametrize("kind", ["u1", "<i8", ">i4", "<f4", "?"])
@pytest.mark.parametrize("order", ["C", "F"])
def test_arrays(tmp_path: Path, protocol: int, kind: str, order: str) -> None:
    array = np.asarray(np.arange(200).reshape(20, 10), dtype=kind, order=order)
    found = read(tmp_path, pickle.dumps({"data": array}, protocol))["data"]
    assert found.dtype == array.dtype
    assert np.array_equal(found, array)


def test_as_python_2_wrote_it(tmp_path: Path) -> None:
    """The bytes of a batch of CIFAR, but for its size: strings without encoding, and numpy's names of then."""
    content = (
        b"\x80\x02}q\x01(U\x04dataq\x02cnumpy.core.multiarray\n_reconstruct\nq\x03cnumpy\nndarray\nq\x04K\x00\x85U\x01b"
        b"\x87Rq\x05(K\x01K\x02K\x03\x86cnumpy\ndtype\nq\x06U\x02u1K\x00K\x01\x87Rq\x07(K\x03U\x01|NNNJ\xff\xff\xff\xff"
        b"J\xff\xff\xff\xffK\x00tb\x89U\x06\x00\x01\x7f\x80\xfe\xfftbU\x06labelsq\x08]q\x09(K\x06K\x09eu."
    )
    expected = pickle.loads(content, encoding="latin-1")
    found = read(tmp_path, content)
    assert found["labels"] == expected["labels"] == [6, 9]
    assert np.array_equal(found["data"], expected["data"])
    assert found["data"].tolist() == [[0, 1, 127], [128, 254, 255]]


class Evil:
    def __init__(self, *call: Any) -> None:
        self.call = call

    def __reduce__(self) -> Any:
        return self.call


@pytest.mark.parametrize("protocol", [0, 1, 2, 3, 4, 5])
@pytest.mark.parametrize(
    "call", [(os.mkdir, ("made",)), (eval, ("1",)), (collections.OrderedDict, ()), (getattr, ("", "join"))]
)
def test_nothing_is_executed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, protocol: int, call: tuple[Any, ...]
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match=r"it names .*, which plain data do not need"):
        read(tmp_path, pickle.dumps({"data": Evil(*call)}, protocol))
    assert not (tmp_path / "made").exists()


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"", "cannot read"),
        (b"\x80\x02K\x01.", "it does not hold a dictionary"),
        (b"\x80\x02}(K\x01K\x02u.", "not hold a dictionary with text as keys"),
        (b"\x80\x02}(U\x01au.", "IndexError"),
        (b"\x80\x02cnumpy\ndtype\nK\x01K\x02\x86R.", "calls numpy.dtype in a way"),
        (b"\x80\x02cnumpy\ndtype\nU\x01O\x85R.", "not hold a dictionary"),
        (b"\x80\x02]U\x01aK\x01s.", "TypeError"),
        (b"\x80\x02K\x01s.", "IndexError"),
        (b"\x80\x02}}U\x01aK\x01sb.", "AttributeError"),
        (b"\x80\x02h\x05.", "UnpicklingError: Memo value not found"),
        (b"\x80\x02e.", "IndexError"),
        (b"\x80\x02\x82\x01.", "extension registry"),
        (b"\x80\x02}Pname\n.", "UnpicklingError: unsupported persistent id"),
        (pickle.dumps({"data": [1, 2, 3]}, 2)[:-3], "EOFError"),
        (pickle.dumps({"data": np.array([1, "a"], dtype=object)}, 2), "does not hold plain numbers"),
        (pickle.dumps({"data": np.array(["a"])}, 2), "does not hold plain numbers"),
    ],
)
def test_damage(tmp_path: Path, content: bytes, sentence: str) -> None:
    with pytest.raises(InputError, match=sentence) as error:
        read(tmp_path, content)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "content",
    [
        b"\x80\x02cnumpy\ndtype\n}U\x04nameU\x01xsb.",  # changes a function
        b"\x80\x02cnumpy\ndtype\n)\x81.",  # creates an instance of one
        b"\x80\x02cnumpy.core.multiarray\n_reconstruct\nU\x01x\x85R.",
        b"(cnumpy\ndtype\nNo.",
        b"\x80\x04\x8c\x05numpy\x8c\x0cndarray.dump\x93.",
        b"\x80\x02}r\xff\xff\xff\x7f0j\xff\xff\xff\x7eN.",  # a memo index of two thousand million
    ],
)
def test_functions_can_only_be_called_for_arrays(tmp_path: Path, content: bytes) -> None:
    with pytest.raises(InputError):
        read(tmp_path, content)


def test_an_escape_that_there_is_not_warns_of_nothing(tmp_path: Path, recwarn: pytest.WarningsRecorder) -> None:
    assert read(tmp_path, b"(dS'a'\nS'\\l'\ns.") == {"a": "\\l"}
    assert not recwarn.list


def test_an_array_that_is_not_as_long_as_its_shape(tmp_path: Path) -> None:
    content = pickle.dumps({"data": np.zeros((2, 3), dtype=np.uint8)}, 2)
    assert content.count(b"K\x02K\x03\x86") == 1
    with pytest.raises(InputError, match="longer or shorter than its shape"):
        read(tmp_path, content.replace(b"K\x02K\x03\x86", b"K\x02K\x04\x86"))
