"""FedBN: a shared model, normalization layers of one's own."""

import copy
import logging

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from bespokefl.core.rows import Rows
from bespokefl.methods import FedAvg, FedBN, Local
from tests.federations import CLASSES, WIDTH, apart, federation, run, same_bits, work_of

DATA = federation((3, 18, 8, 12, 6, 10), dtype=torch.float64)  # no batch of one example
THREE = federation((2, 4, 10), dtype=torch.float64)
EVERYBODY = list(range(len(DATA)))


def normed() -> nn.Module:
    return nn.Sequential(nn.Linear(WIDTH, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, CLASSES))


class AllNorm(nn.Module):
    """Only the normalization layer is trained."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(WIDTH)
        self.out = nn.Linear(WIDTH, CLASSES).requires_grad_(False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(self.norm(x))


@pytest.mark.parametrize("sgd", [{}, {"momentum": 0.5, "weight_decay": 0.1}])
def test_a_model_of_norm_alone_is_local(sgd: dict[str, float]) -> None:
    options = {"factory": AllNorm, "rounds": 3, "participation": 0.5}
    made, found = run(FedBN(lr=0.2, **sgd), DATA, **options)
    _, expected = run(Local(lr=0.2, **sgd), DATA, **options)
    assert same_bits(found.personal_rows, expected.personal_rows)
    assert found.communication.up_bytes == found.communication.down_bytes == 0
    assert apart(found.personal_rows, made.task.start) > 1e-2


def test_without_norm_it_is_fedavg_and_says_so(caplog: pytest.LogCaptureFixture) -> None:
    options = {"rounds": 3, "participation": 0.5}
    with caplog.at_level(logging.WARNING, logger="bespokefl"):
        _, found = run(FedBN(lr=0.2), DATA, **options)
    assert "the model has no normalization layers, so that fedbn is fedavg" in caplog.messages
    _, expected = run(FedAvg(lr=0.2, weights="equal"), DATA, **options)
    assert same_bits(found.personal_rows, expected.personal_rows)
    assert found.communication == expected.communication


def test_three_clients_with_torch_alone() -> None:
    """Each its own module and optimizer, and a loop over the keys of state dicts, as in the authors' code."""
    made, outcome = run(FedBN(lr=0.1), THREE, rounds=2, factory=normed)
    modules = [normed().double() for _ in range(3)]
    for module in modules:
        module.load_state_dict(made.task.start.state(), strict=False)
    for number in (1, 2):
        work = work_of(THREE, round=number)
        for k, module in enumerate(modules):
            optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
            for batch in work.batches(k):
                optimizer.zero_grad()
                F.cross_entropy(module(THREE.x[batch]), THREE.y[batch]).backward()
                optimizer.step()
        states = [copy.deepcopy(module.state_dict()) for module in modules]
        for key in states[0]:
            if not key.startswith("1."):
                for module in modules:
                    module.state_dict()[key].copy_(sum(state[key] for state in states) / 3)
    for k, module in enumerate(modules):
        state = {name: module.state_dict()[name].unsqueeze(0) for name in made.task.layout.names}
        assert apart(outcome.personal_rows[[k]], Rows(made.task.layout, list(state.values()))) < 1e-10


def test_nothing_of_a_norm_layer_is_sent() -> None:
    made, outcome = run(FedBN(), DATA, factory=normed, rounds=1)
    shared = 8 * 5 + 5 + 5 * 3 + 3
    assert made.server["shared"].layout.width == shared
    assert outcome.communication.up_bytes == 8 * shared * len(DATA)
    assert outcome.global_rows is None
    scales = outcome.personal_rows.block("1").matrix()
    assert len(scales.unique(dim=0)) == len(DATA)


def test_a_newcomer_trains_norm_layers_alone() -> None:
    made, _ = run(FedBN(lr=0.1), DATA, factory=normed)
    work = work_of(DATA, expected_rounds=2)
    rows = made.method.newcomer(made.task, made.server, work)
    shared: Rows = made.server["shared"]
    assert same_bits(rows.block(shared.layout.names), shared.expand(len(DATA)).clone())
    assert apart(rows.block("1"), made.task.start.block("1")) > 1e-2
