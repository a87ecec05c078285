"""The methods that the contract is tested on: all registered ones, and the probes."""

from typing import Any

import pytest

from bespokefl.core.method import Method
from bespokefl.methods import REGISTRY
from tests.contract.probes import PROBES


def quick(kind: type[Method]) -> Method:
    """A method with its defaults, but for long local trainings and grids: what holds for a few holds for many."""
    given: dict[str, Any] = {}
    for name, value in kind().hyper().items():
        if type(value) is int and name.endswith(("epochs", "steps")):
            given[name] = min(value, 3)
        if isinstance(value, tuple):
            given[name] = value[:2]
    return kind(**given)


@pytest.fixture(params=[*REGISTRY, *PROBES])
def method(request: pytest.FixtureRequest) -> Method:
    """Every registered method and every probe."""
    return quick({**REGISTRY, **PROBES}[request.param])


@pytest.fixture(params=list(REGISTRY))
def registered(request: pytest.FixtureRequest) -> type[Method]:
    return REGISTRY[request.param]
