"""Ditto: a personal model beside the common one."""

import pytest
import torch

from bespokefl.core import rng
from bespokefl.core.errors import InputError
from bespokefl.methods import Ditto, FedAvg, Local
from tests.federations import SIZES, apart, federation, run, same_bits, work_of
from tests.methods.plain_sgd import pull_to, train, weighted

DATA = federation(dtype=torch.float64)


@pytest.mark.parametrize("chunk", [1, 3])
@pytest.mark.parametrize("participation", [0.5, 1.0])
def test_without_a_pull_personal_models_are_local(participation: float, chunk: int) -> None:
    """At equal rates, and with equal cohorts: the same seed draws the same clients."""
    options = {"rounds": 3, "participation": participation, "chunk": chunk}
    sgd = {"momentum": 0.5, "weight_decay": 0.1}
    _, found = run(Ditto(lr=0.3, personal_lr=0.2, prox_weight=0.0, **sgd), DATA, **options)
    _, expected = run(Local(lr=0.2, **sgd), DATA, **options)
    assert apart(found.personal_rows, expected.personal_rows) < 1e-12
    _, pulled = run(Ditto(lr=0.3, personal_lr=0.2, prox_weight=1.0, **sgd), DATA, **options)
    assert apart(pulled.personal_rows, expected.personal_rows) > 1e-3


@pytest.mark.parametrize("weights", ["examples", "equal"])
def test_the_common_model_is_fedavgs(weights: str) -> None:
    options = {"rounds": 3, "participation": 0.5}
    _, found = run(Ditto(lr=0.2, prox_weight=5.0, momentum=0.5, weights=weights), DATA, **options)
    _, expected = run(FedAvg(lr=0.2, momentum=0.5, weights=weights), DATA, **options)
    assert apart(found.server["weights"], expected.server["weights"]) < 1e-12
    assert same_bits(found.globally, expected.globally) or apart(found.global_rows, expected.global_rows) < 1e-12
    assert found.communication == expected.communication


@pytest.mark.parametrize("sgd", [{}, {"momentum": 0.9}, {"weight_decay": 0.1}])
def test_personal_models_are_pulled_to_the_model_received(sgd: dict[str, float]) -> None:
    """Algorithm 1: F_k(v) + (λ/2) ‖v − w^t‖², w^t as it was before this round's training."""
    made, outcome = run(Ditto(lr=0.3, personal_lr=0.1, prox_weight=2.0, **sgd), DATA, rounds=3, participation=0.5)
    common, own = made.task.start, [made.task.start] * len(DATA)
    for number in (1, 2, 3):
        work, drawn = work_of(DATA, round=number), rng.sample(6, 0.5, 0, "cohort", number).tolist()
        for k in drawn:
            own[k] = train(made.task, work, k, own[k], pull_to(common, 2.0), lr=0.1, **sgd)
        trained = [train(made.task, work, k, common, lr=0.3, **sgd) for k in drawn]
        common = weighted(trained, [SIZES[k] for k in drawn])
    assert apart(outcome.server["weights"], common) < 1e-10
    for k in range(len(DATA)):
        assert apart(outcome.personal_rows[k : k + 1], own[k]) < 1e-10


def test_who_did_not_take_part_keeps_its_model() -> None:
    made, outcome = run(Ditto(), DATA, rounds=1, participation=0.5)
    drawn = rng.sample(6, 0.5, 0, "cohort", 1).tolist()
    for k in range(len(DATA)):
        assert same_bits(outcome.personal_rows[k : k + 1], made.task.start) == (k not in drawn)


def test_a_newcomer_is_pulled_to_the_final_model() -> None:
    sgd = {"momentum": 0.5, "weight_decay": 0.1}
    method = Ditto(lr=0.3, personal_lr=0.1, prox_weight=2.0, **sgd)
    made, outcome = run(method, DATA, rounds=2)
    served = method.newcomer(made.task, made.server, work_of(DATA, expected_rounds=2))
    common = outcome.server["weights"]
    for k in range(len(DATA)):
        long = work_of(DATA, [k], epochs=2)
        expected = train(made.task, long, 0, common, pull_to(common, 2.0), lr=0.1, **sgd)
        assert apart(served[k : k + 1], expected) < 1e-10


@pytest.mark.parametrize("prox_weight", [-0.1, float("nan")])
def test_senseless_pulls(prox_weight: float) -> None:
    with pytest.raises(InputError, match=r"prox_weight must be >= 0, got .* \(λ of ditto\)"):
        Ditto(prox_weight=prox_weight)


def test_both_rates_are_checked() -> None:
    with pytest.raises(InputError, match="personal_lr must be > 0"):
        Ditto(personal_lr=0.0)
