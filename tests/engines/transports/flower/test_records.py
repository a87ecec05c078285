"""What a message is made of: few pieces, and what all nodes are told is one and the same piece."""

from typing import Any

import pytest
import torch
from flwr.app import ConfigRecord, RecordDict
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects

from bespokefl.core.task import Task
from bespokefl.engines.transports.flower import records
from bespokefl.engines.transports.flower.blob import UnreadableError
from tests.federations import mlp, same_bits

WEIGHTS = Task(mlp, "cross_entropy").start


def letter(clients: str) -> dict[str, Any]:
    return {"plan": "{}", "shared/weights": WEIGHTS, "clients": clients, "accepted": torch.tensor([0, 3])}


def test_values_come_back() -> None:
    found = records.unpack(records.pack(letter("ann")))
    assert same_bits(found, letter("ann"))


def test_large_values_are_cut_and_put_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records, "PIECE", 100)
    packed = records.pack(letter("ann"))
    assert len(packed) > 3 and max(len(record["data"]) for record in packed.values()) == 100  # type: ignore[arg-type,call-overload]
    assert same_bits(records.unpack(packed), letter("ann"))


def test_the_model_for_all_nodes_is_sent_once() -> None:
    """Flower knows a piece by its hash, and sends none twice."""
    first, second = (get_all_nested_objects(records.pack(letter(name))) for name in ("ann", "ben"))
    common = set(first) & set(second)
    assert len(common) == 1 and len(first) == len(second) == 3  # the whole, what is alike, what is each node's own
    size = sum(block.numel() * block.element_size() for block in WEIGHTS.blocks)
    assert (
        len(first[common.pop()].deflate()) > size > max(len(first[one].deflate()) for one in set(first) - set(second))
    )


def test_other_records_are_refused() -> None:
    for wrong in (RecordDict(), RecordDict({"own": ConfigRecord({"text": "[]"})}), RecordDict({"own": ConfigRecord()})):
        with pytest.raises(UnreadableError, match="not those of Bespoke"):
            records.unpack(wrong)
