"""What every method owes a GPU: rows stay on the asked device, and numbers per client on the host.

No GPU is needed: `CheckedDevice` fails on operations that mix devices, notes what is copied, and has the CPU's bits.
"""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import bespokefl as bf
from bespokefl.core.method import Method
from bespokefl.core.rows import Rows
from bespokefl.core.task import Task
from bespokefl.engines.outcome import Outcome
from bespokefl.engines.settings import Settings
from bespokefl.engines.simulation import Simulation
from bespokefl.engines.storage import checkpoint_format
from bespokefl.methods import CFL, REGISTRY, Ditto, FedAvg
from tests.contract.conftest import VARIANTS, params, quick
from tests.core.modules import conv
from tests.devices import DEVICE, CheckedDevice, Remote, WrongDeviceError
from tests.federations import BATCH, CLASSES, WIDTH, federation, mlp, same_bits, work_of

SPLITS = CFL(small=10.0, large=0.01, patience=0, across=1.0)
METHODS: dict[str, Method] = {name: quick(kind) for name, kind in REGISTRY.items()} | VARIANTS | {"cfl-splits": SPLITS}
DATA = federation()

# Where more than numbers of clients may cross, or be on the host, and why.
DOWN = {
    "core/task.py:Task.score": "losses and hits of all examples, of which numpy makes scores",
    "core/task.py:Task.sweep_losses": "losses of all examples, of which numpy makes means",
    "core/scores/measures.py:OutputMeasures.add": "outputs, of which numpy and scipy make scores",
    "engines/constant_predictor.py:constant_models": "labels, which are counted once",
    "methods/ucfl/similarity.py:as_array": "gradients of the survey: scipy makes the collaboration matrix of them",
    "engines/storage/safetensors_writer.py:tensor_bytes": "a checkpoint is written",
}
DRAWN = {  # random numbers are numpy's, so that they are the same on all devices
    "core/cohort_data.py:CohortData.quantile_noise",
    "core/rng.py:normal_quantiles",
    "engines/protection/clipping.py:Privacy._normal",
    "methods/pfedvem.py:PFedVEM._sampled",
}
UP = DRAWN | {"core/cohort_data.py:BatchSchedule._weight"}  # which examples are padding
HOST = UP | DOWN.keys() | {"core/scores/measures.py:OutputMeasures.scores"}
HOST |= {"core/scores/measures.py:classification_measures", "methods/fedala.py:FedALA._converge"}  # losses over steps
HOST |= {f"engines/storage/{name}" for name in ("client_states.py:_write", "mapped_files.py:_tensor_in")}  # numbers


def trained(
    method: Method, checked: CheckedDevice | None, factory: Callable[[], nn.Module] = mlp, **settings: Any
) -> tuple[Simulation, Outcome, Rows]:
    """A run on the checked device, or on the CPU: the simulation, its outcome and the models of newcomers."""
    device = "cpu" if checked is None else DEVICE
    data = federation(width=16) if factory is conv else DATA
    x = data.x.reshape(-1, 1, 4, 4) if factory is conv else data.x
    data, task = replace(data, x=x.to(device), y=data.y.to(device)), Task(factory, device=device)
    if checked is not None:
        checked.forget()  # that data and task were put there
    chosen = Settings(**{"rounds": 2, "workers": 1, "batch_size": BATCH, "participation": 0.5, "chunk": 3} | settings)
    made = Simulation(method, task, data, chosen, CLASSES)
    outcome = made.run()
    served = made.method.newcomer(task, made.server, work_of(data)).expand(len(data))
    return made, outcome, served


def left(made: Simulation, outcome: Outcome, served: Rows) -> dict[str, Any]:
    """All values that a run leaves, by name."""
    states = made.store.get(range(len(DATA)))
    return {**made.server, **{f"state {name}": value for name, value in states.items()}} | {
        "models": outcome.models,
        "newcomers": served,
        **{f"score {name}": value for name, value in outcome.personal.items()},
    }


def assert_in_place(values: dict[str, Any]) -> None:
    """Rows are on the device, other values on the host."""
    for name, value in values.items():
        if isinstance(value, Rows):
            assert all(isinstance(block, Remote) for block in value.blocks), name
        else:
            assert not isinstance(value, Remote), name


def brought(values: dict[str, Any]) -> dict[str, Any]:
    return {name: value.to(device="cpu") if isinstance(value, Rows) else value for name, value in values.items()}


def assert_same_on_both(method: Method, *how: Any, **settings: Any) -> None:
    expected = left(*trained(method, None, *how, **settings))
    with CheckedDevice() as device:
        made, outcome, served = trained(method, device, *how, **settings)
        found = left(made, outcome, served)
        assert device.down.keys() <= DOWN.keys()
        assert device.up.keys() <= UP
        assert device.host.keys() <= HOST
        assert_in_place(found)
        assert same_bits(brought(found), expected)


@pytest.mark.parametrize("name", params(METHODS))
def test_methods_stay_on_their_device(name: str) -> None:
    assert_same_on_both(METHODS[name])


def batch_normed() -> nn.Module:
    return nn.Sequential(nn.Linear(WIDTH, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, CLASSES))


@pytest.mark.parametrize(
    ("factory", "settings"),
    [
        (mlp, {"chunk": 1}),
        (conv, {}),
        (batch_normed, {}),
        (batch_normed, {"chunk": 1}),
        (mlp, {"reference": True}),
        (mlp, {"clip": 1.0, "noise": 0.1}),
    ],
    ids=["plain", "convolutions", "batch norm", "plain batch norm", "reference", "noise"],
)
def test_models_and_engines_stay_on_their_device(factory: Callable[[], nn.Module], settings: dict[str, Any]) -> None:
    method = METHODS["pfedvem"] if "clip" in settings else Ditto()
    assert_same_on_both(method, factory, **settings)


class StoppedError(Exception):
    pass


@pytest.mark.parametrize("in_files", [False, True])
def test_a_whole_run_and_its_resumption(in_files: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From the user's call to the saved result: states in memory or in files, checkpoints, models of every round."""
    rng = np.random.default_rng(0)
    y = rng.integers(0, 3, 120)
    clients = bf.Clients.from_arrays(rng.normal(size=(120, 5)) + np.eye(5)[y], y, np.arange(120) % 6)
    how = {"rounds": 3, "workers": 1, "batch_size": 8, "model": "mlp(hidden=(6,))", "newcomers": 0.2, "chunk": 2}
    how |= {"checkpoint_every": "1", "keep_rounds": True}
    here = bf.run("ditto", clients, **how)
    write = checkpoint_format.write

    def written(*args: Any, **about: Any) -> None:
        with CheckedDevice():  # this is another thread
            write(*args, **about)

    def stop(now: Any) -> None:
        if now.done == 2:
            raise StoppedError

    monkeypatch.setattr(checkpoint_format, "write", written)
    how |= {"state_dir": str(tmp_path / "states")} if in_files else {}
    with CheckedDevice():
        with pytest.raises(StoppedError):
            bf.run("ditto", clients, device="meta", checkpoint=tmp_path / "run", progress=stop, **how)
        found = bf.run("ditto", clients, device="meta", checkpoint=tmp_path / "run", **how)
        saved = bf.load_run(found.save(tmp_path / "saved"))
    assert found.newcomers is not None and here.newcomers is not None
    for name, values in here.personal.items():
        np.testing.assert_array_equal(found.personal[name], values)
    assert found.newcomers.clients == here.newcomers.clients
    assert same_bits(saved.model(clients.names[0]).state_dict(), here.model(clients.names[0]).state_dict())


# -- the device itself


def test_the_device_checks() -> None:
    with CheckedDevice() as device:
        far, near = torch.ones(8, 8, device="meta"), torch.ones(8, 8)
        assert isinstance(far, Remote) and far.device == DEVICE
        assert torch.equal(torch.tensor([1.0, 2.0], device="meta").cpu(), torch.tensor([1.0, 2.0]))
        with pytest.raises(WrongDeviceError, match=r"on the device, \(8, 8\) on the host"):
            far + near
        with pytest.raises(RuntimeError, match="numpy"):
            far.numpy()
        assert float((far + torch.tensor(1.0)).sum()) == 128  # single numbers may be on the host, as on a GPU
        assert not device.down and not device.up
        far.cpu()
        near.to(DEVICE)
    assert sum(device.down.values()) == sum(device.up.values()) == 64 and device.host


class Astray(FedAvg):
    """Averages on the host."""

    def aggregate(self, server: Any, uploads: Any, round: Any) -> Any:
        return {"weights": super().aggregate(server, uploads, round)["weights"].to(device="cpu").to(device=DEVICE)}


def test_a_detour_is_noticed() -> None:
    with CheckedDevice() as device:
        trained(Astray(), device)
    assert device.down.keys() - DOWN.keys() == device.up.keys() - UP == {"core/rows.py:Rows.to"}


def test_values_of_the_device_are_tensors() -> None:
    """Autograd, views and changes in place work as on any device."""
    with CheckedDevice():
        w = torch.ones(3, device="meta").requires_grad_()
        (slope,) = torch.autograd.grad((w * w).sum(), w)
        view = slope.detach()[:2]
        view.mul_(5)
        found: Tensor = slope.cpu()
    assert found.tolist() == [10.0, 10.0, 2.0]
