"""FedProx: FedAvg with a rein."""

import pytest
import torch

from bespokefl.core.errors import InputError
from bespokefl.methods import FedAvg, FedProx
from tests.federations import SIZES, apart, federation, run, same_bits, work_of
from tests.methods.plain_sgd import pull_to, train, weighted

DATA = federation(dtype=torch.float64)


@pytest.mark.parametrize("chunk", [1, 3])
@pytest.mark.parametrize("weights", ["examples", "equal"])
def test_without_a_pull_it_is_fedavg(weights: str, chunk: int) -> None:
    options = {"rounds": 3, "participation": 0.5, "local_epochs": 2, "chunk": chunk}
    sgd = {"lr": 0.2, "momentum": 0.5, "weight_decay": 0.1, "weights": weights}
    _, found = run(FedProx(prox_weight=0.0, **sgd), DATA, **options)
    _, expected = run(FedAvg(**sgd), DATA, **options)
    assert apart(found.server["weights"], expected.server["weights"]) < 1e-12
    assert found.communication == expected.communication
    _, pulled = run(FedProx(prox_weight=1.0, **sgd), DATA, **options)
    assert apart(pulled.server["weights"], expected.server["weights"]) > 1e-3


@pytest.mark.parametrize("sgd", [{}, {"momentum": 0.9}, {"weight_decay": 0.1}])
def test_clients_descend_the_proximal_loss(sgd: dict[str, float]) -> None:
    """F_k(w) + (μ/2) ‖w − w^t‖², by autograd and torch.optim."""
    made, outcome = run(FedProx(lr=0.1, prox_weight=2.0, **sgd), DATA, rounds=2, local_epochs=2)
    common = made.task.start
    for number in (1, 2):
        work = work_of(DATA, round=number, epochs=2)
        trained = [train(made.task, work, k, common, pull_to(common, 2.0), lr=0.1, **sgd) for k in range(len(DATA))]
        common = weighted(trained, SIZES)
    assert apart(outcome.server["weights"], common) < 1e-10


def test_a_strong_pull_holds_clients_near() -> None:
    def moved(prox_weight: float) -> float:
        made, outcome = run(FedProx(lr=0.05, prox_weight=prox_weight), DATA, rounds=1, local_epochs=10)
        return apart(outcome.server["weights"], made.task.start)

    assert moved(0.0) > moved(1.0) > moved(10.0) > 0


@pytest.mark.parametrize("prox_weight", [-0.1, float("nan")])
def test_senseless_pulls(prox_weight: float) -> None:
    with pytest.raises(InputError, match=r"prox_weight must be >= 0, got .* \(μ of fedprox\)"):
        FedProx(prox_weight=prox_weight)


def test_a_newcomer_gets_the_common_model() -> None:
    made, outcome = run(FedProx(), DATA)
    assert same_bits(made.method.newcomer(made.task, made.server, work_of(DATA)), outcome.server["weights"])
