"""The methods that the contract is tested on: all registered ones, and the probes."""

from collections.abc import Iterable
from typing import Any

import pytest

from bespokefl.core.method import Method
from bespokefl.methods import REGISTRY, SelfFL
from tests.contract.probes import PROBES

VARIANTS: dict[str, Method] = {"selffl-groups": SelfFL(clusters="groups", max_steps=3, extra_epochs=3)}  # need groups


# `make check` leaves these to `make test`: each is much like one that it keeps.
SLOW = {
    *("fedprox", "persfl-gd", "ucfl-parallel", "fedavg-ft", "perfedavg", "pfedme", "apfl", "fedrep", "ifca", "cfl"),
    *("fedfomo", "pfedbayes", "fedala", "feddbe", "fedbn", "fedsa-lora", "oracle"),
}


def params(names: Iterable[str]) -> list[Any]:
    return [pytest.param(name, marks=[pytest.mark.slow] if name in SLOW else []) for name in names]


def quick(kind: type[Method]) -> Method:
    """A method with its defaults, but for long local trainings and grids: what holds for a few holds for many."""
    given: dict[str, Any] = {}
    for name, value in kind().hyper().items():
        if type(value) is int and name.endswith(("epochs", "steps")):
            given[name] = min(value, 3)
        if isinstance(value, tuple):
            given[name] = value[:2]
    return kind(**given)


@pytest.fixture(params=params([*REGISTRY, *VARIANTS, *PROBES]))
def method(request: pytest.FixtureRequest) -> Method:
    """Every registered method, variants that ask for more than their defaults do, and every probe."""
    name = request.param
    return VARIANTS[name] if name in VARIANTS else quick({**REGISTRY, **PROBES}[name])


@pytest.fixture(params=params(REGISTRY))
def registered(request: pytest.FixtureRequest) -> type[Method]:
    return REGISTRY[request.param]
