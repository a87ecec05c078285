"""Methods are found by name and built from what stands on a command line."""

import sys
from typing import Any

import pytest

from bespokefl import methods
from bespokefl.core.errors import InputError
from bespokefl.methods import Ditto, FedAvg, build, find


def test_names_are_the_methods_own() -> None:
    assert all(kind.name == name for name, kind in methods.REGISTRY.items())
    assert {kind.__name__ for kind in methods.REGISTRY.values()} <= set(methods.__all__)
    assert all(getattr(methods, kind.__name__) is kind for kind in methods.REGISTRY.values())


def test_find() -> None:
    assert find("ditto") is Ditto
    with pytest.raises(InputError, match="unknown method 'dito'; did you mean 'ditto'"):
        find("dito")


def test_build() -> None:
    assert build("fedavg") == FedAvg()
    assert build("ditto", {"prox_weight": 2, "lr": 0.5}) == Ditto(prox_weight=2.0, lr=0.5)
    assert isinstance(build("ditto", {"prox_weight": 2}).hyper()["prox_weight"], float)
    assert build("fedavg", {"weights": "equal"}) == FedAvg(weights="equal")


@pytest.mark.parametrize(
    ("hyper", "sentence"),
    [
        ({"lrr": 1}, "unknown hyper-parameter of fedavg 'lrr'; did you mean 'lr'"),
        ({"lr": "fast"}, "lr of fedavg must be a number, got 'fast'"),
        ({"lr": True}, "lr of fedavg must be a number, got True"),
        ({"weights": 3}, "weights of fedavg must be text, got 3"),
        ({"lr": -1}, "lr must be > 0"),
    ],
)
def test_what_does_not_fit(hyper: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        build("fedavg", hyper)


@pytest.mark.parametrize("name", ["ditto", "fedprox", "pfedme"])
def test_former_names_of_hyper_parameters_work_with_a_warning(name: str) -> None:
    expected = methods.build(name, {"prox_weight": 0.25})
    with pytest.warns(FutureWarning, match=f"pull of {name} is now prox_weight"):
        assert methods.build(name, {"pull": 0.25}) == expected
    with pytest.warns(FutureWarning, match=f"pull of {name} is now prox_weight"):
        assert methods.REGISTRY[name](pull=0.25) == expected


def test_the_former_module_of_local_sgd_works_with_a_warning() -> None:
    sys.modules.pop("bespokefl.core.descend", None)
    with pytest.warns(FutureWarning, match="is now bespokefl.core.local_sgd"):
        from bespokefl.core.descend import descend
    assert callable(descend)
