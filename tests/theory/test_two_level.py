"""The two-level Gaussian: every closed form against the sums, the linear algebra or the iteration it stands for."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from bespokefl.theory import two_level
from bespokefl.theory.two_level import (
    bayes_gain,
    descended,
    exact_bayes,
    fl_optimum,
    fl_variance,
    gain,
    global_optimum,
    global_variance,
    initial_value,
    local_steps,
    start_from,
)

Z = np.array([1.2, -0.3, 2.5, 0.9])
VAR = np.array([0.2, 0.7, 0.05, 1.3])
VAR0 = 0.4


def posterior(z: np.ndarray, var0: float, var: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean and covariance of (θ_0, θ_1, …, θ_M) given z under (1), brute force: log density's matrix, solved.

    −2 log p = Σ (θ_m − θ_0)² / σ_0² + Σ (z_m − θ_m)² / σ_m² + const, and the prior of θ_0 is flat.
    """
    size = len(z)
    matrix = np.zeros((size + 1, size + 1))
    matrix[0, 0] = size / var0
    matrix[0, 1:] = matrix[1:, 0] = -1 / var0
    matrix[1:, 1:] = np.diag(1 / var0 + 1 / var)
    covariance = np.linalg.inv(matrix)
    return covariance @ np.concatenate([[0.0], z / var]), covariance


def test_the_posterior_of_the_common_mean_is_the_brute_force_one():
    mean, covariance = posterior(Z, VAR0, VAR)
    np.testing.assert_allclose(global_optimum(Z, VAR0, VAR), mean[0], rtol=1e-12)
    np.testing.assert_allclose(global_variance(VAR0, VAR), covariance[0, 0], rtol=1e-12)


def test_exact_bayes_and_its_gain_are_the_brute_force_posterior():
    mean, covariance = posterior(Z, VAR0, VAR)
    np.testing.assert_allclose(exact_bayes(Z, VAR0, VAR), mean[1:], rtol=1e-12)
    np.testing.assert_allclose(VAR / bayes_gain(VAR0, VAR), np.diag(covariance)[1:], rtol=1e-12)


def test_a_very_wide_prior_on_the_common_mean_gives_the_same():
    wide = 1e7  # θ_0 ~ N(0, wide): cov(z) = wide + σ_0² + σ_m² on the diagonal, cov(θ_m, z_k) = wide + σ_0² [m = k]
    between = wide + VAR0 * np.eye(4)
    mean = between @ np.linalg.solve(between + np.diag(VAR), Z)
    np.testing.assert_allclose(exact_bayes(Z, VAR0, VAR), mean, rtol=1e-5)


def test_the_fl_optimum_is_the_posterior_under_its_own_assumption():
    """(3) is the posterior of θ_m if θ_m = θ_0: z_m has variance σ_m², the others σ_0² + σ_k², all around one mean."""
    for m in range(4):
        variances = np.where(np.arange(4) == m, VAR, VAR0 + VAR)
        assert fl_optimum(Z, VAR0, VAR)[m] == pytest.approx(np.average(Z, weights=1 / variances), rel=1e-12)
        assert fl_variance(VAR0, VAR)[m] == pytest.approx(1 / (1 / variances).sum(), rel=1e-12)
        assert gain(VAR0, VAR)[m] == pytest.approx(VAR[m] * (1 / variances).sum(), rel=1e-12)


def test_start_and_steps_lead_exactly_to_the_fl_optimum():
    """(6) from (7) after (8)'s steps is (3), whatever the learning rate below the smallest variance."""
    for lr in (0.04, 1e-4):
        start, steps = initial_value(Z, VAR0, VAR), local_steps(VAR0, VAR, lr)
        assert (steps > 0).all()
        np.testing.assert_allclose(descended(start, Z, VAR, lr, steps), fl_optimum(Z, VAR0, VAR), rtol=1e-10)


def test_descended_is_gradient_descent():
    """(6) is (5), step by step."""
    lr, theta = 0.03, np.full(4, 5.0)
    for _ in range(7):
        theta = theta - lr * (theta - Z) / VAR
    np.testing.assert_allclose(descended(5.0, Z, VAR, lr, 7), theta, rtol=1e-12)


def test_the_start_from_the_global_optimum_is_the_others_mean():
    """(9) equals (7)."""
    expected = [np.average(np.delete(Z, m), weights=1 / np.delete(VAR0 + VAR, m)) for m in range(4)]
    np.testing.assert_allclose(initial_value(Z, VAR0, VAR), expected, rtol=1e-12)
    np.testing.assert_allclose(start_from(global_optimum(Z, VAR0, VAR), Z, VAR0, VAR), expected, rtol=1e-12)


@given(
    st.lists(st.tuples(st.floats(-10, 10), st.floats(0.01, 10)), min_size=2, max_size=12),
    st.floats(0.0, 10),
)
def test_the_three_equations_hold_for_any_federation(clients: list[tuple[float, float]], var0: float):
    z, var = np.array(clients).T
    lr = 0.5 * var.min()
    np.testing.assert_allclose(
        start_from(global_optimum(z, var0, var), z, var0, var), initial_value(z, var0, var), atol=1e-8
    )
    reached = descended(initial_value(z, var0, var), z, var, lr, local_steps(var0, var, lr))
    np.testing.assert_allclose(reached, fl_optimum(z, var0, var), atol=1e-8)


# -- Remark 2.1: three extreme cases


@pytest.mark.parametrize("var0", [1e12, np.inf])
def test_clients_that_are_barely_connected_learn_alone(var0: float):
    np.testing.assert_allclose(fl_optimum(Z, var0, VAR), Z, rtol=1e-10)
    np.testing.assert_allclose(exact_bayes(Z, var0, VAR), Z, rtol=1e-10)
    np.testing.assert_allclose(fl_variance(var0, VAR), VAR, rtol=1e-10)
    np.testing.assert_allclose(gain(var0, VAR), 1, rtol=1e-10)
    np.testing.assert_allclose(bayes_gain(var0, VAR), 1, rtol=1e-10)
    np.testing.assert_allclose(global_optimum(Z, var0, VAR), Z.mean(), rtol=1e-10)
    assert global_variance(var0, VAR) >= 1e11


def test_clients_that_are_alike_all_get_the_global_optimum():
    common = np.average(Z, weights=1 / VAR)
    assert global_optimum(Z, 0.0, VAR) == pytest.approx(common, rel=1e-12)
    np.testing.assert_allclose(fl_optimum(Z, 0.0, VAR), common, rtol=1e-12)
    np.testing.assert_allclose(exact_bayes(Z, 0.0, VAR), common, rtol=1e-12)
    np.testing.assert_allclose(gain(0.0, VAR), bayes_gain(0.0, VAR), rtol=1e-12)


def test_a_client_with_much_better_data_learns_alone_and_helps_the_others():
    var = np.array([1e-9, 0.7, 0.5, 1.3])
    assert fl_optimum(Z, VAR0, var)[0] == pytest.approx(Z[0], abs=1e-7)
    assert gain(VAR0, var)[0] == pytest.approx(1, abs=1e-7)
    # The paper's GAIN_2 >= σ_2²/σ_1² is meant for σ_0² well below σ_1²; in general it is σ_2² / (σ_0² + σ_1²).
    assert gain(VAR0, var)[1] >= var[1] / (VAR0 + var[0])
    assert gain(0.0, var)[1] >= var[1] / var[0]


# -- the gains, judged


def error(weights: np.ndarray, client: int, var0: float, var: np.ndarray) -> float:
    """E(Σ a_k z_k − θ_m)² under (1), for weights that sum to one: θ_0 drops out, all else is independent."""
    others = np.arange(len(var)) != client
    own = weights[client]
    return ((weights[others] ** 2 * (var0 + var[others])).sum() + (own - 1) ** 2 * var0 + own**2 * var[client]).item()


def test_no_linear_estimator_is_better_than_exact_bayes_and_its_gain_says_by_how_much():
    rng = np.random.default_rng(1)
    columns = exact_bayes(np.eye(4), VAR0, VAR)  # it is linear: what each z_k alone would give
    for m in range(4):
        weights = columns[:, m]
        assert weights.sum() == pytest.approx(1, rel=1e-12)
        best = error(weights, m, VAR0, VAR)
        assert best == pytest.approx(VAR[m] / bayes_gain(VAR0, VAR)[m], rel=1e-12)
        for _ in range(20):
            change = rng.standard_normal(4)
            assert error(weights + 0.1 * (change - change.mean()), m, VAR0, VAR) > best


def test_where_clients_differ_much_the_papers_optimum_is_worse_than_learning_alone():
    """The synthetic study's second case: GAIN promises much, (3) does not keep it; the honest gain does."""
    rng = np.random.default_rng(0)
    var0, var = 1.0, 0.1 / rng.integers(10, 201, (4000, 20))
    theta = 1.6 + rng.standard_normal(var.shape)
    z = theta + np.sqrt(var) * rng.standard_normal(var.shape)
    alone, paper, bayes = (
        np.square(found - theta).mean() for found in (z, fl_optimum(z, var0, var), exact_bayes(z, var0, var))
    )
    assert alone == pytest.approx(var.mean(), rel=0.02)
    assert (gain(var0, var) >= bayes_gain(var0, var)).all() and (bayes_gain(var0, var) > 1).all()
    assert bayes < alone < paper / 1.5
    assert bayes == pytest.approx((var / bayes_gain(var0, var)).mean(), rel=0.02)


# -- the generic iteration


def step(personal: np.ndarray, z: np.ndarray, var0: float, var: np.ndarray, lr: float) -> np.ndarray:
    """A round of generic Self-FL with all clients: (11) without smoothing, (10), (8) unrounded, (6)."""
    common = global_optimum(personal, var0, var)  # (11) has the weights of (2)
    return descended(start_from(common, personal, var0, var), z, var, lr, local_steps(var0, var, lr))


def fixed_point(z: np.ndarray, var0: float, var: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Where rounds lead: x_m = (1 − q_m) z_m + q_m Σ_{k≠m} w_k x_k / S₋ₘ, solved; and the q_m."""
    w = 1 / (var0 + var)
    others = np.array([np.delete(w, m).sum() for m in range(len(z))])
    q = others / (1 / var + others)  # the right-hand side of (8)
    mixing = (w[None, :] - np.diag(w)) / others[:, None]
    system = torch.from_numpy(np.eye(len(z)) - q[:, None] * mixing)
    return torch.linalg.solve(system, torch.from_numpy((1 - q) * z)).numpy(), q  # torch: tests keep it to one thread


def test_the_iteration_contracts_by_q_to_its_own_fixed_point():
    rng = np.random.default_rng(2)
    var0, var = 0.5, rng.uniform(0.02, 0.1, 12)
    z = 1.6 + np.sqrt(var0 + var) * rng.standard_normal(12)
    goal, q = fixed_point(z, var0, var)
    personal = np.zeros(12)
    for _ in range(40):
        new = step(personal, z, var0, var, lr=1e-3)
        assert abs(new - goal).max() <= q.max() * abs(personal - goal).max() + 1e-12
        personal = new
    np.testing.assert_allclose(personal, goal, atol=q.max() ** 40 * abs(goal).max() + 1e-10)


def test_with_equal_variances_a_common_error_shrinks_by_exactly_q():
    z, var = np.array([1.0, 2.0, 4.0, 7.0]), np.full(4, 0.05)
    goal, q = fixed_point(z, VAR0, var)
    assert 0.1 < q[0] < 0.9
    np.testing.assert_allclose(step(goal + 1, z, VAR0, var, lr=1e-3), goal + q, rtol=1e-12)


def test_the_fixed_point_comes_closer_to_both_optima_with_more_clients():
    """Proposition 3.1: O_p(M^(-1/2)), for σ_m² of order 1/M, which keeps q away from 1."""
    distances = []
    for num in (10, 40, 160):
        personal, common = [], []
        for repeat in range(40):
            rng = np.random.default_rng([num, repeat])
            var0, var = 0.5, rng.uniform(0.5, 1.5, num) / num
            z = 1.6 + np.sqrt(var0 + var) * rng.standard_normal(num)
            goal, q = fixed_point(z, var0, var)
            assert q.max() < 0.9
            personal.append(abs(goal - fl_optimum(z, var0, var)).max())
            common.append(abs(global_optimum(goal, var0, var) - global_optimum(z, var0, var)))
        distances.append((np.mean(personal), np.mean(common)))
    small, middle, large = np.array(distances)
    assert (large > 1e-6).all()  # they do differ
    assert (middle < 0.75 * small).all() and (large < 0.75 * middle).all()  # a half each time, in expectation


# -- shapes and edges


def test_repeats_are_handled_at_once():
    rng = np.random.default_rng(3)
    z, var, var0 = rng.standard_normal((5, 4)), rng.uniform(0.1, 1, (5, 4)), rng.uniform(0.1, 1, 5)
    for name in ("global_optimum", "fl_optimum", "exact_bayes", "initial_value"):
        function = getattr(two_level, name)
        expected = np.stack([function(z[r], var0[r], var[r]) for r in range(5)])
        np.testing.assert_allclose(function(z, var0, var), expected, rtol=1e-12)
        np.testing.assert_allclose(function(z[0], 0.3, 0.2), function(z[0], 0.3, np.full(4, 0.2)), rtol=1e-12)
    for name in ("global_variance", "fl_variance", "gain", "bayes_gain"):
        function = getattr(two_level, name)
        np.testing.assert_allclose(function(var0, var), np.stack([function(var0[r], var[r]) for r in range(5)]))
    steps = np.stack([local_steps(var0[r], var[r], 0.01) for r in range(5)])
    np.testing.assert_allclose(local_steps(var0, var, 0.01), steps, rtol=1e-12)
    assert global_optimum(z, var0, var).shape == (5,) and fl_optimum(z, var0, var).shape == (5, 4)


def test_a_client_without_others_learns_alone():
    for function in (exact_bayes, fl_optimum, global_optimum):
        assert function([1.5], 0.4, [0.2]) == pytest.approx(1.5, rel=1e-12)
    assert gain(0.4, [0.2]) == bayes_gain(0.4, [0.2]) == 1
    assert fl_variance(0.4, [0.2]) == 0.2
    assert np.isnan(initial_value([1.5], 0.4, [0.2])).all()
    assert np.isposinf(local_steps(0.4, [0.2], 0.01)).all()


def test_no_number_of_steps_is_given_where_one_step_overshoots():
    steps = local_steps(VAR0, [0.05, 0.1, 0.2], lr=0.1)
    assert np.isnan(steps).tolist() == [True, True, False]


def test_sums_over_the_others_do_not_cancel():
    """One client's weight is 1e18 times the others': total minus own would leave nothing of theirs."""
    var = np.array([1e-18, 1.0, 1.0])
    assert initial_value([5.0, 1.0, 3.0], 0.0, var)[0] == pytest.approx(2.0, rel=1e-12)


# -- variances of zero


@pytest.mark.filterwarnings("error")
def test_a_certain_client_where_clients_differ_is_a_client_like_others():
    """σ_1² = 0 and σ_0² > 0: its weight is 1/σ_0², it needs nobody, and the closed forms are continuous there."""
    var, nearly = np.array([0.0, 0.7, 0.5, 1.3]), np.array([1e-14, 0.7, 0.5, 1.3])
    assert exact_bayes(Z, VAR0, var)[0] == Z[0] == fl_optimum(Z, VAR0, var)[0]
    assert gain(VAR0, var)[0] == bayes_gain(VAR0, var)[0] == 1
    assert fl_variance(VAR0, var)[0] == pytest.approx(0, abs=1e-100)
    assert np.isnan(local_steps(VAR0, var, 0.1)[0])
    for name in ("global_optimum", "fl_optimum", "exact_bayes", "initial_value"):
        function = getattr(two_level, name)
        np.testing.assert_allclose(function(Z, VAR0, var), function(Z, VAR0, nearly), rtol=1e-12)
    for name in ("global_variance", "gain", "bayes_gain"):
        function = getattr(two_level, name)
        np.testing.assert_allclose(function(VAR0, var), function(VAR0, nearly), rtol=1e-12)


@pytest.mark.filterwarnings("error")
def test_among_clients_that_are_alike_the_certain_ones_share_all_the_weight():
    """σ_0² = 0 and two of four σ_m² = 0: everybody's estimate is the mean of the two."""
    var, common = np.array([0.0, 0.7, 0.0, 1.3]), (Z[0] + Z[2]) / 2
    assert global_optimum(Z, 0.0, var) == pytest.approx(common, rel=1e-12)
    assert global_variance(0.0, var) == pytest.approx(0, abs=1e-100)
    np.testing.assert_allclose(fl_optimum(Z, 0.0, var), common, rtol=1e-12)
    np.testing.assert_allclose(exact_bayes(Z, 0.0, var), common, rtol=1e-12)
    np.testing.assert_allclose(initial_value(Z, 0.0, var), [Z[2], common, Z[0], common], rtol=1e-12)
    # Equal variances v, however small: v (1/v + 1/v) = 2 for the two, and beyond all bounds for the others.
    for found in (gain(0.0, var), bayes_gain(0.0, var)):
        np.testing.assert_allclose(found[[0, 2]], 2, rtol=1e-12)
        assert (found[[1, 3]] > 1e100).all()
    np.testing.assert_allclose(global_optimum(Z, 0.0, np.zeros(4)), Z.mean(), rtol=1e-12)


@pytest.mark.filterwarnings("error")
def test_nothing_warns_at_the_edges():
    for var0 in (0.0, 0.4, np.inf):
        for var in ([0.0, 0.0, 0.0], [0.2, 0.0, 1.0], [0.0]):
            z = Z[: len(var)]
            for name in ("global_optimum", "fl_optimum", "exact_bayes"):
                assert np.isfinite(getattr(two_level, name)(z, var0, var)).all()
            for name in ("global_variance", "fl_variance", "gain", "bayes_gain"):
                assert not np.isnan(getattr(two_level, name)(var0, var)).any()
            start_from(global_optimum(z, var0, var), z, var0, var)
            local_steps(var0, var, 0.1)
            descended(initial_value(z, var0, var), z, var, 0.1, 2.5)


@pytest.mark.filterwarnings("error")
def test_a_client_that_knows_nothing_has_no_weight():
    assert global_optimum([1.0, 5.0, 3.0], 0.4, [0.2, np.inf, 0.2]) == pytest.approx(2.0, rel=1e-12)
