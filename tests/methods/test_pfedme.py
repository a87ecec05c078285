"""pFedMe: personal models are proximal points of the common one."""

import pytest
import torch
from torch import Tensor

from bespokefl.core import rng
from bespokefl.core.errors import InputError
from bespokefl.core.method import Message, Round
from bespokefl.core.rows import Rows
from bespokefl.core.task import Task
from bespokefl.methods import PFedMe
from tests.federations import NAMES, SIZES, WIDTH, apart, federation, line, random_rows, run, same_bits, work_of

pytestmark = pytest.mark.slow  # `make check` is to stay under two minutes

DATA = federation(dtype=torch.float64)
NUMBERS = federation((60, 90, 44), targets="numbers", dtype=torch.float64)
EYE = torch.eye(WIDTH, dtype=torch.float64)
ROUND = Round(number=1, phase="train", seed=0, names=NAMES)
WHOLE = 1000  # a batch size that takes everything in


def quadratic(k: int) -> tuple[Tensor, Tensor]:
    """H and b of F_k(θ) = ‖Xθ − y‖² / n = ½ θᵀHθ − bᵀθ + constant; its minimum v* has H v* = b."""
    own = NUMBERS.train.of(k)
    x, y = NUMBERS.x[own], NUMBERS.y[own]
    return 2 * x.T @ x / len(own), 2 * x.T @ y / len(own)


def one_step(method: PFedMe, w: Rows) -> tuple[Tensor, Tensor]:
    """w and θ of the three clients after R = 1, on all of their data."""
    task = Task(line, "mse", dtype=torch.float64)
    state = method.start_clients(task.start, NAMES[:3])
    upload, new = method.local_update(
        task, Message({"weights": w}), state, work_of(NUMBERS, batch_size=WHOLE, steps=1), ROUND
    )
    return upload["weights"].matrix(), new["personal"].matrix()


@pytest.mark.parametrize("prox_weight", [0.5, 5.0])
def test_the_personal_model_is_the_proximal_point(prox_weight: float) -> None:
    """argmin_θ F(θ) + (λ/2) ‖θ − w‖² = (H + λI)⁻¹ (H v* + λ w)."""
    w = random_rows(Task(line, "mse", dtype=torch.float64), 1, scale=1.0)
    _, theta = one_step(PFedMe(prox_weight=prox_weight, inner_steps=150, personal_lr=0.15), w)
    for k in range(3):
        h, b = quadratic(k)
        optimum = torch.linalg.solve(h, b)
        expected = torch.linalg.solve(h + prox_weight * EYE, h @ optimum + prox_weight * w.matrix()[0])
        torch.testing.assert_close(theta[k], expected, rtol=1e-9, atol=1e-9)


def test_the_common_model_descends_the_moreau_envelope() -> None:
    """∇ min_θ F(θ) + (λ/2) ‖θ − w‖² = λ (w − θ(w)), differentiated through θ(w) by autograd."""
    prox_weight, lr = 2.0, 0.03
    w = random_rows(Task(line, "mse", dtype=torch.float64), 1, scale=1.0)
    moved, theta = one_step(PFedMe(lr=lr, prox_weight=prox_weight, inner_steps=150, personal_lr=0.15), w)
    for k in range(3):
        h, b = quadratic(k)
        flat = w.matrix()[0].clone().requires_grad_()
        near = torch.linalg.solve(h + prox_weight * EYE, b + prox_weight * flat)
        envelope = 0.5 * near @ h @ near - b @ near + 0.5 * prox_weight * (near - flat).square().sum()
        (slope,) = torch.autograd.grad(envelope, flat)
        torch.testing.assert_close(moved[k], flat.detach() - lr * slope, rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(slope, prox_weight * (flat.detach() - theta[k]), rtol=1e-8, atol=1e-8)


def test_the_federation_rests_where_the_mean_envelope_is_least() -> None:
    """Σ_k λ (w − θ_k(w)) = 0: w is the mean of its proximal points, a linear system."""
    prox_weight = 2.0
    inverses = [torch.linalg.inv(quadratic(k)[0] + prox_weight * EYE) for k in range(3)]
    left = EYE - sum(prox_weight * inverse for inverse in inverses) / 3
    right = sum(inverse @ quadratic(k)[1] for k, inverse in enumerate(inverses)) / 3
    w = torch.linalg.solve(left, right)
    method = PFedMe(lr=0.4, prox_weight=prox_weight, inner_steps=60, personal_lr=0.15)
    options = {"factory": line, "loss": "mse", "batch_size": WHOLE, "local_steps": 1, "rounds": 2}
    _, outcome = run(method, NUMBERS, start=lambda rows: Rows.from_matrix(rows.layout, w[None]), **options)
    torch.testing.assert_close(outcome.server["weights"].matrix()[0], w, rtol=1e-8, atol=1e-8)
    for k, inverse in enumerate(inverses):
        expected = inverse @ (quadratic(k)[1] + prox_weight * w)
        torch.testing.assert_close(outcome.personal_rows.matrix()[k], expected, rtol=1e-8, atol=1e-8)
        assert (expected - w).norm() > 0.1
    _, elsewhere = run(method, NUMBERS, **options)
    assert (elsewhere.server["weights"].matrix()[0] - w).norm() > 1e-2


def trained(task: Task, number: int, k: int, w: Rows, method: PFedMe) -> tuple[Rows, Rows]:
    """Algorithm 1 for one client, with one module and ordinary autograd."""
    work, theta = work_of(DATA, round=number), [block[0].clone() for block in w.blocks]
    local = [block[0].clone() for block in w.blocks]
    for batch in work.batches(k):
        own = torch.from_numpy(batch)
        for _ in range(method.inner_steps):
            leaves = [one.clone().requires_grad_() for one in theta]
            outputs = torch.func.functional_call(
                task.module, dict(zip(task.layout.names, leaves, strict=True)), DATA.x[own]
            )
            value = torch.nn.functional.cross_entropy(outputs, DATA.y[own])
            for one, near in zip(leaves, local, strict=True):
                value = value + 0.5 * method.prox_weight * (one - near).square().sum()
            slopes = torch.autograd.grad(value, leaves)
            theta = [one.detach() - method.personal_lr * slope for one, slope in zip(leaves, slopes, strict=True)]
        local = [near - method.lr * method.prox_weight * (near - one) for near, one in zip(local, theta, strict=True)]
    rows = [Rows(task.layout, [block[None] for block in blocks]) for blocks in (local, theta)]
    return rows[0], rows[1]


@pytest.mark.parametrize(("mix", "weights"), [(1.0, "equal"), (0.4, "equal"), (1.5, "examples")])
def test_two_rounds_in_plain_torch(mix: float, weights: str) -> None:
    """Everybody trains, half report; w ← (1 − β) w + β mean; what counts is θ."""
    method = PFedMe(lr=0.03, personal_lr=0.05, prox_weight=4.0, inner_steps=3, mix=mix, weights=weights)
    made, outcome = run(method, DATA, rounds=2, participation=0.5)
    common, personal = made.task.start, []
    for number in (1, 2):
        found = [trained(made.task, number, k, common, method) for k in range(len(DATA))]
        drawn = rng.sample(6, 0.5, 0, "cohort", number).tolist()
        counts = [SIZES[k] if weights == "examples" else 1 for k in drawn]
        mean = sum((found[k][0] * (n / sum(counts)) for k, n in zip(drawn, counts, strict=True)), common * 0.0)
        common = common * (1 - mix) + mean * mix
        personal = [theta for _, theta in found]
    assert apart(outcome.server["weights"], common) < 1e-10
    assert apart(outcome.personal_rows, Rows.cat(personal)) < 1e-10


def test_what_is_evaluated_is_theta() -> None:
    made, outcome = run(PFedMe(), DATA, rounds=1)
    theta = made.store.get(range(6))["personal"]
    assert same_bits(outcome.personal_rows, theta)
    upload, new = made.method.local_update(
        made.task,
        Message({"weights": made.task.start}),
        made.method.start_clients(made.task.start, NAMES),
        work_of(DATA),
        ROUND,
    )
    assert apart(new["personal"], theta) < 1e-12 and apart(upload["weights"], theta) > 1e-3
    assert same_bits(outcome.personal["test_loss"], made.side.score(range(6), theta)["test_loss"])


def test_all_train_and_a_sample_reports() -> None:
    made, outcome = run(PFedMe(), federation(), rounds=3, participation=0.5)
    assert [(row["trained"], row["reported"]) for row in outcome.history] == [(6, 3)] * 3
    width = made.task.layout.width
    assert outcome.communication.up_floats == 3 * 3 * width and outcome.communication.down_floats == 3 * 6 * width


def test_a_newcomer_does_what_all_do_in_a_round() -> None:
    method = PFedMe()
    made, outcome = run(method, DATA, rounds=2)
    served = method.newcomer(made.task, made.server, work_of(DATA, round=3, expected_rounds=2))
    expected = [trained(made.task, 3, k, outcome.server["weights"], method)[1] for k in range(len(DATA))]
    assert apart(served, Rows.cat(expected)) < 1e-10


@pytest.mark.parametrize(
    ("hyper", "sentence"),
    [
        ({"prox_weight": 0.0}, r"prox_weight must be > 0, got 0.0 \(λ of pfedme\)"),
        ({"prox_weight": float("nan")}, "prox_weight must be > 0, got nan"),
        ({"inner_steps": 0}, r"inner_steps must be >= 1, got 0 \(K of pfedme\)"),
        ({"mix": 0.0}, r"mix must be > 0, got 0.0 \(β of pfedme\)"),
        ({"personal_lr": -1.0}, "personal_lr must be > 0, got -1.0"),
        ({"weights": "size"}, "weights must be 'examples' or 'equal'"),
    ],
)
def test_senseless_values(hyper: dict[str, float | str], sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        PFedMe(**hyper)
