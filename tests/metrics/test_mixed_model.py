"""Test the mixed model: by hand, and how often it errs where the truth is known."""

import math

import numpy as np
import pytest
from scipy import stats

from bespokefl.core.errors import InputError
from bespokefl.metrics.mixed_model import estimate, mean_and_error
from bespokefl.metrics.significance import against_best

NAN = float("nan")
REPEATS = 4000  # a rate of .05 has a standard error of .0034
# standard deviations of a difference of two methods between clients, between seeds, and of the rest, as in comparisons
# on digits and Fashion-MNIST: clients differ by a few points, seeds by less
REALISTIC = [(0.03, 0.01, 0.03), (0.05, 0.02, 0.03), (0.05, 0.003, 0.02), (0.03, 0.0, 0.03), (0.01, 0.03, 0.05)]


def differences(
    sizes: tuple[int, int], deviations: tuple[float, float, float], *, effect: float = 0.0, number: int = REPEATS
) -> np.ndarray:
    """Draw differences of two methods, (number, seeds, clients), with a planted effect."""
    rng = np.random.default_rng([*sizes, *(int(1000 * one) for one in deviations)])
    (num_seeds, num_clients), (clients, seeds, rest) = sizes, deviations
    return (
        effect
        + clients * rng.standard_normal((number, 1, num_clients))
        + seeds * rng.standard_normal((number, num_seeds, 1))
        + rest * rng.standard_normal((number, num_seeds, num_clients))
    )


def p_values(tables: np.ndarray) -> np.ndarray:
    mean, error, degrees = mean_and_error(tables)
    found: np.ndarray = 2 * stats.t.sf(np.abs(mean) / error, degrees)
    return found


class TestErrorRates:
    @pytest.mark.parametrize("deviations", REALISTIC)
    @pytest.mark.parametrize("sizes", [(5, 10), (5, 30), (5, 100), (10, 10), (10, 30)])
    def test_without_an_effect_five_percent_are_significant(
        self, sizes: tuple[int, int], deviations: tuple[float, float, float]
    ) -> None:
        assert 0.03 <= (p_values(differences(sizes, deviations)) < 0.05).mean() <= 0.07

    def test_other_tests_err_far_more_often(self) -> None:
        """Counting pairs of client and seed, or seeds alone, as repeats finds differences where there are none."""
        tables = differences((5, 30), (0.05, 0.02, 0.03), number=1000)
        pooled = stats.wilcoxon(tables.reshape(len(tables), -1), axis=1).pvalue
        seeds_only = stats.ttest_1samp(tables.mean(2), 0.0, axis=1).pvalue
        assert (pooled < 0.05).mean() > 0.3
        assert (seeds_only < 0.05).mean() > 0.09
        assert (p_values(tables) < 0.05).mean() < 0.07

    @pytest.mark.parametrize("deviations", [(0.0, 0.0, 0.03), (0.0, 0.01, 0.03)])
    def test_if_clients_do_not_differ_it_errs_less_often(self, deviations: tuple[float, float, float]) -> None:
        for sizes in ((5, 10), (10, 30)):
            assert (p_values(differences(sizes, deviations)) < 0.05).mean() <= 0.06

    @pytest.mark.parametrize("deviations", REALISTIC)
    def test_intervals_cover_a_planted_effect(self, deviations: tuple[float, float, float]) -> None:
        mean, error, degrees = mean_and_error(differences((5, 30), deviations, effect=0.02))
        half = stats.t.ppf(0.975, degrees) * error
        assert 0.93 <= ((mean - half <= 0.02) & (mean + half >= 0.02)).mean() <= 0.97

    def test_planted_effects_are_found(self) -> None:
        """An effect of 5 standard errors is found nine times in ten, with few degrees of freedom, one of 1 seldom."""
        for sizes in ((5, 30), (10, 30)):
            error = math.sqrt(0.03**2 / sizes[1] + 0.01**2 / sizes[0] + 0.03**2 / (sizes[0] * sizes[1]))
            large, small = (
                (p_values(differences(sizes, REALISTIC[0], effect=factor * error)) < 0.05).mean() for factor in (5, 1)
            )
            assert large > 0.9 and 0.1 < small < 0.25

    @pytest.mark.parametrize("num_methods", [2, 4, 10])
    def test_the_best_of_equal_methods_is_seldom_ahead_of_any(self, num_methods: int) -> None:
        """The best mean of several is chosen by the same data: Holm's correction alone would not suffice."""
        rng = np.random.default_rng(num_methods)
        scores = (
            0.03 * rng.standard_normal((num_methods, 1000, 1, 30))
            + 0.01 * rng.standard_normal((num_methods, 1000, 5, 1))
            + 0.03 * rng.standard_normal((num_methods, 1000, 5, 30))
        )
        best = scores.mean((2, 3)).argmax(0)
        others = [np.delete(scores[:, at], one, axis=0) for at, one in enumerate(best)]
        tests = p_values(scores[best, np.arange(1000)][:, None] - np.stack(others))
        adjusted = np.stack([against_best(row, num_methods) for row in tests])
        assert (adjusted < 0.05).any(1).mean() <= 0.07


class TestEstimate:
    def test_by_hand(self) -> None:
        """Two seeds, three clients: the mean squares of seeds, clients and the rest are 0, 2 and 6."""
        table = np.array([[1.0, 2.0, 6.0], [3.0, 4.0, 2.0]])
        by_seed, by_client, mean = [3.0, 3.0], [2.0, 3.0, 4.0], 3.0
        rest = [1 - 2, 2 - 3, 6 - 4, 3 - 2, 4 - 3, 2 - 4]  # less the means of seed and client, plus the mean
        of_seeds, of_clients = 3 * np.var(by_seed, ddof=1), 2 * np.var(by_client, ddof=1)
        of_rest = sum(one**2 for one in rest) / 2
        assert (of_seeds, of_clients, of_rest) == (0.0, 2.0, 6.0)
        total = of_clients  # the variance of seeds would be below zero
        degrees = max(1, total**2 / (of_seeds**2 / 1 + of_clients**2 / 2 + of_rest**2 / 2))
        found = estimate(table)
        assert found is not None and found.mean == mean
        assert found.p_value == pytest.approx(2 * stats.t.sf(mean / math.sqrt(total / 6), degrees))

    def test_a_balanced_table(self) -> None:
        """All three components above zero: their sum and Satterthwaite's degrees of freedom."""
        seeds, clients = np.array([-2.0, 0.0, 2.0]), np.array([-3.0, -1.0, 1.0, 3.0])
        rest = np.array([[1.0, -1, 0, 0], [-1.0, 1, 0, 0], [0.0, 0, 0, 0]])
        table = 10 + seeds[:, None] + clients + rest
        of_seeds, of_clients, of_rest = 4 * 4.0, 3 * 20 / 3, 4 / 6
        total = of_seeds + of_clients - of_rest
        degrees = total**2 / (of_seeds**2 / 2 + of_clients**2 / 3 + of_rest**2 / 6)
        mean, error, freedom = mean_and_error(table)
        assert (mean, error, freedom) == (
            pytest.approx(10),
            pytest.approx(math.sqrt(total / 12)),
            pytest.approx(degrees),
        )
        found = estimate(table, level=0.1)
        half = stats.t.ppf(0.95, degrees) * math.sqrt(total / 12)
        assert found is not None and found.interval == pytest.approx((10 - half, 10 + half))
        assert (found.num_seeds, found.num_clients) == (3, 4)

    def test_one_seed_is_a_t_test_over_clients(self) -> None:
        values = [0.1, 0.3, 0.2, 0.6]
        expected = stats.ttest_1samp(values, 0.0)
        for table in (values, [values], np.array(values)[:, None]):
            found = estimate(table)
            assert found is not None and found.p_value == pytest.approx(expected.pvalue)
            assert found.interval == pytest.approx(tuple(expected.confidence_interval()))

    def test_clients_without_a_value_are_left_out(self) -> None:
        table = np.array([[0.1, NAN, 0.3, 0.2], [0.2, 0.4, 0.5, 0.1]])
        assert estimate(table) == estimate(table[:, [0, 2, 3]])
        assert estimate([]) is None and estimate([0.5]) is None and estimate([NAN, 0.5]) is None

    def test_equal_values(self) -> None:
        same, constant = estimate(np.zeros((3, 4))), estimate(np.full((3, 4), 0.1))
        assert same is not None and (same.p_value, same.interval) == (1.0, (0.0, 0.0))
        assert constant is not None and constant.p_value == 2**-3  # as a sign test of four clients

    def test_bounds(self) -> None:
        found = estimate([0.9, 1.0, 1.0, 0.8], bounds=(0.0, 1.0))
        assert found is not None and found.interval[1] == 1.0 and found.interval[0] > 0.7

    def test_bad_input(self) -> None:
        with pytest.raises(InputError, match="level must be between 0 and 1, got 5"):
            estimate([0.5, 0.6], level=5)
