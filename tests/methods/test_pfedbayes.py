"""pFedBayes: a posterior that is known, gradients by autograd, and two rounds written out in plain torch."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributions import Normal, kl_divergence

from bespokefl.core import rng
from bespokefl.core.cohort_data import CohortData
from bespokefl.core.errors import InputError
from bespokefl.core.method import Message, Round
from bespokefl.core.rows import Rows
from bespokefl.core.task import Task
from bespokefl.methods import PFedBayes, pfedbayes
from tests.federations import CLASSES, NAMES, SIZES, apart, federation, mlp, random_rows, run, same_bits, work_of

pytestmark = pytest.mark.slow  # `make check` is to stay under two minutes

FLOAT64 = torch.float64
DATA = federation(dtype=FLOAT64)
TASK = Task(mlp, dtype=FLOAT64)
WIDTH = TASK.layout.width
ROUND = Round(number=1, phase="train", seed=0, names=NAMES)
INPUTS, NOISE = 3, 0.5  # of the linear-Gaussian model: weights, and the standard deviation of the targets


def loss(flat: Tensor, examples: Tensor, task: Task = TASK) -> Tensor:
    """The mean cross-entropy as a function of flattened weights."""
    sizes, shapes = task.layout.sizes, task.layout.shapes
    blocks = [part.reshape(shape) for part, shape in zip(flat.split(sizes), shapes, strict=True)]
    params = dict(zip(task.layout.names, blocks, strict=True))
    return F.cross_entropy(torch.func.functional_call(task.module, params, DATA.x[examples]), DATA.y[examples])


def divergence(mean: Tensor, rho: Tensor, common: Tensor, common_rho: Tensor) -> Tensor:
    return kl_divergence(Normal(mean, F.softplus(rho)), Normal(common, F.softplus(common_rho))).sum()


def drawn_noise(k: int, step: int, number: int, seed: int = 0) -> Tensor:
    """A quantile of N(0, 1) for every weight, chosen by two bytes of the client's generator."""
    bits = rng.generator(seed, f"weights/{step}", number, NAMES[k], 0).bytes(2 * WIDTH)
    return torch.from_numpy(rng.normal_quantiles(np.float64)[np.frombuffer(bits, np.uint16)])


Four = tuple[Tensor, Tensor, Tensor, Tensor]  # μ and ρ of q, μ and ρ of the client's copy of the common distribution


def step(values: Four, examples: Tensor, noise: Tensor, n: int, method: PFedBayes) -> Four:
    """Both halves of Algorithm 1's inner loop, differentiated by autograd; rates as the method's docstring has them."""
    mean, rho, common, common_rho = (one.detach() for one in values)
    pull, wide = method.weight / n, F.softplus(common_rho)
    damped = [lr / (1 + lr * pull / wide.square()) for lr in (method.lr, method.common_lr)]
    slow = [lr / (1 + lr * 2 * pull) for lr in (method.lr, method.common_lr)]
    free = [mean.clone().requires_grad_(), rho.clone().requires_grad_()]
    value = loss(free[0] + F.softplus(free[1]) * noise, examples) + pull * divergence(*free, common, common_rho)
    by_mean, by_rho = torch.autograd.grad(value, free)
    mean, rho = mean - damped[0] * by_mean, rho - slow[0] * by_rho
    free = [common.clone().requires_grad_(), common_rho.clone().requires_grad_()]
    by_common, by_common_rho = torch.autograd.grad(pull * divergence(mean, rho, *free), free)
    return mean, rho, common - damped[1] * by_common, common_rho - slow[1] * by_common_rho


@pytest.mark.parametrize(("mix", "weights"), [(1.0, "equal"), (0.6, "examples")])
def test_two_rounds_in_plain_torch(mix: float, weights: str) -> None:
    """Everybody trains, half report both μ and ρ of their copies; each client keeps its q from round to round."""
    method = PFedBayes(lr=0.1, common_lr=0.07, weight=0.5, deviation=0.2, mix=mix, weights=weights)
    made, outcome = run(method, DATA, rounds=2, participation=0.5)
    start = made.task.start.matrix()[0]
    rho = torch.full_like(start, 0.2).expm1().log()  # softplus(ρ) = 0.2
    server, own = [start, rho], [(start, rho)] * 6
    for number in (1, 2):
        work, copies = work_of(DATA, round=number), []
        for k, size in enumerate(SIZES):
            values: Four = (*own[k], server[0], server[1])
            for at, batch in enumerate(work.batches(k)):
                values = step(values, torch.from_numpy(batch), drawn_noise(k, at, number), size, method)
            own[k] = values[:2]
            copies.append(values[2:])
        drawn = rng.sample(6, 0.5, 0, "cohort", number).tolist()
        counts = [SIZES[k] if weights == "examples" else 1 for k in drawn]
        means = [sum(n * copies[k][i] for k, n in zip(drawn, counts, strict=True)) / sum(counts) for i in (0, 1)]
        server = [(1 - mix) * old + mix * mean for old, mean in zip(server, means, strict=True)]
    for name, expected in zip(("mean", "rho"), server, strict=True):
        torch.testing.assert_close(outcome.server[name].matrix()[0], expected, rtol=1e-9, atol=1e-11)
    state = made.store.get(range(6))
    torch.testing.assert_close(state["mean"].matrix(), torch.stack([one for one, _ in own]), rtol=1e-9, atol=1e-11)
    torch.testing.assert_close(state["rho"].matrix(), torch.stack([one for _, one in own]), rtol=1e-9, atol=1e-11)
    assert same_bits(outcome.personal_rows, state["mean"]) and same_bits(outcome.global_rows, outcome.server["mean"])


def lively() -> nn.Module:
    """A model without ReLU, in which every weight has a gradient in every step."""
    return nn.Sequential(nn.Linear(DATA.x.shape[1], 6), nn.Tanh(), nn.Linear(6, CLASSES))


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(("factory", "tiny"), [(lively, pfedbayes.TINY), (mlp, 1e-3)], ids=["tanh", "relu"])
def test_adam_in_plain_torch(
    factory: Callable[[], nn.Module], tiny: float, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """torch.optim.Adam, new in every round, on the same gradients.

    A ReLU makes gradients zero up to rounding errors, which Adam with its usual ε amplifies to 1e-5: twice, as the
    common copy follows the personal mean.
    """
    monkeypatch.setattr(pfedbayes, "TINY", tiny)
    method = PFedBayes(lr=0.01, common_lr=0.007, weight=0.5, deviation=0.2, optimizer="adam")
    made, _ = run(method, DATA, rounds=1, seed=seed, factory=factory)
    start = made.task.start.matrix()[0]
    rho = torch.full_like(start, 0.2).expm1().log()
    work, state = work_of(DATA, round=1, seed=seed), made.store.get(range(6))
    assert max(len(work.batches(k)) for k in range(6)) > 1  # else moments have no effect
    for k, size in enumerate(SIZES):
        own, common = ([one.clone().requires_grad_() for one in (start, rho)] for _ in range(2))
        steps = [torch.optim.Adam(own, lr=0.01, eps=tiny), torch.optim.Adam(common, lr=0.007, eps=tiny)]
        for at, batch in enumerate(work.batches(k)):
            noise = drawn_noise(k, at, number=1, seed=seed)
            fit = loss(own[0] + F.softplus(own[1]) * noise, torch.from_numpy(batch), made.task)
            alive = torch.autograd.grad(fit, own[0], retain_graph=True)[0].abs() > 1e-9
            assert alive.all() or factory is mlp
            pull = method.weight / size
            _set_gradients(own, fit + pull * divergence(own[0], own[1], common[0], common[1]))
            steps[0].step()
            _set_gradients(common, pull * divergence(own[0], own[1], common[0], common[1]))
            steps[1].step()
        for name, expected in zip(("mean", "rho"), own, strict=True):
            torch.testing.assert_close(state[name].matrix()[k], expected.detach(), rtol=1e-9, atol=1e-11)


def _set_gradients(free: list[Tensor], value: Tensor) -> None:
    for one, slope in zip(free, torch.autograd.grad(value, free), strict=True):
        one.grad = slope


# -- a posterior that is known


def gaussian(outputs: Tensor, targets: Tensor) -> Tensor:
    """−log N(y; f(x), NOISE²), up to a constant."""
    return (outputs.reshape(len(targets)) - targets).square() / (2 * NOISE**2)


LINEAR = federation((12, 17, 30), targets="numbers", dtype=FLOAT64, width=INPUTS)


def linear() -> Task:
    return Task(lambda: nn.Linear(INPUTS, 1, bias=False), gaussian, dtype=FLOAT64)


def posterior(k: int, common: Tensor, wide: Tensor, weight: float) -> tuple[Tensor, Tensor]:
    """Mean and standard deviations of the best q for client k.

    n/ζ times the objective is KL(q ‖ N(common, wide²)) − E_q log p(D)/ζ: the posterior of data that count 1/ζ each.
    It is N(m, A⁻¹), A = XᵀX/(ζ s²) + diag(1/wide²), A m = Xᵀy/(ζ s²) + common/wide². The Gaussian with a diagonal
    covariance that is nearest to it in KL(q ‖ ·) has its mean and the variances 1/A_ii.
    """
    own = LINEAR.train.of(k)
    x, y = LINEAR.x[own], LINEAR.y[own]
    precision = x.T @ x / (weight * NOISE**2) + torch.diag(wide**-2)
    mean = torch.linalg.solve(precision, x.T @ y / (weight * NOISE**2) + common / wide.square())
    return mean, precision.diagonal().rsqrt()


@dataclass(frozen=True)
class Point(CohortData):
    """Instead of noise one of the points ±√d e_i, whose moments up to the second are a standard normal's."""

    which: int = 0

    def quantile_noise(self, like: Rows, purpose: str, rows: Sequence[int]) -> Rows:
        size = like.layout.width
        points = size**0.5 * torch.cat([torch.eye(size), -torch.eye(size)]).to(like.dtype)
        return Rows.from_matrix(like.layout, points[self.which].expand(len(self), size))


def rows(task: Task, flat: Tensor) -> Rows:
    return Rows.from_matrix(task.layout, flat.reshape(-1, INPUTS))


@pytest.mark.parametrize("weight", [1.0, 4.0])
def test_the_posterior_of_a_linear_gaussian_model_is_where_it_rests(weight: float) -> None:
    """Its expected step is zero, over noise with the moments of a standard normal (of .001 or 2, it would not be)."""
    task, method = linear(), PFedBayes(lr=0.05, common_lr=1e-15, weight=weight)
    common, wide = torch.tensor([0.3, -0.2, 0.5], dtype=FLOAT64), torch.tensor([0.5, 0.8, 0.3], dtype=FLOAT64)
    message = Message({"mean": rows(task, common), "rho": rows(task, wide.expm1().log())})
    found = [posterior(k, common, wide, weight) for k in range(3)]
    mean, std = torch.stack([one for one, _ in found]), torch.stack([one for _, one in found])
    work = work_of(LINEAR, batch_size=100, steps=1)
    options = {name: getattr(work, name) for name in work.__dataclass_fields__}

    def moved(mean: Tensor, std: Tensor) -> tuple[float, float]:
        """The expected change of μ and ρ, relative to the single changes."""
        state = {"mean": rows(task, mean), "rho": rows(task, std.expm1().log())}
        changes: dict[str, list[Tensor]] = {"mean": [], "rho": []}
        for which in range(2 * INPUTS):
            _, new = method.local_update(task, message, state, Point(**options, which=which), ROUND)
            for name, seen in changes.items():
                seen.append((new[name] - state[name]).matrix())
        relative = [torch.stack(seen).mean(0).norm() / torch.stack(seen).norm() for seen in changes.values()]
        return float(relative[0]), float(relative[1])

    assert max(moved(mean, std)) < 1e-12
    assert moved(mean + 0.1, std)[0] > 1e-2 and moved(mean, std * 1.3)[1] > 1e-2


def test_drawn_weights_find_the_posterior() -> None:
    """ρ settles at a rate of about 2 η ζ/n, here 1/300 for the largest client: 1000 steps from a σ thrice too large."""
    task, method = linear(), PFedBayes(lr=0.05, common_lr=1e-15, weight=1.0)
    common, wide = torch.full((INPUTS,), 0.1, dtype=FLOAT64), torch.full((INPUTS,), 0.5, dtype=FLOAT64)
    message = Message({"mean": rows(task, common), "rho": rows(task, wide.expm1().log())})
    work = work_of(LINEAR, batch_size=100, steps=1000)
    state = {"mean": rows(task, common).expand(3), "rho": message["rho"].expand(3)}
    upload, new = method.local_update(task, message, state, work, ROUND)
    assert apart(upload["mean"], message["mean"]) < 1e-9 and apart(upload["rho"], message["rho"]) < 1e-9
    for k in range(3):
        mean, std = posterior(k, common, wide, 1.0)
        assert (new["mean"].matrix()[k] - mean).abs().max() < 0.15 < (common - mean).abs().max()
        assert (F.softplus(new["rho"].matrix()[k]) / std - 1).abs().max() < 0.15 < (wide / std - 1).abs().min()


def test_the_common_copy_follows_the_personal_distribution() -> None:
    """KL(q ‖ w) is least for w = q: with a q that stays, the copy comes to it, in mean and deviation."""
    method = PFedBayes(lr=1e-15, common_lr=1.0, weight=20.0)
    mean, rho = random_rows(TASK, 6, seed=1), random_rows(TASK, 6, seed=2)
    message = Message({"mean": random_rows(TASK, 1, seed=3), "rho": random_rows(TASK, 1, seed=4)})
    upload, new = method.local_update(TASK, message, {"mean": mean, "rho": rho}, work_of(DATA, steps=200), ROUND)
    assert apart(new["mean"], mean) < 1e-9 and apart(new["rho"], rho) < 1e-9
    assert apart(upload["mean"], mean) < 1e-4 and apart(upload["rho"], rho) < 1e-4


# -- the rest


def test_a_stiff_pull_holds_and_does_not_diverge() -> None:
    """η ζ/(n σ²) is in the thousands: a plain step would multiply the distance to the common mean by as much."""
    _, outcome = run(PFedBayes(weight=1e4), DATA, rounds=5)
    assert apart(outcome.personal_rows, outcome.server["mean"]) < 1e-2
    assert outcome.personal["train_loss"].max() < 3


def test_both_moments_travel_and_the_personal_distribution_does_not() -> None:
    data = federation()
    made, outcome = run(PFedBayes(), data, rounds=3, participation=0.5, factory=lively)
    assert [(row["trained"], row["reported"]) for row in outcome.history] == [(6, 3)] * 3
    assert outcome.communication.up_floats == 3 * 3 * 2 * WIDTH
    assert outcome.communication.down_floats == 3 * 6 * 2 * WIDTH
    state, message = made.store.get([0, 1]), made.method.message(made.server, [0, 1], ROUND)
    upload, new = made.method.local_update(made.task, message, state, work_of(data, [0, 1]), ROUND)
    assert upload.keys() == {"mean", "rho"}
    assert not torch.isin(upload["mean"].matrix(), new["mean"].matrix()).any()


def test_clients_begin_with_the_deviation_given() -> None:
    method = PFedBayes(deviation=0.3)
    state, server = method.start_clients(TASK.start, NAMES), method.start_server(TASK.start, replace(ROUND, number=0))
    for one in (state, server):
        torch.testing.assert_close(F.softplus(one["rho"].matrix()), torch.full_like(one["rho"].matrix(), 0.3))
        assert apart(one["mean"], TASK.start) == 0.0


def test_a_newcomer_is_held_near_a_common_distribution_that_stays() -> None:
    method = PFedBayes(weight=0.5, common_lr=1.0)
    made, outcome = run(method, DATA, rounds=2)
    served = method.newcomer(made.task, made.server, work_of(DATA, expected_rounds=3))
    common = [outcome.server[name].matrix()[0] for name in ("mean", "rho")]
    for k, size in enumerate(SIZES):
        values: Four = (common[0], common[1], common[0], common[1])
        for at, batch in enumerate(work_of(DATA).batches(k, steps=3 * -(-size // 4))):
            mean, rho, *_ = step(values, torch.from_numpy(batch), drawn_noise(k, at, number=1), size, method)
            values = (mean, rho, common[0], common[1])
        torch.testing.assert_close(served.matrix()[k], values[0], rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize(
    ("hyper", "sentence"),
    [
        ({"weight": 0.0}, r"weight must be > 0, got 0.0 \(ζ of pfedbayes\)"),
        ({"deviation": float("nan")}, r"deviation must be > 0, got nan \(initial σ of pfedbayes\)"),
        ({"mix": -1.0}, r"mix must be > 0, got -1.0 \(β of pfedbayes\)"),
        ({"common_lr": 0.0}, "common_lr must be > 0, got 0.0"),
        ({"weights": "size"}, "weights must be 'examples' or 'equal'"),
    ],
)
def test_senseless_values(hyper: dict[str, float | str], sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        PFedBayes(**hyper)
