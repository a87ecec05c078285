"""Parameters that a model does not use stay as they are, also where nothing else is trained."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import bespokefl as bf
from bespokefl.data.clients import Clients


class Scaled(nn.Module):
    """A linear model with a scalar that nothing uses."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(1.0))
        self.linear = nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Any:
        return self.linear(x.flatten(1))


@pytest.fixture(scope="module")
def clients() -> Clients:
    return bf.load("digits").split("classes(k=3)", clients=3, seed=0)


@pytest.mark.parametrize("engine", ["simulation", "reference"])
@pytest.mark.parametrize("head", ["scale", "linear"])
@pytest.mark.parametrize("method", ["fedrep", "pfedvem", "fedper", "ditto"])
def test_an_unused_scalar(method: str, head: str, engine: str, clients: Clients) -> None:
    found = bf.run(method, clients, model=Scaled, head=head, rounds=1, workers=1, engine=engine)
    for name in found.names:
        model = found.model(name).state_dict()
        if method != "pfedvem" or head != "scale":  # which draws its head towards a latent one
            assert float(model["scale"]) == 1.0
        assert all(bool(value.isfinite().all()) for value in model.values())
    assert found.summary()
