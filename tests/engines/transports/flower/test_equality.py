"""A deployment over Flower gives the models that the simulation gives: for every method, within law 2."""

import json
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from torch import Tensor

from bespokefl.core.method import Method
from bespokefl.core.rows import Rows
from bespokefl.engines.transports.flower.node.node import PERSONAL
from tests.contract.conftest import method as method  # every registered method, variants and probes
from tests.engines.transports.flower.grid import NODES, deployment
from tests.federations import apart, federation, run

DOUBLE, SINGLE = federation(dtype=torch.float64), federation()
HALF = {"participation": 0.5, "rounds": 3}
LIMIT = {torch.float32: 1e-5, torch.float64: 1e-10}


def personal_models(folder: Path, like: Rows, names: tuple[str, ...]) -> Rows:
    """Everybody's model, from the nodes' disks: they never leave them."""
    found: dict[str, dict[str, Tensor]] = {}
    for node in NODES:
        with safe_open(folder / node / "run" / PERSONAL, framework="pt") as file:
            for at, client in enumerate(json.loads(file.metadata()["bespoke"])["clients"]):
                found[client] = {name: file.get_tensor(name)[at] for name in file.keys()}  # noqa: SIM118
    blocks = [torch.stack([found[client][name] for client in names]) for name in like.layout.names]
    return Rows(like.layout, blocks)


@pytest.mark.parametrize("data", [DOUBLE, SINGLE], ids=["float64", "float32"])
def test_same_numbers_as_in_simulation(method: Method, data: object, tmp_path: Path) -> None:
    _, expected = run(method, data, eval_every=1, **HALF)
    server, grid = deployment(method, data, tmp_path, eval_every=1, **HALF)
    found = server.run()
    limit = LIMIT[data.x.dtype]
    assert apart(personal_models(tmp_path, server.task.start, data.names), expected.personal_rows) < limit
    if expected.global_rows is not None:
        assert apart(found.global_rows, expected.global_rows) < limit
    for name, values in expected.personal.items():
        assert torch.allclose(found.personal[name].double(), values.double(), rtol=1e-3, atol=1e-4, equal_nan=True)
    assert expected.initial and found.initial == pytest.approx(expected.initial, rel=1e-3, abs=1e-4)
    assert [line["round"] for line in found.client_scores] == [line["round"] for line in expected.client_scores]
    for ours, theirs in zip(found.client_scores, expected.client_scores, strict=True):
        for name in ("accuracy", "loss"):
            assert ours[name] == pytest.approx(theirs[name], rel=1e-3, abs=1e-4, nan_ok=True)
    assert [line["reported"] for line in found.history] == [line["reported"] for line in expected.history]
    assert [line["up_bytes"] for line in found.history] == [line["up_bytes"] for line in expected.history]
    assert found.communication.up_bytes == expected.communication.up_bytes
    assert not found.lost and not found.unscored
    assert len(grid.nodes) == 3
