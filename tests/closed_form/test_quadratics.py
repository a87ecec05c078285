"""Linear regression: every client's loss is a quadratic, so what methods converge to can be written down.

F_k(w) = ‖X_k w − y_k‖² / n_k = ½ wᵀ H_k w − b_kᵀ w + constant,   H_k = 2 X_kᵀ X_k / n_k,   b_k = 2 X_kᵀ y_k / n_k
w*_k = H_k⁻¹ b_k,  so H_k w*_k = b_k
"""

import pytest
import torch
from torch import Tensor

from bespokefl.core.method import Method
from bespokefl.engines.outcome import Outcome
from bespokefl.engines.simulation import Simulation
from bespokefl.methods import Ditto, FedAvg, FedProx, Local
from tests.federations import WIDTH, federation, line, run, work_of

SIZES = (60, 90, 44)
DATA = federation(SIZES, targets="numbers", dtype=torch.float64)
EYE = torch.eye(WIDTH, dtype=torch.float64)
LR = 0.25  # below 2 / (the largest eigenvalue of any H_k + the largest prox_weight)
WHOLE = 1000  # a batch size that takes everything in


def quadratic(k: int) -> tuple[Tensor, Tensor]:
    own = DATA.train.of(k)
    x, y = DATA.x[own], DATA.y[own]
    return 2 * x.T @ x / len(own), 2 * x.T @ y / len(own)


H, B = zip(*(quadratic(k) for k in range(len(SIZES))), strict=True)
OPTIMA = [torch.linalg.solve(h, b) for h, b in zip(H, B, strict=True)]
SHARES = {"examples": [size / sum(SIZES) for size in SIZES], "equal": [1 / 3] * 3}


def solve(method: Method, **settings: int) -> tuple[Simulation, Outcome]:
    return run(method, DATA, factory=line, loss="mse", batch_size=WHOLE, **settings)


def pooled(shares: list[float]) -> Tensor:
    """The minimum of Σ p_k F_k."""
    return torch.linalg.solve(
        sum(p * h for p, h in zip(shares, H, strict=True)), sum(p * b for p, b in zip(shares, B, strict=True))
    )


def assert_near(found: Tensor, expected: Tensor, tolerance: float = 1e-6) -> None:
    torch.testing.assert_close(found.flatten(), expected.flatten(), rtol=tolerance, atol=tolerance)


def test_the_rate_is_small_enough() -> None:
    assert max(torch.linalg.eigvalsh(h).max().item() for h in H) + 2.0 < 2 / LR


def test_local_finds_everybodys_least_squares() -> None:
    _, outcome = solve(Local(lr=LR), rounds=1, local_steps=120)
    for k in range(len(SIZES)):
        own = DATA.train.of(k)
        expected = torch.linalg.lstsq(DATA.x[own], DATA.y[own][:, None]).solution
        assert_near(outcome.personal_rows.matrix()[k], expected)


@pytest.mark.parametrize("weights", ["examples", "equal"])
def test_fedavg_with_single_steps_finds_the_pooled_least_squares(weights: str) -> None:
    _, outcome = solve(FedAvg(lr=LR, weights=weights), rounds=100)
    assert_near(outcome.server["weights"].matrix(), pooled(SHARES[weights]))


def test_the_pooled_least_squares_is_that_of_all_examples() -> None:
    own = DATA.train.indices
    assert_near(pooled(SHARES["examples"]), torch.linalg.lstsq(DATA.x[own], DATA.y[own][:, None]).solution)


@pytest.mark.parametrize("weights", ["examples", "equal"])
def test_fedavg_with_many_steps_averages_the_optima(weights: str) -> None:
    """It drifts: that is not the pooled least squares."""
    _, outcome = solve(FedAvg(lr=LR, weights=weights), rounds=1, local_steps=120)
    expected = sum(p * w for p, w in zip(SHARES[weights], OPTIMA, strict=True))
    assert_near(outcome.server["weights"].matrix(), expected)
    assert (expected - pooled(SHARES[weights])).norm() > 0.01


@pytest.mark.parametrize("prox_weight", [0.5, 2.0])
def test_fedprox_solves_the_proximal_problem(prox_weight: float) -> None:
    """argmin F_k(w) + (μ/2) ‖w − w^t‖² = (H_k + μI)⁻¹ (b_k + μ w^t)."""
    made, outcome = solve(FedProx(lr=LR, prox_weight=prox_weight), rounds=1, local_steps=100)
    start = made.task.start.matrix()[0]
    proximal = [torch.linalg.solve(h + prox_weight * EYE, b + prox_weight * start) for h, b in zip(H, B, strict=True)]
    expected = sum(p * w for p, w in zip(SHARES["examples"], proximal, strict=True))
    assert_near(outcome.server["weights"].matrix(), expected)


def test_fedprox_has_a_fixed_point() -> None:
    """w = Σ p_k (H_k + μI)⁻¹ (b_k + μ w), a linear system in w."""
    prox_weight = 0.2
    _, outcome = solve(FedProx(lr=LR, prox_weight=prox_weight), rounds=12, local_steps=80)
    inverses = [torch.linalg.inv(h + prox_weight * EYE) for h in H]
    left = EYE - sum(p * prox_weight * inverse for p, inverse in zip(SHARES["examples"], inverses, strict=True))
    right = sum(p * inverse @ b for p, inverse, b in zip(SHARES["examples"], inverses, B, strict=True))
    assert_near(outcome.server["weights"].matrix(), torch.linalg.solve(left, right))


@pytest.mark.parametrize("weights", ["examples", "equal"])
@pytest.mark.parametrize("prox_weight", [0.1, 2.0])
def test_ditto_finds_the_pulled_optimum(prox_weight: float, weights: str) -> None:
    """argmin F_k(v) + (λ/2) ‖v − w*‖² = (H_k + λI)⁻¹ (H_k v*_k + λ w*), w* being FedAvg's."""
    made, outcome = solve(Ditto(lr=LR, personal_lr=LR, prox_weight=prox_weight, weights=weights), rounds=100)
    common = pooled(SHARES[weights])
    assert_near(outcome.server["weights"].matrix(), common)
    for k in range(len(SIZES)):
        expected = torch.linalg.solve(H[k] + prox_weight * EYE, H[k] @ OPTIMA[k] + prox_weight * common)
        assert_near(outcome.personal_rows.matrix()[k], expected)
    served = made.method.newcomer(made.task, made.server, work_of(DATA, batch_size=WHOLE, expected_rounds=100))
    assert_near(served.matrix(), outcome.personal_rows.matrix())  # on the same data, it finds the same


def test_one_step_of_each_by_hand() -> None:
    """∇F_k(w) = H_k w − b_k; the first pull is zero, as all begin at w^0."""
    start = solve(Local(), rounds=0)[1].personal_rows.matrix()[0]
    gradients = [h @ start - b for h, b in zip(H, B, strict=True)]
    stepped = [start - LR * gradient for gradient in gradients]
    mean = sum(p * w for p, w in zip(SHARES["examples"], stepped, strict=True))
    assert_near(solve(Local(lr=LR), rounds=1)[1].personal_rows.matrix(), torch.stack(stepped), 1e-12)
    for method in (FedAvg(lr=LR), FedProx(lr=LR, prox_weight=2.0), Ditto(lr=LR)):
        assert_near(solve(method, rounds=1)[1].server["weights"].matrix(), mean, 1e-12)
    # The second step of Ditto's personal model is pulled to the mean.
    _, outcome = solve(Ditto(lr=LR, personal_lr=LR, prox_weight=2.0), rounds=2)
    for k in range(len(SIZES)):
        v = stepped[k]
        expected = v - LR * (H[k] @ v - B[k] + 2.0 * (v - mean))
        assert_near(outcome.personal_rows.matrix()[k], expected, 1e-12)
