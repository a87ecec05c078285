"""Mixed precision: layers compute in bfloat16, everything else stays in float32."""

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import bespokefl as bf
from bespokefl.core.errors import InputError
from bespokefl.core.rows import Rows
from bespokefl.core.task import Task
from bespokefl.engines.settings import Settings
from bespokefl.engines.simulation import Simulation
from bespokefl.methods import REGISTRY
from bespokefl.workflows.run.convert import find_device
from tests.contract.conftest import quick
from tests.core.modules import Pretrained, conv
from tests.devices import CheckedDevice
from tests.federations import CLASSES, WIDTH, apart, federation, mlp, random_rows, same_bits, work_of

LOW, ROUNDING = torch.bfloat16, 2e-2  # of gradients; bfloat16 has three digits
QUICK: dict[str, Any] = {"rounds": 3, "batch_size": 16, "precision": "bfloat16", "local_epochs": 2}


SEEN: set[torch.dtype] = set()


class Watched(nn.Module):
    """A model that notes the types of what its layers return."""

    def __init__(self) -> None:
        super().__init__()
        self.base, self.head = nn.Linear(WIDTH, 6), nn.Linear(6, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.base(x)
        SEEN.add(hidden.dtype)
        return self.head(torch.relu(hidden))


def smooth() -> nn.Module:
    return nn.Sequential(nn.Linear(WIDTH, 6), nn.Tanh(), nn.Linear(6, CLASSES))


def batch_normed() -> nn.Module:
    return nn.Sequential(nn.Linear(WIDTH, 6), nn.BatchNorm1d(6), nn.Tanh(), nn.Linear(6, CLASSES))


def gradient(factory: Callable[[], nn.Module], x: Tensor, *, stacked: bool, low: torch.dtype | None) -> Rows:
    data = replace(federation(), x=x)
    task = Task(factory, autocast=low)
    if stacked:
        task.stack()
    return task.gradient(random_rows(task, len(data)), work_of(data).plan().batch(0))


@pytest.mark.parametrize("stacked", [False, True])
def test_layers_compute_in_bfloat16(stacked: bool) -> None:
    data, task = federation(), Task(Watched, autocast=LOW)
    if stacked:
        task.stack()
    SEEN.clear()
    found = task.gradient(task.start.expand(len(data)), work_of(data).plan().batch(0))
    outputs = task.predict(task.start, data.x[None])
    assert list(SEEN) == [LOW]
    assert found.dtype == outputs.dtype == task.start.dtype == torch.float32


@pytest.mark.parametrize("factory", [smooth, conv, batch_normed, Pretrained])
@pytest.mark.parametrize("stacked", [False, True])
def test_gradients_are_those_of_float32_but_for_rounding(factory: Callable[[], nn.Module], stacked: bool) -> None:
    data = federation(width=16) if factory is conv else federation()
    x = data.x.reshape(-1, 1, 4, 4) if factory is conv else data.x
    low, full = (gradient(factory, x, stacked=stacked, low=one) for one in (LOW, None))
    distance = (low - full).square_norm().sum() / full.square_norm().sum()
    assert 0 < float(distance) ** 0.5 < ROUNDING
    assert low.observed is None or all(value.dtype == torch.float32 for value in low.observed.values())


# One of each kind: averages, heads on features, features as outputs, second derivatives, noise, choices by loss.
@pytest.mark.parametrize("name", ["fedavg", "fedrep", "feddbe", "perfedavg", "pfedvem", "pfedbayes", "ifca"])
def test_methods_run(name: str) -> None:
    data = federation()
    models = []
    for low in (LOW, LOW, None):
        task = Task(mlp, autocast=low)
        settings = Settings(rounds=2, workers=1, batch_size=4)
        made = Simulation(quick(REGISTRY[name]), task, data, settings, CLASSES)
        models.append(made.run().models)
        assert made.executor.stacked
    assert same_bits(models[0], models[1])
    assert 0 < apart(models[0], models[2]) < 0.1


@pytest.fixture(scope="module")
def digits() -> bf.Clients:
    return bf.load("digits").split("dirichlet(alpha=0.4)", clients=6, seed=0)


def test_a_run_and_its_files(digits: bf.Clients, tmp_path: Path) -> None:
    """Weights are float32 on disk, too; workers change no bit; newcomers are trained in the same way."""
    result = bf.run("ditto", digits, workers=1, newcomers=0.2, **QUICK)
    full = bf.run("ditto", digits, workers=1, newcomers=0.2, **QUICK | {"precision": "float32"})
    two = bf.run("ditto", digits, workers=2, newcomers=0.2, **QUICK)
    np.testing.assert_array_equal(two.personal["loss"], result.personal["loss"])
    np.testing.assert_allclose(result.personal["loss"], full.personal["loss"], rtol=0.05)
    assert not np.array_equal(result.personal["loss"], full.personal["loss"])
    loaded = bf.load_run(result.save(tmp_path / "run"))
    assert loaded.config.precision == "bfloat16" and loaded.newcomers is not None
    state = loaded.model(digits.names[0]).state_dict()
    assert {value.dtype for value in state.values()} == {torch.float32}
    assert same_bits(dict(state), dict(result.model(digits.names[0]).state_dict()))


def test_the_reference_loop_agrees(digits: bf.Clients) -> None:
    plain, fast = (bf.run("fedavg", digits, engine=engine, **QUICK) for engine in ("reference", "simulation"))
    np.testing.assert_allclose(plain.personal["loss"], fast.personal["loss"], rtol=0.05)


def test_a_device_without_bfloat16_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    assert find_device("cpu", "bfloat16") == torch.device("cpu")
    expected = r"the device '\w+' cannot compute in bfloat16; use --precision float32\."
    with CheckedDevice(), pytest.raises(InputError, match=expected):
        find_device("meta", "bfloat16")
    zeros = torch.zeros
    monkeypatch.setattr(torch, "zeros", lambda size, device: zeros(size))  # as if there were a GPU
    monkeypatch.setattr(torch.cuda, "device", lambda device: nullcontext())
    for has in (True, False):
        monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda has=has, **_: has)
        with nullcontext() if has else pytest.raises(InputError, match=expected):
            assert find_device("cuda", "bfloat16") == torch.device("cuda")
