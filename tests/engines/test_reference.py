"""The plain PyTorch loop and the fast engine give the same, and the loop is what anybody would write."""

import pytest
import torch
import torch.nn.functional as F

from bespokefl.core.method import Method
from bespokefl.core.rows import Rows
from bespokefl.methods import Ditto, FedAvg, FedProx, Local
from tests.core.modules import Dropped, Pretrained, Temperature
from tests.federations import NAMES, apart, federation, mlp, run, work_of

DATA = federation(dtype=torch.float64)
METHODS = [Local(lr=0.1, momentum=0.5), FedAvg(lr=0.1), FedProx(lr=0.1, weight_decay=0.1), Ditto(lr=0.1, momentum=0.9)]


@pytest.mark.parametrize("chunk", [1, 3, None])
@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.name)
def test_equal_to_the_simulation(method: Method, chunk: int | None) -> None:
    options = {"participation": 0.5, "rounds": 3, "local_epochs": 2}
    fast, found = run(method, DATA, chunk=chunk, **options)
    slow, expected = run(method, DATA, reference=True, **options)
    assert apart(found.personal_rows, expected.personal_rows) < 1e-10
    for name, rows in slow.server.items():
        assert apart(fast.server[name], rows) < 1e-10
    for name, values in expected.personal.items():
        torch.testing.assert_close(found.personal[name], values, equal_nan=True)
    assert found.communication == expected.communication
    assert expected.executor.chunk == 1 and not expected.executor.stacked and expected.workers == 1


@pytest.mark.parametrize("factory", [Dropped, Pretrained, Temperature])
def test_equal_for_other_models(factory) -> None:  # type: ignore[no-untyped-def]
    for method in (FedAvg(lr=0.1), Ditto(lr=0.1)):
        _, found = run(method, DATA, factory=factory)
        _, expected = run(method, DATA, factory=factory, reference=True)
        assert apart(found.personal_rows, expected.personal_rows) < 1e-10


def test_what_anybody_would_write() -> None:
    """FedAvg in a page: one module, load_state_dict, optim.SGD, a weighted sum."""
    made, outcome = run(FedAvg(lr=0.2, momentum=0.9), DATA, reference=True, rounds=3)
    module = mlp().to(torch.float64)
    common = {name: value.clone() for name, value in made.task.start.state().items()}
    for number in (1, 2, 3):
        total = {name: torch.zeros_like(value) for name, value in common.items()}
        for k in range(len(NAMES)):
            module.load_state_dict(common)
            optimizer = torch.optim.SGD(module.parameters(), lr=0.2, momentum=0.9)
            for batch in work_of(DATA, [k], round=number).batches(0):
                own = torch.from_numpy(batch)
                optimizer.zero_grad()
                F.cross_entropy(module(DATA.x[own]), DATA.y[own]).backward()
                optimizer.step()
            share = len(DATA.train.of(k)) / len(DATA.train.indices)
            for name, value in module.state_dict().items():
                total[name] += share * value
        common = total
    assert apart(outcome.server["weights"], Rows.from_state(made.task.layout, common)) < 1e-12
