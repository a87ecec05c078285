"""Runs whose clients keep some columns: files, newcomers, noise, and deployed nodes."""

from pathlib import Path
from typing import Any

import pytest
import torch

import bespokefl as bf
from bespokefl.core.errors import InputError
from bespokefl.core.task import Task
from bespokefl.engines.client import ClientSide
from bespokefl.engines.settings import Settings
from bespokefl.engines.transports.flower.messenger import NodeMessenger
from bespokefl.engines.transports.flower.server import Server
from bespokefl.methods import Ditto
from bespokefl.workflows.newcomers.personalize import personalize
from bespokefl.workflows.run.client_loading import hold_back
from tests.contract.test_batch_norm import normed
from tests.engines.transports.flower.grid import NODES, QUICK, TestHost, local_grid, only
from tests.engines.transports.flower.test_equality import personal_models
from tests.federations import BATCH, apart, federation, run, same_bits

OPTIONS: dict[str, Any] = {"rounds": 2, "workers": 1, "batch_size": 16, "local_steps": 2, "model": "mlp(hidden=(6,))"}


@pytest.fixture(scope="module")
def clients() -> bf.Clients:
    return bf.load("digits").split("dirichlet(alpha=1.0)", clients=5)


def test_files_and_newcomers(clients: bf.Clients, tmp_path: Path) -> None:
    result = bf.run("fedavg", clients, newcomers=0.2, local_blocks="head", **OPTIONS)
    assert result.global_model() is None
    bases, heads = ([getattr(result.model(name), part) for name in result.names] for part in ("base", "head"))
    assert all(torch.equal(one[1].weight, bases[0][1].weight) for one in bases)  # type: ignore[index]
    assert not any(torch.equal(one.weight, heads[0].weight) for one in heads[1:])  # type: ignore[arg-type]
    path = result.save(tmp_path / "run")
    assert 'local_blocks = "head"' in (path / "config.toml").read_text()
    _, held = hold_back(clients, 0.2, 0)
    assert held is not None and result.newcomers is not None
    again = personalize(path, held)
    for name in held.names:
        assert same_bits(dict(again.model(name).state_dict()), dict(result.newcomers.model(name).state_dict()))
        assert torch.equal(again.model(name).base[1].weight, bases[0][1].weight)  # type: ignore[index]


def test_noise_covers_what_is_uploaded(clients: bf.Clients) -> None:
    options = OPTIONS | {"model": "resnet8", "clip": 1.0, "noise": 0.1, "rounds": 1}
    result = bf.run("fedavg", clients, local_blocks="norm", **options)
    assert result.about["privacy"]
    with pytest.raises(InputError, match="keep them at the clients with local_blocks norm"):
        bf.run("fedavg", clients, **options)


def test_no_kept_rounds_without_a_global_model(clients: bf.Clients) -> None:
    with pytest.raises(InputError, match="global model"):
        bf.run("persfl", clients, local_blocks="head", keep_rounds=True, **OPTIONS)


def test_deployed_nodes_give_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data, method, blocks = federation(dtype=torch.float64), Ditto(), "norm"
    _, expected = run(method, data, rounds=2, factory=normed, local_blocks=blocks)
    hosts = {name: TestHost(name, only(data, own), method, factory=normed) for name, own in NODES.items()}
    monkeypatch.setattr("tests.engines.transports.flower.grid.Task", lambda *a, **k: Task(*a, **k, local_blocks=blocks))
    grid = local_grid(method, data, tmp_path, hosts=hosts)
    messenger = NodeMessenger(grid, QUICK)
    messenger.gather(lambda known: len(known) == len(grid.nodes))
    task = Task(normed, "cross_entropy", dtype=data.x.dtype, local_blocks=blocks)
    server = Server(method, task, Settings(rounds=2, batch_size=BATCH), messenger, "run", {})
    found = server.run()
    assert apart(personal_models(tmp_path, server.task.start, data.names), expected.personal_rows) < 1e-10
    assert found.global_rows is None
    assert found.communication.up_bytes == expected.communication.up_bytes
    assert ClientSide(method, task, data, Settings()).method.name == "ditto"
