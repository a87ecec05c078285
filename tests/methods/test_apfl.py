"""APFL: a mixture of the own and the common model, whose weight is learnt."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from bespokefl.core import rng
from bespokefl.core.errors import InputError
from bespokefl.core.method import Message, Round
from bespokefl.core.rows import Rows
from bespokefl.core.task import Task
from bespokefl.methods import APFL, FedAvg, Local
from bespokefl.methods.apfl import mixed
from tests.federations import NAMES, SIZES, apart, federation, mlp, random_rows, run, same_bits, work_of

pytestmark = pytest.mark.slow  # `make check` is to stay under two minutes

DATA = federation(dtype=torch.float64)
ROUND = Round(number=1, phase="train", seed=0, names=NAMES)
TASK = Task(mlp, dtype=torch.float64)


def loss(flat: Tensor, examples: Tensor) -> Tensor:
    """The mean cross-entropy as a function of flattened weights."""
    sizes, shapes = TASK.layout.sizes, TASK.layout.shapes
    blocks = [part.reshape(shape) for part, shape in zip(flat.split(sizes), shapes, strict=True)]
    params = dict(zip(TASK.layout.names, blocks, strict=True))
    return F.cross_entropy(torch.func.functional_call(TASK.module, params, DATA.x[examples]), DATA.y[examples])


def slopes(w: Tensor, v: Tensor, alpha: Tensor, examples: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """∇_w F(w), and of F(α v + (1 − α) w) the derivatives by v and by α."""
    w, v, alpha = (one.detach().clone().requires_grad_() for one in (w, v, alpha))
    (by_w,) = torch.autograd.grad(loss(w, examples), w)
    by_v, by_alpha = torch.autograd.grad(loss(alpha * v + (1 - alpha) * w, examples), (v, alpha))
    return by_w, by_v, by_alpha


@pytest.mark.parametrize("weights", ["examples", "equal"])
@pytest.mark.parametrize("participation", [0.5, 1.0])
def test_without_an_own_share_it_is_fedavg(participation: float, weights: str) -> None:
    options = {"rounds": 3, "participation": participation}
    _, found = run(APFL(lr=0.2, alpha=0.0, alpha_rate=0.0, weights=weights), DATA, **options)
    _, expected = run(FedAvg(lr=0.2, weights=weights), DATA, **options)
    assert apart(found.server["weights"], expected.server["weights"]) < 1e-12
    assert apart(found.personal_rows, expected.personal_rows) < 1e-12
    assert found.communication == expected.communication  # v and α stay at home


@pytest.mark.parametrize("participation", [0.5, 1.0])
def test_with_nothing_but_an_own_share_it_is_local(participation: float) -> None:
    options = {"rounds": 3, "participation": participation}
    _, found = run(APFL(lr=0.2, alpha=1.0, alpha_rate=0.0), DATA, **options)
    _, expected = run(Local(lr=0.2), DATA, **options)
    assert apart(found.personal_rows, expected.personal_rows) < 1e-12
    _, between = run(APFL(lr=0.2, alpha=0.5, alpha_rate=0.0), DATA, **options)
    assert apart(between.personal_rows, expected.personal_rows) > 1e-3


def test_the_common_model_is_fedavgs_whatever_the_share() -> None:
    _, found = run(APFL(lr=0.2, alpha=0.7, alpha_rate=1.0, weights="examples"), DATA, rounds=3, participation=0.5)
    _, expected = run(FedAvg(lr=0.2), DATA, rounds=3, participation=0.5)
    assert apart(found.server["weights"], expected.server["weights"]) < 1e-12


def test_the_share_follows_the_derivative_of_the_loss() -> None:
    """α ← α − η_α d/dα F(α v + (1 − α) w), once, at the first batch of the round."""
    w, v = random_rows(TASK, 1, seed=1), random_rows(TASK, 6, seed=2)
    alpha = torch.linspace(0.2, 0.7, 6, dtype=torch.float64)
    work = work_of(DATA)
    state = {"own": v, "alpha": alpha}
    _, new = APFL(alpha_rate=0.1).local_update(TASK, Message({"weights": w}), state, work, ROUND)
    expected = []
    for k in range(6):
        first = torch.from_numpy(work.batches(k)[0])
        expected.append(alpha[k] - 0.1 * slopes(w.matrix()[0], v.matrix()[k], alpha[k], first)[2])
    torch.testing.assert_close(new["alpha"], torch.stack(expected), rtol=1e-9, atol=1e-11)
    assert (new["alpha"] - alpha).abs().min() > 1e-5 and same_bits(work.notes["alpha"], new["alpha"])


def test_the_share_stays_a_share() -> None:
    w, v = random_rows(TASK, 1, seed=1), random_rows(TASK, 6, seed=2)
    state = {"own": v, "alpha": torch.full((6,), 0.5, dtype=torch.float64)}
    _, new = APFL(alpha_rate=1e6).local_update(TASK, Message({"weights": w}), state, work_of(DATA), ROUND)
    assert set(new["alpha"].tolist()) <= {0.0, 1.0}


def step(w: Tensor, v: Tensor, alpha: Tensor, examples: Tensor, method: APFL, *, first: bool) -> tuple[Tensor, ...]:
    by_w, by_v, by_alpha = slopes(w, v, alpha, examples)
    learnt = (alpha - method.alpha_rate * by_alpha).clamp(0, 1) if first else alpha
    return w - method.lr * by_w, v - method.lr * by_v, learnt


def test_three_rounds_in_plain_torch() -> None:
    method = APFL(lr=0.2, alpha=0.4, alpha_rate=0.5)
    made, outcome = run(method, DATA, rounds=3, participation=0.5)
    common = made.task.start.matrix()[0]
    own, alpha = [common] * 6, [torch.tensor(0.4, dtype=torch.float64)] * 6
    for number in (1, 2, 3):
        work, uploads = work_of(DATA, round=number), []
        for k in rng.sample(6, 0.5, 0, "cohort", number).tolist():
            w = common
            for at, batch in enumerate(work.batches(k)):
                w, own[k], alpha[k] = step(w, own[k], alpha[k], torch.from_numpy(batch), method, first=at == 0)
            uploads.append(w)
        common = torch.stack(uploads).mean(0)
    torch.testing.assert_close(outcome.server["weights"].matrix()[0], common, rtol=1e-9, atol=1e-11)
    state = made.store.get(range(6))
    torch.testing.assert_close(state["alpha"], torch.stack(alpha), rtol=1e-9, atol=1e-11)
    assert len(set(state["alpha"].tolist())) > 3
    for k in range(6):
        expected = alpha[k] * own[k] + (1 - alpha[k]) * common
        torch.testing.assert_close(outcome.personal_rows.matrix()[k], expected, rtol=1e-9, atol=1e-11)


def test_one_model_each_way() -> None:
    made, outcome = run(APFL(), federation(), rounds=3, participation=0.5)
    sent = 3 * 3 * made.task.layout.width  # rounds, clients of a round
    assert (outcome.communication.up_floats, outcome.communication.down_floats) == (sent, sent)


def test_a_newcomer_learns_its_share_beside_a_common_model_that_stays() -> None:
    method, w = APFL(lr=0.2, alpha=0.4, alpha_rate=0.5), random_rows(TASK, 1, seed=1)
    served = method.newcomer(TASK, {"weights": w}, work_of(DATA, expected_rounds=3))
    shares = []
    for k, size in enumerate(SIZES):
        common = own = w.matrix()[0]
        alpha, budget = torch.tensor(0.4, dtype=torch.float64), -(-size // 4)
        for at, batch in enumerate(work_of(DATA).batches(k, steps=3 * budget)):
            _, own, alpha = step(common, own, alpha, torch.from_numpy(batch), method, first=at % budget == 0)
        torch.testing.assert_close(served.matrix()[k], alpha * own + (1 - alpha) * common, rtol=1e-9, atol=1e-11)
        shares.append(float(alpha))
    assert min(abs(share - 0.4) for share in shares) > 1e-6


def test_a_mixture() -> None:
    v, w = random_rows(TASK, 3, seed=1), random_rows(TASK, 1, seed=2)
    found = mixed(v, w, torch.tensor([0.0, 0.25, 1.0]))
    assert apart(found, Rows.cat([w, v[1:2] * 0.25 + w * 0.75, v[2:3]])) < 1e-12


@pytest.mark.parametrize(
    ("hyper", "sentence"),
    [
        ({"alpha": 1.1}, r"alpha must be in \[0, 1\], got 1.1"),
        ({"alpha": float("nan")}, r"alpha must be in \[0, 1\], got nan"),
        ({"alpha_rate": -1.0}, "alpha_rate must be >= 0, got -1.0"),
        ({"lr": 0.0}, "lr must be > 0, got 0.0"),
        ({"weights": "size"}, "weights must be 'examples' or 'equal'"),
    ],
)
def test_senseless_values(hyper: dict[str, float | str], sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        APFL(**hyper)
