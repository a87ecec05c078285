"""Features of a frozen backbone are computed once, with the results of computing them anew in every step."""

import pytest
import torch
from torch import nn

from bespokefl.core.task import Task
from bespokefl.engines.cohorts import features
from bespokefl.engines.settings import Settings
from bespokefl.methods import FedAvg, FedDBE, FedPer, PersFL, PFedVEM, SelfFL
from tests.core.modules import Pretrained
from tests.federations import CLASSES, WIDTH, apart, federation, run, same_bits, simulation

DATA = federation(dtype=torch.float64)


class Moody(Pretrained):
    """Another function in training, without random numbers."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(2 * x if self.training else x)


def partly() -> nn.Module:
    module = nn.Sequential(nn.Linear(WIDTH, 5), nn.Tanh(), nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, CLASSES))
    module[0].requires_grad_(False)
    return module


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


@pytest.mark.parametrize("factory", [Moody, partly, lambda: nn.Linear(WIDTH, CLASSES)])
def test_other_models_are_computed_as_a_whole(factory: object) -> None:
    made = simulation(FedAvg(), DATA, factory=factory)
    assert made.side.task is made.task and same_bits(made.side.data.x, DATA.x)


def test_the_reference_loop_computes_everything() -> None:
    task = Task(Pretrained, dtype=torch.float64)
    assert features.with_features(task, DATA, Settings(reference=True)) == (task, DATA)
