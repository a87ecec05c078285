"""The methods that the contract is tested on: all registered ones, and the probes."""

import pytest

from bespokefl.core.method import Method
from bespokefl.methods import REGISTRY
from tests.contract.probes import PROBES


@pytest.fixture(params=[*REGISTRY, *PROBES])
def method(request: pytest.FixtureRequest) -> Method:
    """Every registered method, and every probe, as it comes."""
    made: Method = {**REGISTRY, **PROBES}[request.param]()
    return made


@pytest.fixture(params=list(REGISTRY))
def registered(request: pytest.FixtureRequest) -> type[Method]:
    return REGISTRY[request.param]
