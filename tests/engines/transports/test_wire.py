"""Only rows, tensors and numbers pass, and they arrive as they were sent."""

import json
import math
import struct

import pytest
import torch

from bespokefl.core.errors import TrainingError
from bespokefl.core.rows import Layout, Rows
from bespokefl.engines.transports import wire
from tests.federations import same_bits

LAYOUT = Layout(("a.weight", "b", "t"), ((2, 3), (2,), ()), head=("b",))
ROWS = Rows.from_matrix(LAYOUT, torch.randn(4, 9, generator=torch.Generator().manual_seed(0)))
VALUES = {
    "rows": ROWS,
    "expanded": ROWS[:1].expand(5),
    "one": torch.tensor(3.5, dtype=torch.float64),
    "whole": torch.arange(7),
    "small": torch.arange(3, dtype=torch.int32),
    "mask": torch.tensor([True, False]),
    "empty": torch.zeros(0, 3),
    "transposed": torch.arange(6.0).reshape(2, 3).T,
    "number": 0.1,
    "count": 3,
    "flag": True,
    "word": "train",
    "nothing": None,
    "infinite": math.inf,
}


def test_there_and_back() -> None:
    header, tensors = wire.flatten(VALUES)
    back = wire.unflatten(json.loads(json.dumps(header)), tensors)
    assert same_bits(back, VALUES)
    assert back["rows"].layout == LAYOUT


def test_through_a_mailbox() -> None:
    header, tensors = wire.flatten(VALUES)
    box = wire.SharedMemory(1 << 20)
    places = json.loads(json.dumps(box.write(tensors)))
    received = box.read(places)
    assert same_bits(wire.unflatten(header, received), VALUES)
    box.write([torch.zeros_like(tensor) for tensor in tensors])
    assert same_bits(wire.unflatten(header, received), VALUES)  # what was read is a copy


def test_numbers_keep_every_bit() -> None:
    for number in (0.1, 1e-310, math.pi, -0.0):
        (entry,), _ = wire.flatten({"x": number})
        assert struct.pack("d", json.loads(json.dumps(entry))[2]) == struct.pack("d", number)


@pytest.mark.parametrize("value", [object(), [1.0], {"a": 1.0}, (torch.zeros(1),), lambda: 0, LAYOUT, b"bytes"])
def test_objects_are_refused(value: object) -> None:
    with pytest.raises(TypeError, match=r"'thing' is a .*only rows, tensors and numbers can be sent"):
        wire.flatten({"thing": value})


def test_sizes() -> None:
    # 4 rows of 9 float32; 7 int64; a number of 8 bytes.
    assert wire.size({"rows": ROWS, "whole": torch.arange(7), "number": 0.1}) == (4 * 9 * 4 + 7 * 8 + 8, 36 + 7 + 1)
    assert wire.size({"expanded": ROWS[:1].expand(5)}) == (5 * 9 * 4, 45)
    assert wire.size({}) == (0, 0)


def test_a_full_mailbox_says_so() -> None:
    with pytest.raises(TrainingError, match="too large; use a smaller --chunk"):
        wire.SharedMemory(1 << 12).write([torch.zeros(2000)])


def test_tensors_of_different_kinds_stay_aligned() -> None:
    box = wire.SharedMemory(1 << 16)
    tensors = [
        torch.tensor([True]),
        torch.arange(3.0, dtype=torch.float64),
        torch.tensor([False] * 65),
        torch.arange(2),
    ]
    places = box.write(tensors)
    assert all(at % wire.ALIGN == 0 for at, _, _ in places)
    assert same_bits(box.read(places), tensors)
