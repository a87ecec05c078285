"""The methods that the contract is tested on: all registered ones, and the probes."""

import pytest

from bespokefl.core.method import Method
from bespokefl.methods import REGISTRY
from tests.contract.probes import PROBES


def quick(kind: type[Method]) -> Method:
    """A method with its defaults, but for long local trainings and grids: what holds for two holds for twenty."""
    hyper = kind().hyper()
    epochs = {name: min(value, 2) for name, value in hyper.items() if name.endswith("epochs")}
    grids = {name: value[:2] for name, value in hyper.items() if isinstance(value, tuple)}
    return kind(**epochs, **grids)


@pytest.fixture(params=[*REGISTRY, *PROBES])
def method(request: pytest.FixtureRequest) -> Method:
    """Every registered method and every probe."""
    return quick({**REGISTRY, **PROBES}[request.param])


@pytest.fixture(params=list(REGISTRY))
def registered(request: pytest.FixtureRequest) -> type[Method]:
    return REGISTRY[request.param]
