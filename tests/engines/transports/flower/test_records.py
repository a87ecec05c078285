"""The records of a message: few, and what all nodes receive alike is one shared record."""

from typing import Any

import pytest
import torch
from flwr.app import ConfigRecord, RecordDict

from bespokefl.core.task import Task
from bespokefl.engines.transports.flower import records
from bespokefl.engines.transports.flower.records import UnreadableError
from tests.engines.transports.flower.flower_internals import message_parts
from tests.federations import mlp, same_bits

WEIGHTS = Task(mlp, "cross_entropy").start


def request(clients: str) -> dict[str, Any]:
    return {"plan": "{}", "shared/weights": WEIGHTS, "clients": clients, "accepted": torch.tensor([0, 3])}


def test_values_come_back() -> None:
    found = records.unpack(records.pack(request("ann")))
    assert same_bits(found, request("ann"))


def test_large_values_are_cut_and_put_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records, "MAX_BYTES", 100)
    packed = records.pack(request("ann"))
    assert len(packed) > 3 and max(len(record["data"]) for record in packed.values()) == 100  # type: ignore[arg-type,call-overload]
    assert same_bits(records.unpack(packed), request("ann"))


def test_the_model_for_all_nodes_is_sent_once() -> None:
    """Flower knows a piece by its hash, and sends none twice."""
    first, second = (message_parts(records.pack(request(name))) for name in ("ann", "ben"))
    common = set(first) & set(second)
    assert len(common) == 1 and len(first) == len(second) == 3  # the whole, what is alike, what is each node's own
    size = sum(block.numel() * block.element_size() for block in WEIGHTS.blocks)
    assert len(first[common.pop()]) > size > max(len(first[one]) for one in set(first) - set(second))


def test_other_records_are_refused() -> None:
    for wrong in (RecordDict(), RecordDict({"own": ConfigRecord({"text": "[]"})}), RecordDict({"own": ConfigRecord()})):
        with pytest.raises(UnreadableError, match="not those of Bespoke"):
            records.unpack(wrong)
