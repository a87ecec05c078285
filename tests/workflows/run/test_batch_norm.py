"""Runs of a model with batch norm: files, resumed and deployed runs, newcomers, exported models."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import bespokefl as bf
from bespokefl.core.errors import InputError
from bespokefl.core.task import Task
from bespokefl.engines.federation import Federation
from bespokefl.engines.settings import Settings
from bespokefl.engines.transports.flower.messenger import NodeMessenger
from bespokefl.engines.transports.flower.server import Server
from bespokefl.methods import Ditto, FedAvg
from bespokefl.workflows.newcomers.personalize import personalize
from bespokefl.workflows.run.api import resume, run_config
from bespokefl.workflows.run.client_loading import hold_back
from bespokefl.workflows.run.settings import RunSettings
from tests.contract.test_batch_norm import normed
from tests.engines.transports.flower.grid import NODES, QUICK, TestHost, local_grid, only
from tests.engines.transports.flower.test_equality import personal_models
from tests.faults.test_resume import contents, die, in_a_child, write_data
from tests.federations import BATCH, apart, federation, run, same_bits

OPTIONS: dict[str, Any] = {"rounds": 2, "workers": 1, "batch_size": 16, "local_steps": 2, "model": "resnet8"}
STATISTIC = "base.1.running_var"  # after the first convolution


@pytest.fixture(scope="module")
def clients() -> bf.Clients:
    return bf.load("digits").split("dirichlet(alpha=1.0)", clients=5)


@pytest.fixture(scope="module")
def result(clients: bf.Clients) -> bf.Result:
    return bf.run("ditto", clients, newcomers=0.2, **OPTIONS)


def statistics(module: torch.nn.Module) -> list[Tensor]:
    return [value for name, value in module.state_dict().items() if name.endswith("running_var")]


def test_files_newcomers_and_a_warm_start(result: bf.Result, clients: bf.Clients, tmp_path: Path) -> None:
    path = result.save(tmp_path / "run")
    loaded = bf.load_run(path)
    one, other = (result.model(name) for name in result.names[:2])
    assert len(statistics(one)) == 7 and type(dict(one.named_modules())["base.1"]) is torch.nn.BatchNorm2d
    assert not any(torch.equal(a, b) for a, b in zip(statistics(one), statistics(other), strict=True))
    for name in result.names:
        assert same_bits(dict(loaded.model(name).state_dict()), dict(result.model(name).state_dict()))
    _, held = hold_back(clients, 0.2, 0)
    assert held is not None and result.newcomers is not None
    again = personalize(path, held)
    for name in held.names:
        assert same_bits(dict(again.model(name).state_dict()), dict(result.newcomers.model(name).state_dict()))
    warm = bf.run("fedavg", clients, start=path, **(OPTIONS | {"rounds": 1}))
    start, common = result.global_model(), warm.global_model()
    assert start is not None and common is not None
    apart_from_start = (common.state_dict()[STATISTIC] - start.state_dict()[STATISTIC]).norm()
    assert apart_from_start < (common.state_dict()[STATISTIC] - 1).norm()  # fresh statistics begin at 1


def test_exported_models_use_the_clients_statistics(result: bf.Result, tmp_path: Path) -> None:
    bf.export(result, result.names[0], out=tmp_path / "out", to="torchscript")
    traced = torch.jit.load(str(next((tmp_path / "out").rglob("model.pt"))))
    x = torch.rand(5, 1, 8, 8)
    with torch.no_grad():
        expected = result.model(result.names[0])(x).softmax(1)
    torch.testing.assert_close(traced(x), expected, rtol=1e-4, atol=1e-5)


def test_a_killed_run_resumes_with_its_statistics(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = write_data(tmp_path / "own.npz")
    (tmp_path / "normed_model.py").write_text(
        "from torch import nn\n\n\ndef make(shape, classes):\n"
        "    return nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, classes))\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    options: Any = {"model": "normed_model:make", "rounds": 4, "participation": 0.6, "workers": 1, "data": str(data)}

    def config(out: str) -> RunSettings:
        return RunSettings(method="ditto", checkpoint_every="1", out=str(tmp_path / out), **options)

    def killed() -> None:
        commit, left = Federation.commit, [3]

        def call(self: Federation, *given: Any) -> Any:
            left[0] -= 1
            return die() if left[0] == 0 else commit(self, *given)

        Federation.commit = call  # type: ignore[method-assign]
        run_config(config("killed"))

    assert in_a_child(killed) != 0
    run_config(config("whole"))
    resume(tmp_path / "killed")
    found, expected = contents(tmp_path / "killed"), contents(tmp_path / "whole")
    for name in ("personal.safetensors", "global.safetensors", "server.safetensors"):
        assert found[name] == expected[name]


def test_deployed_nodes_give_the_same(tmp_path: Path) -> None:
    data, method = federation(dtype=torch.float64), Ditto()
    _, expected = run(method, data, rounds=2, factory=normed)
    hosts = {name: TestHost(name, only(data, own), method, factory=normed) for name, own in NODES.items()}
    grid = local_grid(method, data, tmp_path, hosts=hosts)
    messenger = NodeMessenger(grid, QUICK)
    messenger.gather(lambda known: len(known) == len(grid.nodes))
    task = Task(normed, "cross_entropy", dtype=data.x.dtype)
    server = Server(method, task, Settings(rounds=2, batch_size=BATCH), messenger, "run", {})
    found = server.run()
    assert apart(personal_models(tmp_path, server.task.start, data.names), expected.personal_rows) < 1e-10
    assert expected.global_rows is not None and apart(found.global_rows, expected.global_rows) < 1e-10
    assert found.communication.up_bytes == expected.communication.up_bytes
    width = server.task.layout.width
    assert width == 8 * 5 + 5 + 4 * 5 + 5 * 3 + 3  # with mean and variance of five features
    assert expected.history[0]["up_bytes"] == 8 * width * len(data)


def test_noise_is_refused(clients: bf.Clients) -> None:
    with pytest.raises(InputError, match="uploads running statistics"):
        bf.run(FedAvg(), clients, clip=1.0, noise=0.5, **OPTIONS)
