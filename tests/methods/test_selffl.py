"""Self-FL: the algorithm against a plain re-implementation, its parts one by one, its limits and its theory."""

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from bespokefl.core.client_index import ClientIndex
from bespokefl.core.errors import InputError
from bespokefl.core.method import Message, Round, Uploads
from bespokefl.core.rows import Layout, Rows, RunningVariance
from bespokefl.core.task import Task
from bespokefl.engines.client import Data
from bespokefl.engines.settings import Settings
from bespokefl.engines.simulation import Simulation
from bespokefl.methods import FedAvg, SelfFL, build
from bespokefl.methods.selffl import local_steps, ranked, sums_of_others, wanted_steps
from bespokefl.theory import two_level
from tests.federations import NAMES, apart, federation, line, mlp, random_rows, run, work_of

NAN = float("nan")
LAYOUT = Layout(("a", "b"), ((2,), (1,)))


def rows(*matrix: list[float]) -> Rows:
    return Rows.from_matrix(LAYOUT, torch.tensor(matrix, dtype=torch.float64))


def variances(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def round_of(num: int = 4, **options: Any) -> Round:
    return Round(**({"number": 1, "phase": "train", "seed": 0, "names": NAMES[:num]} | options))


def uploads_of(values: Rows, variance: Tensor, clients: tuple[int, ...] = (0, 1, 2, 3), **more: Any) -> Uploads:
    """The uploads of these clients, in chunks of one and the rest; client k has 10 (k + 1) examples."""
    whole = {"weights": values, "variance": variance} | more
    chunks = [{name: value[part] for name, value in whole.items()} for part in (slice(0, 1), slice(1, None))]
    return Uploads(clients, 10 * (torch.tensor(clients) + 1), [chunk for chunk in chunks if len(chunk["weights"])])


def server_of(method: SelfFL, known: Tensor, between: float = 0.0, weights: Rows | None = None) -> dict[str, Any]:
    """A server that was told these variances."""
    start = rows([0.0, 0.0, 0.0]) if weights is None else weights
    server = method.start_server(start, round_of(len(known)))
    return server | {"variances": known, "between": torch.tensor(between, dtype=torch.float64)}


# -- (8): how many steps


def test_the_steps_solve_equation_8():
    rng = np.random.default_rng(0)
    variance, others, lr, size = rng.uniform(0.1, 2, 50), rng.uniform(0.1, 30, 50), 0.03, 10
    steps = wanted_steps(variance, others, lr, size)
    left = (1 - lr / (size * variance)) ** steps.numpy()
    np.testing.assert_allclose(left, others / (1 / variance + others), rtol=1e-10)
    found = local_steps(variance, others, lr, size, 10**6)
    assert found.dtype == torch.int64
    torch.testing.assert_close(found, steps.round().long())
    assert len(set(found.tolist())) > 10


def test_steps_of_one_example_per_batch_are_those_of_the_theory():
    var0, var = 0.3, np.array([0.2, 0.5, 1.0, 0.7])
    others = [(1 / np.delete(var0 + var, m)).sum() for m in range(4)]
    np.testing.assert_allclose(wanted_steps(var, others, 0.01, 1), two_level.local_steps(var0, var, 0.01), rtol=1e-12)


def test_steps_take_numbers_arrays_and_tensors():
    for kind in (float, np.float64, torch.tensor):
        found = local_steps(kind(0.5), kind(4.0), 0.03, 10, 400)
        assert isinstance(found, Tensor) and found.shape == () and found.dtype == torch.int64
        assert int(found) == round(np.log(4 / (2 + 4)) / np.log(1 - 0.03 / 5))
    per_client = local_steps(torch.tensor([0.5, 0.5]), [4.0, 4.0], 0.03, torch.tensor([10, 20]), 400)
    assert per_client[1] > 1.9 * per_client[0]


def test_steps_of_the_degenerate_cases():
    assert local_steps(NAN, 4.0, 0.03, 10, 40) == 40  # undefined variance
    assert local_steps(0.5, 0.0, 0.03, 10, 40) == 40  # nobody else known
    assert local_steps(NAN, 0.0, 0.03, 10, 40) == 40
    assert local_steps(0.001, 0.0, 0.03, 10, 40) == 40  # even if one step overshoots
    assert local_steps(0.003, 1e-9, 0.03, 10, 40) == 1  # η/(Bσ²) = 1: one step is all it takes
    assert local_steps(0.001, 1e-9, 0.03, 10, 40) == 1  # one step overshoots
    assert local_steps(0.0, 4.0, 0.03, 10, 40) == 1
    assert wanted_steps(0.5, 1e6, 0.3, 1) < 0.5 and local_steps(0.5, 1e6, 0.3, 1, 40) == 1  # at least one
    assert wanted_steps(50.0, 0.1, 0.03, 10) > 40 and local_steps(50.0, 0.1, 0.03, 10, 40) == 40  # at most ℓ_max
    assert wanted_steps(NAN, 4.0, 0.03, 10).isnan() and wanted_steps(0.5, 0.0, 0.03, 10).isinf()


def test_more_uncertain_clients_take_more_steps_at_the_same_s():
    found = wanted_steps([0.1, 0.2, 0.4, 0.8, 1.6], 5.0, 0.03, 10)
    assert (found.diff() > 0).all()


# -- the variance of earlier weights


def test_the_online_variance_is_that_of_all_vectors_and_the_printed_one_is_not():
    """(18), (19) with the square on (x̄_t − x̄_{t-1}), and (19) as printed."""
    vectors = np.random.default_rng(4).standard_normal((7, 3)) + np.array([5, 0, -2])
    batch = vectors.var(axis=0).sum()  # divisor t; the trace
    spread = RunningVariance.empty(rows([0.0, 0.0, 0.0]))
    mended = printed = 0.0
    mean = np.zeros(3)
    for t, x in enumerate(vectors, start=1):
        spread = spread.add(rows(x.tolist()))
        before, mean = mean, (t - 1) / t * mean + x / t
        rest = ((x - mean) ** 2).sum() / t
        mended = (t - 1) / t * mended + (t - 1) / t * ((mean - before) ** 2).sum() + rest
        printed = (t - 1) / t * printed + (t - 1) / t * (mean - before).sum() + rest
    assert spread.variance.item() == pytest.approx(batch, rel=1e-12)
    assert mended == pytest.approx(batch, rel=1e-12)
    assert abs(printed - batch) > 0.1 * batch


# -- what the server sends


def test_the_sum_of_others_is_over_all_other_known_clients():
    method = SelfFL(peers="known")
    known = variances(0.2, NAN, 0.5, 1.0)
    message = method.message(server_of(method, known, between=0.3), [2, 1, 0], round_of())
    inverse = [1 / 0.5, 0.0, 1 / 0.8, 1 / 1.3]
    expected = [sum(inverse) - inverse[m] for m in (2, 1, 0)]  # client 1's own is unknown: all others count
    torch.testing.assert_close(message.own["others"], variances(*expected), rtol=1e-12, atol=0)
    assert message.shared["between"] == 0.3


def test_active_peers_are_those_of_the_round():
    method = SelfFL()
    server = server_of(method, variances(0.2, NAN, 0.5, 1.0), between=0.3)
    message = method.message(server, [0, 1], round_of(reporting=(0, 1, 3)))
    expected = variances(1 / 1.3, 1 / 0.5 + 1 / 1.3)
    torch.testing.assert_close(message.own["others"], expected, rtol=1e-12, atol=0)


def test_a_client_never_subtracts_itself():
    """Its own weight is 1e12 times the others': a difference of sums would be wrong or negative."""
    torch.testing.assert_close(sums_of_others(variances(1e20, 1.0, 2.0))[0], variances(3.0)[0], rtol=1e-12, atol=0)
    method = SelfFL(peers="known")
    message = method.message(server_of(method, variances(0.0, 1.0, 1.0)), [0, 1, 2], round_of(3))
    torch.testing.assert_close(message.own["others"], variances(2.0, 1e12 + 1, 1e12 + 1))  # σ_0² + σ² has a floor


@pytest.mark.parametrize("reporting", [(), (2,), (0, 3, 4), (0, 1, 2, 3, 4, 5)])
def test_the_sum_of_the_others_for_every_client(reporting: tuple[int, ...]) -> None:
    """Also for clients that are not among the peers."""
    method, weights = SelfFL(), [1.0, 0.5, 0.25, 2.0, 4.0, 8.0]
    server = server_of(method, variances(*(1 / weight for weight in weights)), between=0.0)
    others = method.message(server, range(6), round_of(6, reporting=reporting)).own["others"]
    assert others.tolist() == [sum(weights[k] for k in reporting if k != m) for m in range(6)]


# -- a client's round


class Client:
    """Three clients of a quadratic federation, with a history; `update` is one local update by hand."""

    def __init__(self) -> None:
        self.data = federation((5, 9, 7), targets="line", dtype=torch.float64)
        self.task = Task(line, "mse", dtype=torch.float64)
        self.theta = random_rows(self.task, 1, seed=1)
        self.past = [random_rows(self.task, 3, seed=2 + i) for i in range(3)]
        self.work = work_of(self.data, batch_size=20)  # full batch: every step is the same function

    def state(self, method: SelfFL, counts: int) -> dict[str, Any]:
        state = method.start_clients(random_rows(self.task, 1, seed=9), self.data.names)
        spread = RunningVariance(state["count"], state["mean"], state["squares"])
        for past in self.past[:counts]:
            spread = spread.add(past)
        moved = {name: self.past[counts - 1] for name in ("personal", "optimum") if name in state and counts}
        return state | moved | vars(spread)

    def update(self, method: SelfFL, counts: int, others: Tensor, between: float = 0.1) -> tuple[Any, Any]:
        message = Message(
            {"weights": self.theta, "between": torch.tensor(between, dtype=torch.float64)}, {"others": others}
        )
        return method.local_update(self.task, message, self.state(method, counts), self.work, round_of(3))

    def descended(self, start: Rows, steps: list[int], lr: float) -> Rows:
        """Full-batch gradient descent on the mean squared error, each client its own number of steps."""
        found = []
        for k, count in enumerate(steps):
            own = self.data.train.of(k)
            x, y, w = self.data.x[own], self.data.y[own], start.expand(3).matrix()[k]
            for _ in range(count):
                w = w - lr * 2 * x.T @ (x @ w - y) / len(own)
            found.append(w)
        return Rows.from_matrix(start.layout, torch.stack(found))


@pytest.mark.parametrize(("reading", "factor"), [("mean", 1), ("trace", 3)])
def test_a_clients_round_is_10_then_8_then_descent(reading: str, factor: int):
    client, method = Client(), SelfFL(lr=0.02, max_steps=1000, divisor="one", variance=reading)
    others = variances(3.0, 1.5, 2.5)
    upload, state = client.update(method, 3, others)
    variance = factor * torch.stack([past.matrix() for past in client.past]).var(0, unbiased=False).sum(1)
    torch.testing.assert_close(upload["variance"], variance, rtol=1e-10, atol=0)
    ratio = 1 / (0.1 + variance) / others
    start = client.theta - (client.past[-1] - client.theta) * ratio
    steps = (torch.log(others / (1 / variance + others)) / torch.log(1 - 0.02 / variance)).round().int().tolist()
    assert min(steps) > 1 and len(set(steps)) > 1
    expected = client.descended(start, steps, 0.02)
    assert apart(upload["weights"], expected) < 1e-10
    assert apart(state["personal"], expected) < 1e-10
    assert client.work.notes["steps"].tolist() == steps
    np.testing.assert_allclose(client.work.notes["wanted_steps"], steps, atol=0.5)
    torch.testing.assert_close(client.work.notes["variance"], upload["variance"])
    history = torch.stack([past.matrix() for past in client.past] + [expected.matrix()])
    assert state["count"].tolist() == [4, 4, 4]
    after = RunningVariance(state["count"], state["mean"], state["squares"]).variance
    torch.testing.assert_close(after, history.var(0, unbiased=False).sum(1), rtol=1e-10, atol=0)


@pytest.mark.parametrize("counts", [0, 1])
def test_an_undefined_variance_starts_at_the_common_model_and_takes_all_steps(counts: int):
    client, method = Client(), SelfFL(lr=0.02, max_steps=6)
    upload, _ = client.update(method, counts, variances(3.0, 1.5, 2.5))
    assert upload["variance"].isnan().all()
    assert apart(upload["weights"], client.descended(client.theta, [6, 6, 6], 0.02)) < 1e-10


def test_a_client_that_knows_of_nobody_starts_at_the_common_model_and_takes_all_steps():
    client, method = Client(), SelfFL(lr=0.02, max_steps=6)
    upload, _ = client.update(method, 3, variances(0.0, 1.5, 0.0))
    expected = client.descended(client.theta, [6, 6, 6], 0.02)
    assert apart(upload["weights"][[0, 2]], expected[[0, 2]]) < 1e-10
    assert apart(upload["weights"][[1]], expected[[1]]) > 1e-3
    assert not upload["variance"].isnan().any()


def test_without_initialisation_the_round_starts_at_the_common_model():
    client, method = Client(), SelfFL(lr=0.02, max_steps=50, initialise=False, divisor="one")
    upload, _ = client.update(method, 3, variances(3.0, 1.5, 2.5))
    steps = client.work.notes["steps"].tolist()
    assert 1 < max(steps) < 50
    assert apart(upload["weights"], client.descended(client.theta, steps, 0.02)) < 1e-10


def test_without_adapted_steps_the_budget_of_the_run_is_spent():
    client, method = Client(), SelfFL(lr=0.02, adapt_steps=False)
    client.work = work_of(client.data, batch_size=20, epochs=3)
    others = variances(3.0, 1.5, 2.5)
    upload, _ = client.update(method, 3, others)
    ratio = 1 / (0.1 + upload["variance"]) / others
    start = client.theta - (client.past[-1] - client.theta) * ratio
    assert apart(upload["weights"], client.descended(start, [3, 3, 3], 0.02)) < 1e-10


@pytest.mark.parametrize(("divisor", "sizes"), [("batch", [20] * 3), ("examples", [5, 9, 7]), ("one", [1] * 3)])
def test_the_divisor_stands_for_the_batch_size(divisor: str, sizes: list[int]):
    client, others = Client(), variances(3.0, 1.5, 2.5)
    upload, _ = client.update(SelfFL(lr=0.02, max_steps=10**6, divisor=divisor), 3, others)
    expected = local_steps(upload["variance"], others, 0.02, torch.tensor(sizes), 10**6)
    assert client.work.notes["steps"].tolist() == expected.tolist()


def test_known_noise_gives_every_client_a_variance_at_once():
    client, method = Client(), SelfFL(lr=0.02, max_steps=1000, noise=2.0, divisor="one")
    others = variances(3.0, 1.5, 2.5)
    upload, _ = client.update(method, 0, others)
    torch.testing.assert_close(upload["variance"], variances(2 / 5, 2 / 9, 2 / 7), rtol=1e-12, atol=0)
    assert client.work.notes["steps"].tolist() == local_steps(upload["variance"], others, 0.02, 1, 1000).tolist()


# -- the server's round


THETAS = ([1.0, 0.0, 2.0], [3.0, -1.0, 0.0], [0.0, 4.0, 1.0], [2.0, 2.0, 2.0])


def test_the_server_weighs_by_both_variances():
    """(14), the sum over the active clients as §3.2 prints it, then (11) with it, then smoothing."""
    method = SelfFL()
    found = rows(*THETAS)
    own = variances(0.5, 1.0, 2.0, 0.1)
    server = server_of(method, variances(*[NAN] * 4), between=77.0, weights=rows([10.0, 10.0, 10.0]))
    round = round_of(participation=0.25)
    new = method.aggregate(server, uploads_of(found, own), round)
    matrix = np.array(THETAS)
    between = len(matrix) * matrix.var(axis=0).sum()
    assert new["between"].item() == pytest.approx(between, rel=1e-12) == float(round.notes["between"])
    estimate = np.average(matrix, axis=0, weights=1 / (between + own.numpy()))
    np.testing.assert_allclose(new["weights"].matrix()[0], 0.75 * 10 + 0.25 * estimate, rtol=1e-12)
    assert new["variances"].tolist() == own.tolist()
    assert server["variances"].isnan().all() and server["between"] == 77  # functions are pure


def test_the_trace_of_the_scatter_matrix_is_the_mean_times_the_number_of_vectors():
    """§3.2 prints Σ ‖x − x̄‖², undivided, for σ_m² as for σ_0²; (18) divides by the number of vectors."""
    matrix, client, others = np.array(THETAS), Client(), variances(4.0, 5.0, 6.0)
    for reading, divisor in (("mean", 4), ("trace", 1)):
        new = aggregated(SelfFL(variance=reading), variances(0.5, 1.0, 2.0, 0.1))[1]
        expected = np.square(matrix - matrix.mean(0)).sum() / divisor
        assert new["between"].item() == pytest.approx(expected, rel=1e-12)
    for reading, divisor in (("mean", 3), ("trace", 1)):
        upload, _ = client.update(SelfFL(variance=reading), 3, others)
        past = np.stack([one.matrix().numpy() for one in client.past])
        expected = np.square(past - past.mean(0)).sum((0, 2)) / divisor
        np.testing.assert_allclose(upload["variance"], expected, rtol=1e-10)
    assert client.update(SelfFL(variance="trace"), 1, others)[0]["variance"].isnan().all()  # undefined, not zero


def test_where_a_step_overshoots_the_client_takes_one_or_all():
    """η/(Bσ²) >= 1 for clients 0 and 1, where (8) has no solution; client 2 has one."""
    client, given = Client(), {"0": 1e-4, "1": 2e-4, "2": 50.0}
    known = dict(zip(client.data.names, given.values(), strict=True))
    for overshoot, expected in (("one", 1), ("max", 7)):
        method = SelfFL(lr=0.03, max_steps=7, overshoot=overshoot, variances=known)
        client.update(method, 3, variances(1.0, 1.0, 1.0))
        steps = client.work.notes["steps"].tolist()
        assert steps[:2] == [expected, expected]
        assert steps[2] == local_steps(50.0, 1.0, 0.03, 20, 7)


def aggregated(
    method: SelfFL, own: Tensor, known: Tensor | None = None, clients: tuple[int, ...] = (0, 1, 2, 3)
) -> Any:
    """The aggregate of these clients' weights, without smoothing, and the new server."""
    start = variances(*[NAN] * 4) if known is None else known
    found = rows(*(THETAS[k] for k in clients))
    new = method.aggregate(server_of(method, start, method.between or 0.0), uploads_of(found, own, clients), round_of())
    return new["weights"].matrix()[0].numpy(), new


def test_an_undefined_variance_counts_as_the_median_of_the_known():
    method = SelfFL(smoothing=1.0, between=0.25)
    # Clients 0 and 3 are active and known, 1 is undefined; client 2 was known before: of 0.5, 0.1 and 4 the median.
    found, new = aggregated(method, variances(0.5, NAN, 0.1), variances(9.0, NAN, 4.0, NAN), clients=(0, 1, 3))
    expected = np.average(np.array(THETAS)[[0, 1, 3]], axis=0, weights=1 / (0.25 + np.array([0.5, 0.5, 0.1])))
    np.testing.assert_allclose(found, expected, rtol=1e-12)
    np.testing.assert_array_equal(new["variances"], [0.5, NAN, 4.0, 0.1])
    # Of an even number the mean of the two in the middle.
    found, _ = aggregated(method, variances(0.5, NAN, 0.1), clients=(0, 1, 3))
    expected = np.average(np.array(THETAS)[[0, 1, 3]], axis=0, weights=1 / (0.25 + np.array([0.5, 0.3, 0.1])))
    np.testing.assert_allclose(found, expected, rtol=1e-12)


def test_without_any_known_variance_all_weigh_the_same():
    found, _ = aggregated(SelfFL(smoothing=1.0), variances(*[NAN] * 4))
    np.testing.assert_allclose(found, np.mean(THETAS, axis=0), rtol=1e-12)


def test_with_no_variance_between_clients_it_is_inverse_variance_averaging():
    own = variances(0.5, 1.0, 2.0, 0.1)
    found, _ = aggregated(SelfFL(smoothing=1.0, between=0.0), own)
    np.testing.assert_allclose(found, np.average(THETAS, axis=0, weights=1 / own.numpy()), rtol=1e-12)


def test_the_variance_has_a_floor():
    found, _ = aggregated(SelfFL(smoothing=1.0, between=0.0), variances(0.0, 1e-12, 1.0, 0.0))
    expected = np.average(THETAS, axis=0, weights=[1e12, 1e12, 1.0, 1e12])
    np.testing.assert_allclose(found, expected, rtol=1e-12)


def test_without_variance_weights_examples_count():
    found, _ = aggregated(SelfFL(smoothing=1.0, variance_weights=False), variances(0.5, 1.0, 2.0, 0.1))
    np.testing.assert_allclose(found, np.average(THETAS, axis=0, weights=[1, 2, 3, 4]), rtol=1e-12)


def test_a_single_active_client_leaves_the_variance_between_clients():
    method = SelfFL(smoothing=0.5)
    server = server_of(method, variances(*[NAN] * 4), between=0.7)
    new = method.aggregate(server, uploads_of(rows([2.0, 4.0, 6.0]), variances(0.3), (2,)), round_of())
    assert new["between"].item() == 0.7
    assert new["weights"].matrix()[0].tolist() == [1.0, 2.0, 3.0]
    np.testing.assert_array_equal(new["variances"], [NAN, NAN, 0.3, NAN])


# -- the whole algorithm


def plain_algorithm_1(
    data: Data, start: np.ndarray, cohorts: list[list[int]], lr: float, most: int, share: float, method: SelfFL
) -> dict[str, Any]:
    """Algorithm 1 as one would write it down: lists of all past weights, numpy variances, autograd, full batches."""
    num = len(data)
    theta, between = start.copy(), 0.0
    past: list[list[np.ndarray]] = [[] for _ in range(num)]
    told = [NAN] * num
    steps_taken, betweens = [], []

    def scatter(vectors: list[np.ndarray]) -> float:
        return float(np.var(vectors, axis=0).sum()) * (len(vectors) if method.variance == "trace" else 1)

    def trained(k: int, weights: np.ndarray, steps: int) -> np.ndarray:
        own = data.train.of(k)
        w = torch.tensor(weights, requires_grad=True)
        for _ in range(steps):
            loss = nn.functional.mse_loss(data.x[own] @ w, data.y[own])
            (gradient,) = torch.autograd.grad(loss, w)
            w = (w - lr * gradient).detach().requires_grad_()
        return w.detach().numpy()

    for active in cohorts:
        new, reports = {}, {}
        for m in active:
            sigma = scatter(past[m]) if len(past[m]) >= 2 else NAN
            peers = active if method.peers == "active" else range(num)
            others = sum(1 / (between + told[k]) for k in peers if k != m and told[k] == told[k])
            if sigma != sigma or others == 0:
                init, steps = theta, most
            else:
                init = theta - 1 / (between + sigma) / others * (past[m][-1] - theta)
                left = 1 - lr / sigma
                exact = np.log(others / (1 / sigma + others)) / np.log(left) if left > 0 else 0
                assert abs(exact % 1 - 0.5) > 1e-6  # no tie
                steps = min(max(1, round(exact)), most)
            new[m], reports[m] = trained(m, init, steps), sigma
            steps_taken.append(steps)
        for m in active:
            past[m].append(new[m])
            told[m] = reports[m]
        if len(active) > 1:
            between = scatter([new[m] for m in active])
        betweens.append(between)
        known = [value for value in told if value == value]
        filled = [reports[m] if reports[m] == reports[m] else np.median(known or [NAN]) for m in active]
        weights = [1 / (between + sigma) for sigma in filled] if known else [1.0] * len(active)
        theta = (1 - share) * theta + share * np.average([new[m] for m in active], axis=0, weights=weights)
    personal = np.stack([one[-1] if one else theta for one in past])
    return {"theta": theta, "personal": personal, "told": told, "steps": steps_taken, "between": betweens}


@pytest.mark.parametrize(
    ("participation", "variance", "peers"),
    [
        (1.0, "mean", "known"),
        (0.7, "mean", "known"),
        (0.34, "mean", "known"),
        (1.0, "trace", "active"),
        (0.7, "trace", "active"),
        (0.7, "mean", "active"),
    ],
)
def test_the_engine_runs_algorithm_1(participation: float, variance: str, peers: str):
    """Three clients, full batches; all of them, two or one of them active in a round."""
    data = federation((6, 11, 8), targets="line", dtype=torch.float64)
    most = 30 if variance == "mean" else 300
    method = SelfFL(lr=0.02, max_steps=most, divisor="one", variance=variance, peers=peers)
    made, outcome = run(
        method, data, factory=line, loss="mse", rounds=14, participation=participation, batch_size=11, eval_every=0
    )
    cohorts = [
        sorted(data.names.index(note["client"]) for note in outcome.client_notes if note["round"] == number)
        for number in range(1, 15)
    ]
    start = made.task.start.matrix()[0].numpy()
    plain = plain_algorithm_1(data, start, cohorts, 0.02, most, participation, method)
    np.testing.assert_allclose(outcome.server["weights"].matrix()[0], plain["theta"], rtol=1e-9)
    np.testing.assert_allclose(outcome.personal_rows.matrix(), plain["personal"], rtol=1e-9)
    np.testing.assert_allclose(outcome.server["variances"], plain["told"], rtol=1e-9)
    np.testing.assert_allclose([line["between"] for line in outcome.history], plain["between"], rtol=1e-9)
    notes = sorted(outcome.client_notes, key=lambda note: (note["round"], data.names.index(note["client"])))
    assert [note["steps"] for note in notes] == plain["steps"]
    assert len(set(plain["steps"])) > 2  # (8) had a say


NOISE = 0.1


def likelihood(outputs: Tensor, targets: Tensor) -> Tensor:
    """(θ − w)² / 2v²: its sum over n examples is (θ − z)² / 2σ² + const, σ² = v²/n, z their mean."""
    return (outputs.flatten() - targets).square() / (2 * NOISE)


def gaussian(num: int, var0: float) -> tuple[Data, np.ndarray, np.ndarray]:
    """A two-level federation; the clients' means z and variances."""
    rng = np.random.default_rng(7)
    sizes = rng.integers(10, 30, num)
    theta = 1.6 + np.sqrt(var0) * rng.standard_normal(num)
    lists = np.split(np.arange(sizes.sum()), sizes.cumsum()[:-1])
    y = np.concatenate([theta[k] + np.sqrt(NOISE) * rng.standard_normal(n) for k, n in enumerate(sizes)])
    names = tuple(f"{k:02d}" for k in range(num))
    parts = [ClientIndex.of_lists(lists), ClientIndex.of_lists([[]] * num), ClientIndex.of_lists(lists)]
    data = Data(torch.ones(len(y), 1, dtype=torch.float64), torch.from_numpy(y), names, *parts)
    return data, np.array([y[own].mean() for own in lists]), NOISE / sizes


def test_on_the_two_level_gaussian_it_is_the_generic_iteration_and_ends_at_its_fixed_point():
    """Known variances, all active, no smoothing. A mean loss over n examples asks for divisor="examples"."""
    var0, lr, rounds, most = 0.05, 4e-3, 10, 200
    data, z, var = gaussian(8, var0)
    method = SelfFL(lr=lr, max_steps=most, smoothing=1.0, between=var0, noise=NOISE, divisor="examples")
    task = Task(lambda: nn.Linear(1, 1, bias=False), likelihood, dtype=torch.float64)
    task.start = task.start * 0.0
    settings = Settings(rounds=rounds, workers=1, batch_size=30)
    outcome = Simulation(method, task, data, settings, None).run()

    # The mean loss moves by lr (θ − z) / v² = (lr/n) (θ − z) / σ²; the first round knows of nobody and takes ℓ_max.
    sizes = NOISE / var
    rates = lr / sizes
    left = 1 - rates / var
    steps = np.array([two_level.local_steps(var0, var, rate)[m] for m, rate in enumerate(rates)])
    personal = (1 - left**most) * z
    for _ in range(rounds - 1):
        init = two_level.start_from(two_level.global_optimum(personal, var0, var), personal, var0, var)
        reached = left ** np.rint(steps)
        personal = (1 - reached) * z + reached * init
    np.testing.assert_allclose(outcome.personal_rows.matrix()[:, 0], personal, rtol=1e-9)
    last = [note for note in outcome.client_notes if note["round"] == rounds]
    by_client = {note["client"]: note for note in last}
    found = np.array([by_client[name]["wanted_steps"] for name in data.names])
    np.testing.assert_allclose(found, steps, rtol=1e-9)

    # Rounding aside, that is where the linear system of the rounds has its solution.
    w = 1 / (var0 + var)
    others = w.sum() - w
    q = others / (1 / var + others)
    mixing = (w[None, :] - np.diag(w)) / others[:, None]
    goal = np.linalg.solve(np.eye(8) - q[:, None] * mixing, (1 - q) * z)
    np.testing.assert_allclose(personal, goal, rtol=0.02)
    assert abs(goal - z).max() > 0.02


def quadratic_run(data: Data, rounds: int, **hyper: Any) -> Any:
    """A run on the two-level Gaussian from θ⁰ = 0, full batches."""
    task = Task(lambda: nn.Linear(1, 1, bias=False), likelihood, dtype=torch.float64)
    task.start = task.start * 0.0
    participation = hyper.pop("participation", 1.0)
    settings = Settings(rounds=rounds, workers=1, batch_size=30, participation=participation)
    return Simulation(SelfFL(divisor="examples", **hyper), task, data, settings, None).run()


def test_given_variances_are_known_to_all_from_the_first_round():
    """Each client has its own σ_m², not one v² for all: here client 0's is ten times what its size says."""
    var0, lr, rounds = 0.05, 4e-3, 3
    data, z, var = gaussian(8, var0)
    given = var * np.array([10.0, 1, 1, 1, 1, 1, 1, 0.5])
    known = dict(zip(data.names, given.tolist(), strict=True))
    outcome = quadratic_run(data, rounds, lr=lr, max_steps=10**4, smoothing=1.0, between=var0, variances=known)

    others = np.array([(1 / np.delete(var0 + given, m)).sum() for m in range(8)])
    pace = lr / (NOISE / var * given)  # η/(nσ²) as the client believes it
    steps = np.log(others / (1 / given + others)) / np.log(1 - pace)
    notes = sorted_notes(outcome)
    for number in range(1, rounds + 1):
        own = [note for note in notes if note["round"] == number]
        np.testing.assert_allclose([note["wanted_steps"] for note in own], steps, rtol=1e-9)
        np.testing.assert_allclose([note["variance"] for note in own], given, rtol=1e-12)
    left = (1 - lr / NOISE) ** np.rint(steps)  # what a step of the mean loss leaves
    common, personal = 0.0, np.zeros(8)
    for _ in range(rounds):
        start = two_level.start_from(common, personal, var0, given)
        personal = (1 - left) * z + left * start
        common = two_level.global_optimum(personal, var0, given)
    np.testing.assert_allclose(outcome.personal_rows.matrix()[:, 0], personal, rtol=1e-9)
    np.testing.assert_allclose(outcome.server["weights"].matrix()[0], common, rtol=1e-9)


@pytest.mark.slow
def test_with_all_peers_and_smoothing_a_common_error_shrinks_by_one_minus_c_times_one_minus_q():
    """Why few active clients are slow: a client goes 1 − q of the way, and the common model C of that.

    All clients measured 1 and start at the common model, so θ − 1 is the only error there is.
    """
    data, _, _ = gaussian(20, 0.001)
    data = Data(**(vars(data) | {"y": torch.ones_like(data.y)}))
    var, lr, share, rounds = 0.1 / 15, 2e-3, 0.1, 20
    known = dict.fromkeys(data.names, var)
    options = {"lr": lr, "max_steps": 10**4, "between": 0.001, "variances": known, "initialise": False}
    for peers, others in (("known", 19), ("active", 1)):
        outcome = quadratic_run(data, rounds, participation=share, peers=peers, **options)
        inverse = others / (0.001 + var)
        q = inverse / (1 / var + inverse)
        for note in outcome.client_notes:
            n = len(data.train.of(data.names.index(note["client"])))
            assert note["wanted_steps"] == pytest.approx(np.log(q) / np.log(1 - lr / (n * var)), rel=1e-9)
        # Each client's steps are rounded; the mean of what the two active ones leave is what the round leaves.
        error = 1.0
        for number in range(1, rounds + 1):
            steps = np.array([note["steps"] for note in outcome.client_notes if note["round"] == number])
            error *= 1 - share * (1 - ((1 - lr / NOISE) ** steps).mean())
        assert 1 - outcome.server["weights"].matrix().item() == pytest.approx(error, rel=1e-9)


# -- limits


def test_with_everything_off_it_is_fedavg():
    data = federation()
    off = SelfFL(lr=0.05, smoothing=1.0, initialise=False, adapt_steps=False, variance_weights=False)
    options = {"rounds": 4, "participation": 0.5, "local_epochs": 2}
    _, found = run(off, data, **options)
    _, expected = run(FedAvg(lr=0.05), data, **options)
    assert apart(found.server["weights"], expected.server["weights"]) < 1e-6


def test_with_no_variance_between_clients_and_known_noise_the_weights_are_fedavgs():
    """(σ_0² + σ_m²)⁻¹ = n_m / v²."""
    data = federation()
    method = SelfFL(lr=0.05, smoothing=1.0, initialise=False, adapt_steps=False, between=0.0, noise=3.0)
    _, found = run(method, data, rounds=4, participation=0.5)
    _, expected = run(FedAvg(lr=0.05), data, rounds=4, participation=0.5)
    assert apart(found.server["weights"], expected.server["weights"]) < 1e-5


def test_smoothing_is_the_participation_unless_it_is_given():
    data = federation()
    found, expected, other = (
        run(SelfFL(max_steps=5, smoothing=smoothing), data, rounds=3, participation=0.5)[1].personal_rows
        for smoothing in (None, 0.5, 0.9)
    )
    assert apart(found, expected) == 0
    assert apart(found, other) > 1e-3


def test_active_peers_make_a_difference_only_where_somebody_is_absent():
    data = federation(dtype=torch.float64)
    for participation, same in ((1.0, True), (0.5, False)):
        options = {"rounds": 14, "participation": participation}
        _, all_known = run(SelfFL(peers="known", lr=0.1, max_steps=4), data, **options)
        _, active = run(SelfFL(peers="active", lr=0.1, max_steps=4), data, **options)
        assert (apart(active.personal_rows, all_known.personal_rows) < 1e-10) == same


# -- who uses what


def test_a_client_that_was_never_active_uses_the_common_model():
    data = federation()
    made, outcome = run(SelfFL(), data, rounds=2, participation=0.34)
    been = {note["client"] for note in outcome.client_notes}
    theta = outcome.server["weights"]
    assert 0 < len(been) < len(data)
    for k, name in enumerate(data.names):
        own = outcome.personal_rows[k : k + 1]
        assert (apart(own, theta) == 0) == (name not in been)
        if name in been:
            assert apart(own, made.store.get([k])["personal"]) == 0


def test_a_newcomer_does_what_a_first_activation_does():
    data = federation((5, 9, 7), targets="line", dtype=torch.float64)
    task = Task(line, "mse", dtype=torch.float64)
    method = SelfFL(lr=0.02, max_steps=7)
    theta = random_rows(task, 1)
    server = method.start_server(theta, round_of(3)) | {"variances": variances(0.1, 0.2, 0.3)}
    work = work_of(data, batch_size=20)
    client = Client()
    client.theta = theta
    found = method.newcomer(task, server, work)
    assert apart(found, client.descended(theta, [7, 7, 7], 0.02)) < 1e-10
    update, _ = client.update(method, 0, variances(3.0, 3.0, 3.0))
    assert apart(found, update["weights"]) < 1e-10
    known = SelfFL(lr=0.02, max_steps=10**4, noise=2.0, divisor="one")
    others = (1 / server["variances"]).sum()
    steps = local_steps(2.0 / work.n.double(), others, 0.02, 1, 10**4).tolist()
    assert apart(known.newcomer(task, server, work), client.descended(theta, steps, 0.02)) < 1e-10


def test_what_goes_over_the_wire():
    data = federation()
    for method, models in ((SelfFL(max_steps=2), 1), (SelfFL(max_steps=2, augmented=True), 2)):
        made, outcome = run(method, data, rounds=2)
        width = made.task.layout.width
        assert outcome.communication.down_floats == 2 * len(data) * (width + 2)  # θ, σ_0², S₋ₘ
        assert outcome.communication.up_floats == 2 * len(data) * (models * width + 1)  # θ_m, σ_m²
        assert outcome.communication.up_bytes == 2 * len(data) * (4 * models * width + 8)


# -- Algorithm 2


def test_augmented_trains_on_and_keeps_both_models():
    client = Client()
    method = SelfFL(lr=0.02, max_steps=4, augmented=True, extra_epochs=3, tolerance=0.0)
    upload, state = client.update(method, 1, variances(3.0, 1.5, 2.5))
    personal = client.descended(client.theta, [4] * 3, 0.02)
    optimum = client.descended(personal, [3] * 3, 0.02)  # full batches: an epoch is a step
    assert apart(upload["weights"], personal) < 1e-10 and apart(upload["optimum"], optimum) < 1e-10
    assert apart(state["personal"], personal) < 1e-10 and apart(state["optimum"], optimum) < 1e-10
    history = torch.stack([client.past[0].matrix(), optimum.matrix()])
    after = RunningVariance(state["count"], state["mean"], state["squares"]).variance
    torch.testing.assert_close(after, history.var(0, unbiased=False).sum(1), rtol=1e-10, atol=0)  # (20)
    used = method.personal(client.task, Message({"weights": client.theta}), state, client.work)
    assert apart(used, personal) < 1e-10


def test_augmented_starts_from_the_optimum():
    """(21): θ_{m,t-1} takes θ_m^{t-1}'s place."""
    client, others = Client(), variances(3.0, 1.5, 2.5)
    method = SelfFL(lr=0.02, max_steps=4, augmented=True)
    state = client.state(method, 3) | {"personal": random_rows(client.task, 3, seed=77)}
    message = Message({"weights": client.theta, "between": torch.tensor(0.1, dtype=torch.float64)}, {"others": others})
    upload, _ = method.local_update(client.task, message, state, client.work, round_of(3))
    start = client.theta - (client.past[-1] - client.theta) * (1 / (0.1 + upload["variance"]) / others)
    steps = client.work.notes["steps"].tolist()
    assert apart(upload["weights"], client.descended(start, steps, 0.02)) < 1e-10


def test_augmented_stops_where_the_loss_hardly_changes():
    client = Client()
    method = SelfFL(lr=0.02, max_steps=1, augmented=True, extra_epochs=200, tolerance=0.03)
    upload, _ = client.update(method, 1, variances(3.0, 1.5, 2.5))
    epochs = client.work.notes["extra_epochs"].tolist()
    assert len(set(epochs)) > 1 and max(epochs) < 200

    def loss(k: int, w: Rows) -> float:
        own = client.data.train.of(k)
        return float((client.data.x[own] @ w.matrix()[k] - client.data.y[own]).square().mean())

    personal = upload["weights"]
    for k, epoch in enumerate(epochs):
        assert epoch > 1
        trail = [loss(k, client.descended(personal, [count] * 3, 0.02)) for count in range(epoch + 1)]
        changes = [abs(b - a) / a for a, b in pairwise(trail)]
        assert changes[-1] < 0.03 and min(changes[:-1]) >= 0.03
    assert apart(upload["optimum"], client.descended(personal, epochs, 0.02)) < 1e-10


def test_augmented_aggregates_the_optimum():
    """(22) and (23) are about θ_{m,t}."""
    method = SelfFL(smoothing=1.0, augmented=True)
    own = variances(0.5, 1.0, 2.0, 0.1)
    uploads = uploads_of(rows(*[[9.0, 9.0, 9.0]] * 4), own, optimum=rows(*THETAS))
    new = method.aggregate(server_of(method, own), uploads, round_of())
    between = len(THETAS) * np.var(THETAS, axis=0).sum()
    assert new["between"].item() == pytest.approx(between, rel=1e-12)
    expected = np.average(THETAS, axis=0, weights=1 / (between + own.numpy()))
    np.testing.assert_allclose(new["weights"].matrix()[0], expected, rtol=1e-12)


# -- clusters


def test_clusters_are_aggregated_within_and_then_across():
    method = SelfFL(smoothing=1.0, between=0.25, clusters="groups")
    assert method.needs_groups and not SelfFL(clusters="variance").needs_groups and not SelfFL().needs_groups
    groups = {"groups": (7, 3, 7, 5)}  # labels as the split has them
    server = method.start_server(rows([0.0, 0.0, 0.0]), round_of(number=0, **groups))
    thetas, own = np.array(THETAS), np.array([0.5, 1.0, 2.0, 0.1])
    w = 1 / (0.25 + own)

    # Clients 0, 2 (group 7) and 1 (group 3) are active; group 5 was never seen and has no say.
    clients = (0, 1, 2)
    found = uploads_of(rows(*(THETAS[k] for k in clients)), variances(*own[:3]), clients)
    first = method.aggregate(server, found, round_of(**groups))
    seven, spread = np.average(thetas[[0, 2]], axis=0, weights=w[[0, 2]]), np.average(own[[0, 2]], weights=w[[0, 2]])
    expected = np.average([thetas[1], seven], axis=0, weights=[w[1], 1 / (0.25 + spread)])
    np.testing.assert_allclose(first["weights"].matrix()[0], expected, rtol=1e-12)
    np.testing.assert_allclose(first["cluster_variances"], [1.0, NAN, spread], rtol=1e-12)

    # Now clients 0 and 3: group 3's model is the stored one, group 7's is its newest, client 0's.
    found = uploads_of(rows([5.0, 5.0, 5.0], THETAS[3]), variances(0.4, 0.1), (0, 3))
    second = method.aggregate(first, found, round_of(number=2, **groups))
    weights = 1 / (0.25 + np.array([1.0, 0.1, 0.4]))
    expected = np.average([thetas[1], thetas[3], [5.0, 5.0, 5.0]], axis=0, weights=weights)
    np.testing.assert_allclose(second["weights"].matrix()[0], expected, rtol=1e-12)


def test_clusters_without_known_variances_weigh_the_same():
    method = SelfFL(smoothing=1.0, clusters="groups")
    groups = {"groups": (0, 1, 0, 0)}
    server = method.start_server(rows([0.0, 0.0, 0.0]), round_of(number=0, **groups))
    new = method.aggregate(server, uploads_of(rows(*THETAS), variances(*[NAN] * 4)), round_of(**groups))
    expected = (np.mean([THETAS[k] for k in (0, 2, 3)], axis=0) + np.array(THETAS[1])) / 2
    np.testing.assert_allclose(new["weights"].matrix()[0], expected, rtol=1e-12)
    assert new["cluster_variances"].isnan().all()


def test_clusters_by_variance_are_equal_shares_of_the_ranks():
    assert ranked(variances(0.9, 0.1, 0.5, 0.7, 0.2, 0.3), 3).tolist() == [2, 0, 1, 2, 0, 1]
    assert ranked(variances(0.9, NAN, 0.1, 0.5), 3).tolist() == [2, 1, 0, 1]  # unknown: as the median
    assert ranked(variances(NAN, NAN), 3).tolist() == [0, 0]
    assert ranked(variances(0.2, 0.1), 5).tolist() == [2, 0]


def test_one_cluster_is_no_cluster():
    data = federation()
    options = {"rounds": 6, "participation": 0.5}
    _, expected = run(SelfFL(max_steps=5), data, **options)
    _, found = run(SelfFL(max_steps=5, clusters="variance", num_clusters=1), data, **options)
    assert apart(found.personal_rows, expected.personal_rows) < 1e-5


def test_a_cluster_for_each_client_is_no_cluster_if_all_are_active():
    data = federation(dtype=torch.float64)
    groups = Data(**(vars(data) | {"groups": tuple(range(len(data)))}))
    _, expected = run(SelfFL(max_steps=5), data, rounds=6)
    _, found = run(SelfFL(max_steps=5, clusters="groups"), groups, rounds=6)
    assert apart(found.personal_rows, expected.personal_rows) < 1e-10
    _, sparse = run(SelfFL(max_steps=5), data, rounds=6, participation=0.5)
    _, stored = run(SelfFL(max_steps=5, clusters="groups"), groups, rounds=6, participation=0.5)
    assert apart(stored.server["weights"], sparse.server["weights"]) > 1e-3  # the absent are stood in for


# -- bad input


@pytest.mark.parametrize(
    ("hyper", "said"),
    [
        ({"max_steps": 0}, r"max_steps must be >= 1, got 0 \(ℓ_max of selffl\)"),
        ({"smoothing": 0.0}, r"smoothing must be in \(0, 1\], got 0.0"),
        ({"smoothing": 1.5}, r"smoothing must be in \(0, 1\], got 1.5"),
        ({"smoothing": "all"}, "smoothing of selffl must be a number, got 'all'"),
        ({"between": -1.0}, "between must be >= 0, got -1.0"),
        ({"noise": NAN}, "noise must be >= 0, got nan"),
        ({"tolerance": -0.1}, "tolerance must be >= 0"),
        ({"extra_epochs": 0}, "extra_epochs must be >= 1"),
        ({"num_clusters": 0}, "num_clusters must be >= 1"),
        ({"divisor": "batches"}, "divisor must be 'batch', 'examples', 'one', '1' or 1, got 'batches'"),
        ({"peers": "all"}, "peers must be 'known' or 'active', got 'all'"),
        ({"clusters": "group"}, "clusters must be 'none', 'groups' or 'variance', got 'group'"),
        ({"clusters": "groups", "variance_weights": False}, "clusters are aggregated by variance"),
        ({"lr": 0.0}, "lr must be > 0"),
        ({"variances": {"a": -0.1}}, "variances must be a number >= 0 for each client's name"),
        ({"variances": {"a": True}}, "variances must be a number >= 0"),
        ({"variances": [0.1, 0.2]}, "variances must be a number >= 0"),
        ({"variances": {"a": 0.1}, "noise": 0.1}, "noise and variances both define"),
    ],
)
def test_bad_hyper_parameters_get_a_sentence(hyper: dict[str, Any], said: str):
    with pytest.raises(InputError, match=said):
        build("selffl", hyper)


def test_given_variances_must_have_every_client():
    data = federation()
    known = dict.fromkeys(data.names[2:], 0.1)
    with pytest.raises(InputError, match=f"got none for {data.names[0]}, {data.names[1]}"):
        run(SelfFL(variances=known), data, rounds=1)


def test_given_variances_are_pairs_as_a_config_holds_them():
    pairs = [["a", 0.1], ["b", 2]]
    assert build("selffl", {"variances": pairs}).start_server(rows([0.0, 0.0, 0.0]), round_of(0, names=("b", "a")))[
        "variances"
    ].tolist() == [2, 0.1]
    assert SelfFL(variances={"a": 0.1}).variances == (("a", 0.1),)


def test_a_newcomer_whose_variance_is_not_given_takes_all_steps():
    data = federation((5, 9, 7), targets="line", dtype=torch.float64)
    task, work, client = Task(line, "mse", dtype=torch.float64), work_of(data, batch_size=20), Client()
    client.theta = random_rows(task, 1)
    server = {"weights": client.theta, "between": torch.tensor(0.0), "variances": variances(10.0, 10.0)}
    method = SelfFL(lr=0.02, max_steps=300, variances={data.names[1]: 0.05}, divisor="one")
    steps = round(np.log(0.2 / (1 / 0.05 + 0.2)) / np.log(1 - 0.02 / 0.05))  # S = 2/10
    assert 1 < steps < 300
    expected = client.descended(client.theta, [300, steps, 300], 0.02)
    assert apart(method.newcomer(task, server, work), expected) < 1e-10


def test_the_papers_defaults():
    method = build("selffl")
    assert isinstance(method, SelfFL)
    assert (method.lr, method.max_steps, method.smoothing, method.augmented) == (0.03, 40, None, False)
    assert method.initialise and method.adapt_steps and method.variance_weights


def test_it_runs_in_any_chunks_on_any_engine():
    """Also with clusters and Algorithm 2; in float64, where rounding of steps cannot flip."""
    data = federation(dtype=torch.float64)
    few = {"lr": 0.1, "max_steps": 8, "divisor": "examples", "variance": "mean", "peers": "known"}
    for method in (SelfFL(**few, augmented=True, extra_epochs=2), SelfFL(**few, clusters="variance", num_clusters=2)):
        options = {"rounds": 6, "participation": 0.9, "factory": mlp}
        _, expected = run(method, data, chunk=3, **options)
        for how in ({"chunk": 1}, {"chunk": 6}, {"reference": True}):
            _, found = run(method, data, **options, **how)
            assert apart(found.personal_rows, expected.personal_rows) < 1e-10
            assert [note["steps"] for note in sorted_notes(found)] == [note["steps"] for note in sorted_notes(expected)]
        assert len({note["steps"] for note in expected.client_notes}) > 2


def test_federations_trained_as_one_are_as_they_are_alone():
    """Each client then has its own federation's σ_0² beside its S₋ₘ."""
    method = SelfFL(lr=0.1, max_steps=8, divisor="examples")
    data = [federation(seed=seed, dtype=torch.float64) for seed in (1, 2)]
    settings = [Settings(rounds=6, workers=1, batch_size=4, participation=0.9, seed=seed) for seed in (3, 4)]
    task = Task(mlp, dtype=torch.float64)
    together = Simulation(method, task, data, settings, 3).run_all()
    for found, own, setting in zip(together, data, settings, strict=True):
        alone = Simulation(method, Task(mlp, dtype=torch.float64), own, setting, 3).run()
        assert apart(found.personal_rows, alone.personal_rows) < 1e-10
        assert len({note["steps"] for note in alone.client_notes}) > 2


def sorted_notes(outcome: Any) -> list[dict[str, Any]]:
    return sorted(outcome.client_notes, key=lambda note: (note["round"], note["client"]))
