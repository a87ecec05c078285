"""Per-FedAvg: a start from which one step at home goes a long way."""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bespokefl.core import rng
from bespokefl.core.errors import InputError
from bespokefl.core.method import Message, Round
from bespokefl.core.rows import Rows
from bespokefl.core.task import Task
from bespokefl.methods import FedAvg, PerFedAvg
from tests.federations import CLASSES, NAMES, SIZES, WIDTH, apart, federation, run, same_bits, work_of

pytestmark = pytest.mark.slow  # `make check` is to stay under two minutes

DATA = federation(dtype=torch.float64)
ROUND = Round(number=1, phase="train", seed=0, names=NAMES)
WHOLE = 1000  # a batch size that takes everything in
ORDERS = ("first", "free", "exact")


def smooth() -> nn.Module:
    return nn.Sequential(nn.Linear(WIDTH, 6), nn.Tanh(), nn.Linear(6, CLASSES))


def loss(flat: Tensor, examples: Tensor) -> Tensor:
    """The mean cross-entropy of `smooth` as a function of its flattened weights."""
    first, bias, second, last = flat.split([6 * WIDTH, 6, CLASSES * 6, CLASSES])
    hidden = torch.tanh(F.linear(DATA.x[examples], first.reshape(6, WIDTH), bias))
    return F.cross_entropy(F.linear(hidden, second.reshape(CLASSES, 6), last), DATA.y[examples])


def slope(flat: Tensor, examples: Tensor) -> Tensor:
    flat = flat.detach().requires_grad_()
    return torch.autograd.grad(loss(flat, examples), flat)[0]


def meta_slope(flat: Tensor, examples: Tensor, alpha: float) -> Tensor:
    """∇ of F(w − α ∇F(w)), by differentiating through the inner step."""
    flat = flat.detach().requires_grad_()
    (inner,) = torch.autograd.grad(loss(flat, examples), flat, create_graph=True)
    return torch.autograd.grad(loss(flat - alpha * inner, examples), flat)[0]


def update(method: PerFedAvg, start: Rows, batch_size: int = WHOLE, *, stacked: bool = True) -> Rows:
    task = Task(smooth, dtype=torch.float64)
    if stacked:
        task.stack()
    work = work_of(DATA, batch_size=batch_size)
    upload, _ = method.local_update(task, Message({"weights": start}), {}, work, ROUND)
    found: Rows = upload["weights"]
    return found


def start(scale: float = 1.0) -> Rows:
    return Task(smooth, dtype=torch.float64).start * scale


@pytest.mark.parametrize("weights", ["examples", "equal"])
@pytest.mark.parametrize("order", ORDERS)
def test_without_an_inner_step_it_is_fedavg(order: str, weights: str) -> None:
    options = {"rounds": 3, "participation": 0.5}
    _, found = run(PerFedAvg(lr=0.2, inner_rate=0.0, order=order, weights=weights), DATA, **options)
    _, expected = run(FedAvg(lr=0.2, weights=weights), DATA, **options)
    assert apart(found.server["weights"], expected.server["weights"]) < 1e-12
    assert apart(found.personal_rows, expected.personal_rows) < 1e-12
    assert found.communication == expected.communication
    _, other = run(PerFedAvg(lr=0.2, inner_rate=0.5, order=order, weights=weights), DATA, **options)
    assert apart(other.server["weights"], expected.server["weights"]) > 1e-3


@pytest.mark.parametrize("stacked", [False, True], ids=["plain", "stacked"])
def test_the_exact_step_is_the_gradient_of_the_objective(stacked: bool) -> None:
    """With b₁ = b₂ = b₃ = everything: ∇ F(w − α ∇F(w)) = (I − α ∇²F(w)) ∇F(w − α ∇F(w))."""
    begin, lr, alpha = start(2.0), 0.1, 0.7
    found = update(PerFedAvg(lr=lr, inner_rate=alpha, order="exact"), begin, stacked=stacked)
    first = update(PerFedAvg(lr=lr, inner_rate=alpha, order="first"), begin, stacked=stacked)
    flat = begin.matrix()[0]
    for k in range(len(DATA)):
        expected = meta_slope(flat, DATA.train.of(k), alpha)
        torch.testing.assert_close((flat - found.matrix()[k]) / lr, expected, rtol=1e-9, atol=1e-12)
        ahead = slope(flat - alpha * slope(flat, DATA.train.of(k)), DATA.train.of(k))
        torch.testing.assert_close((flat - first.matrix()[k]) / lr, ahead, rtol=1e-9, atol=1e-12)
        assert (expected - ahead).norm() > 1e-2 * expected.norm()


def test_the_free_step_comes_to_the_exact_one() -> None:
    """A central difference: a tenth of δ, a hundredth of the error."""
    begin = start(2.0)
    exact = update(PerFedAvg(inner_rate=0.7, order="exact"), begin)
    wide, narrow, fine = (
        apart(update(PerFedAvg(inner_rate=0.7, order="free", difference=delta), begin), exact)
        for delta in (1e-1, 1e-2, 1e-4)
    )
    assert wide / narrow == pytest.approx(100, rel=0.1)
    assert fine < 1e-9 < wide


@pytest.mark.parametrize("order", ["first", "exact"])
def test_two_rounds_in_plain_torch(order: str) -> None:
    """Ragged clients, batches of four from three streams, half of the clients."""
    alpha, beta = 0.3, 0.2
    method = PerFedAvg(lr=beta, inner_rate=alpha, order=order)
    made, outcome = run(method, DATA, factory=smooth, rounds=2, participation=0.5)
    w = made.task.start.matrix()[0]
    for number in (1, 2):
        work, trained = work_of(DATA, round=number), []
        for k in rng.sample(6, 0.5, 0, "cohort", number).tolist():
            own = w
            streams = [work.batches(k, purpose=purpose) for purpose in ("first", "batches", "third")]
            for batches in zip(*streams, strict=True):
                b1, b2, b3 = map(torch.from_numpy, batches)
                found = slope(own - alpha * slope(own, b1), b2)
                if order == "exact":
                    hessian = torch.autograd.functional.hessian(lambda flat, b3=b3: loss(flat, b3), own)
                    found = found - alpha * hessian @ found
                own = own - beta * found
            trained.append(own)
        w = torch.stack(trained).mean(0)  # all count alike
    torch.testing.assert_close(outcome.server["weights"].matrix()[0], w, rtol=1e-9, atol=1e-11)
    for k in range(len(DATA)):
        adapted = w - alpha * slope(w, DATA.train.of(k))
        torch.testing.assert_close(outcome.personal_rows.matrix()[k], adapted, rtol=1e-9, atol=1e-11)


def test_the_three_batches_are_different() -> None:
    work = work_of(DATA)
    streams = [[b.tolist() for b in work.batches(1, purpose=purpose)] for purpose in ("first", "batches", "third")]
    assert streams[0] != streams[1] != streams[2] != streams[0]


def test_a_client_adapts_on_all_of_its_training_data_and_on_nothing_else() -> None:
    w, alpha = start(), 0.4
    task, method = Task(smooth, dtype=torch.float64), PerFedAvg(inner_rate=alpha)
    x, y = DATA.x.clone(), DATA.y.clone()
    for part in (DATA.test, DATA.validation):
        x[part.indices] *= -3
        y[part.indices] = (y[part.indices] + 1) % CLASSES
    for data in (DATA, replace(DATA, x=x, y=y)):
        personal = method.personal(task, Message({"weights": w}), {}, work_of(data))
        for k in range(len(DATA)):
            expected = w.matrix()[0] - alpha * slope(w.matrix()[0], DATA.train.of(k))
            torch.testing.assert_close(personal.matrix()[k], expected, rtol=1e-10, atol=1e-12)
        assert same_bits(method.newcomer(task, {"weights": w}, work_of(data, expected_rounds=7)), personal)


def test_one_model_each_way() -> None:
    made, outcome = run(PerFedAvg(), federation(), rounds=3, participation=0.5)
    sent = 3 * 3 * made.task.layout.width  # rounds, clients of a round
    assert (outcome.communication.up_floats, outcome.communication.down_floats) == (sent, sent)


def test_the_start_is_worth_a_step() -> None:
    """What the method is for: after one step its model fits better than before."""
    made, outcome = run(PerFedAvg(inner_rate=0.3, lr=0.2), DATA, rounds=10)
    before = made.side.score(range(len(SIZES)), outcome.server["weights"])["train_loss"]
    assert outcome.personal["train_loss"].mean() < 0.8 * before.mean()


@pytest.mark.parametrize(
    ("hyper", "sentence"),
    [
        ({"inner_rate": -0.1}, r"inner_rate must be >= 0, got -0.1 \(α of perfedavg\)"),
        ({"inner_rate": float("nan")}, "inner_rate must be >= 0, got nan"),
        ({"lr": 0.0}, "lr must be > 0, got 0.0"),
        ({"order": "second"}, "order must be 'first', 'free' or 'exact', got 'second'"),
        ({"difference": 0.0}, "difference must be > 0, got 0.0"),
        ({"weights": "size"}, "weights must be 'examples' or 'equal', got 'size'"),
    ],
)
def test_senseless_values(hyper: dict[str, float | str], sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        PerFedAvg(**hyper)
