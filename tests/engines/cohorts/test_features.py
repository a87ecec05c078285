"""Features of a frozen backbone are computed once, with the results of computing them anew in every step."""

import pytest
import torch
from torch import nn

from bespokefl.core.task import Task
from bespokefl.engines.cohorts import features
from bespokefl.engines.settings import Settings
from bespokefl.methods import FedAvg, FedDBE, FedPer, FedSALoRA, PersFL, PFedVEM, SelfFL
from bespokefl.models import lora
from tests.core.modules import Pretrained
from tests.federations import CLASSES, WIDTH, apart, federation, run, same_bits, simulation

DATA = federation(dtype=torch.float64)


class Moody(Pretrained):
    """Another function in training, without random numbers."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(2 * x if self.training else x)


@pytest.mark.parametrize(
    "method", [FedAvg(), FedPer(), SelfFL(max_steps=3), PersFL(distil_epochs=2), FedDBE(), PFedVEM(head_steps=2)]
)
@pytest.mark.parametrize("options", [{"chunk": 1}, {"chunk": 6}, {"chunk": 2, "workers": 2}])
def test_the_same_results(method: object, options: dict[str, int], monkeypatch: pytest.MonkeyPatch) -> None:
    made, found = run(method, DATA, factory=Pretrained, **options)
    assert len(list(made.side.task.module.parameters())) == 2 and made.side.data.x.shape == (len(DATA.x), 5)
    monkeypatch.setattr(features.Task, "on_features", lambda self, x: None)
    plain, expected = run(method, DATA, factory=Pretrained, **options)
    assert plain.side.task is plain.task
    assert apart(found.personal_rows, expected.personal_rows) < 1e-10
    assert found.communication == expected.communication
    for name, values in expected.personal.items():
        torch.testing.assert_close(found.personal[name], values, equal_nan=True)


def ending() -> nn.Module:
    """What is trained is at the end: adapters, batch norm and the head."""
    layers = [nn.Linear(WIDTH, 7), nn.Tanh(), nn.Linear(7, 5), nn.BatchNorm1d(5), nn.Tanh(), nn.Linear(5, CLASSES)]
    return lora(nn.Sequential(*layers), "2", rank=2, unfreeze=("3", "5"))


@pytest.mark.parametrize("method", [FedAvg(), FedSALoRA(), SelfFL(max_steps=3), FedDBE()])
@pytest.mark.parametrize("options", [{"chunk": 1}, {"chunk": 2, "workers": 2}])
def test_the_end_of_a_sequence(method: object, options: dict[str, int], monkeypatch: pytest.MonkeyPatch) -> None:
    made, found = run(method, DATA, factory=ending, **options)
    assert made.side.data.x.shape == (len(DATA.x), 7) and made.side.task.layout == made.task.layout
    monkeypatch.setattr(features.Task, "on_features", lambda self, x: None)
    plain, expected = run(method, DATA, factory=ending, **options)
    assert plain.side.task is plain.task
    assert apart(found.personal_rows, expected.personal_rows) < 1e-10
    assert found.communication == expected.communication
    for name, values in expected.personal.items():
        torch.testing.assert_close(found.personal[name], values, equal_nan=True)


def test_what_is_left_decides_how_it_is_computed() -> None:
    """A head on a frozen convolution is stacked."""

    def factory() -> nn.Module:
        layers = [nn.Unflatten(1, (1, WIDTH)), nn.Conv1d(1, 2, 3), nn.Flatten(), nn.Linear(2 * WIDTH - 4, CLASSES)]
        layers[1].requires_grad_(False)
        return nn.Sequential(*layers)

    made = simulation(FedAvg(), DATA, factory=factory)
    assert made.side.task.stacked and made.executor.stacked


class Changing(nn.Linear):
    """Frozen, but another function in training."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(2 * x if self.training else x)


def unsteady() -> nn.Module:
    layers = [Changing(WIDTH, 5).requires_grad_(False), nn.Tanh(), nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, CLASSES)]
    return nn.Sequential(*layers)


@pytest.mark.parametrize("factory", [Moody, unsteady, lambda: nn.Linear(WIDTH, CLASSES)])
def test_other_models_are_computed_as_a_whole(factory: object) -> None:
    made = simulation(FedAvg(), DATA, factory=factory)
    assert made.side.task is made.task and same_bits(made.side.data.x, DATA.x)


def test_the_reference_loop_computes_everything() -> None:
    task = Task(Pretrained, dtype=torch.float64)
    assert features.prepare(task, DATA, Settings(reference=True), CLASSES)[:2] == (task, DATA)
