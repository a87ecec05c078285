"""Test significance tests against closed forms, and their error rate without a difference."""

import math
from itertools import product

import numpy as np
import pytest

from bespokefl.core.errors import InputError
from bespokefl.metrics.mixed_model import estimate
from bespokefl.metrics.significance import (
    EQUAL,
    UNCLEAR,
    WORSE,
    bootstrap,
    holm,
    mean_score,
    resampled,
    standing,
    wilcoxon,
)

NAN = float("nan")


class TestWilcoxon:
    def test_the_exact_distribution(self) -> None:
        """p by all 2⁷ ways to give the ranks 1..7 a sign."""
        difference = np.array([0.3, -0.1, 0.5, 0.7, -0.2, 0.4, 0.6])
        ranks = np.argsort(np.argsort(np.abs(difference))) + 1
        found = float(ranks[difference < 0].sum())
        sums = [
            sum(rank for rank, sign in zip(ranks, signs, strict=True) if sign) for signs in product((0, 1), repeat=7)
        ]
        expected = 2 * np.mean(np.array(sums) <= found)
        result = wilcoxon(difference, np.zeros(7))
        assert result is not None and result.p_value == pytest.approx(expected)
        assert (result.pairs, result.mean_difference) == (7, pytest.approx(2.2 / 7))

    def test_pairs_without_a_score_are_left_out(self) -> None:
        first, second = [0.1, 0.2, NAN, 0.5, 0.4], [0.2, NAN, 0.3, 0.1, 0.5]
        assert wilcoxon(first, second) == wilcoxon([0.1, 0.5, 0.4], [0.2, 0.1, 0.5])
        assert wilcoxon([NAN], [0.5]) is None and wilcoxon([], []) is None

    def test_equal_scores_do_not_differ(self) -> None:
        result = wilcoxon([0.5, 0.25], [0.5, 0.25])
        assert result is not None and (result.p_value, result.mean_difference) == (1.0, 0.0)

    def test_seeds_and_clients_are_pairs(self) -> None:
        rng = np.random.default_rng(0)
        first, second = rng.random((2, 3, 5))
        assert wilcoxon(first, second) == wilcoxon(first.ravel(), second.ravel())

    def test_rounding_breaks_no_tie(self) -> None:
        """0.3 − 0.2 is not 0.2 − 0.1 in binary, but is the same difference."""
        first, second = [0.3, 0.2, 0.7, 0.9, 0.8, 0.4], [0.2, 0.1, 0.6, 1.0, 0.7, 0.3]
        assert wilcoxon(first, second).p_value == wilcoxon([1, 1, 1, -1, 1, 1], np.zeros(6)).p_value  # type: ignore[union-attr]

    def test_the_same_clients(self) -> None:
        with pytest.raises(
            InputError, match=r"first and second must be of the same clients or examples, got the shapes"
        ):
            wilcoxon([0.5, 0.5], [0.5])


class TestHolm:
    def test_by_hand(self) -> None:
        assert holm([0.01, 0.04, 0.03, 0.005]).tolist() == pytest.approx([0.03, 0.06, 0.06, 0.02])
        assert holm([0.9, 0.8]).tolist() == [1.0, 1.0]
        assert holm([]).tolist() == []

    def test_bad_input(self) -> None:
        with pytest.raises(InputError, match=r"p_values must be in \[0, 1\]"):
            holm([0.5, 1.5])


class TestBootstrap:
    def test_it_covers_the_mean(self) -> None:
        """Of 95 % intervals from 40 clients about 95 % hold the true mean."""
        held = 0
        for seed in range(300):
            values = np.random.default_rng(seed).standard_normal(40)
            low, high = bootstrap(values, seed=seed, resamples=400)  # type: ignore[misc]
            held += low <= 0 <= high
        assert 0.90 <= held / 300 <= 0.985

    def test_its_width_is_that_of_a_normal_interval(self) -> None:
        values = np.random.default_rng(1).standard_normal(500)
        low, high = bootstrap(values, resamples=4000)  # type: ignore[misc]
        assert (high - low) / 2 == pytest.approx(1.96 * values.std() / math.sqrt(500), rel=0.06)
        assert (high + low) / 2 == pytest.approx(values.mean(), abs=0.01)

    def test_seeds_are_drawn_too(self) -> None:
        """Where only the seeds differ, clients alone would give an interval of no width."""
        values = np.repeat(np.arange(6.0)[:, None], 50, axis=1)
        low, high = bootstrap(values, resamples=4000)  # type: ignore[misc]
        assert (high - low) / 2 == pytest.approx(1.96 * np.arange(6.0).std() / math.sqrt(6), rel=0.12)

    def test_missing_scores_do_not_count(self) -> None:
        values = np.array([[1.0, NAN, 3.0], [2.0, 5.0, NAN]])
        drawn = resampled({"one": values}, seed=0, resamples=500)["one"]
        assert np.nanmin(drawn) >= 1 and np.nanmax(drawn) <= 5
        assert bootstrap(np.array([[1.0, NAN], [NAN, 1.0]])) == (1.0, 1.0)

    def test_of_too_few_there_is_none(self) -> None:
        assert bootstrap([]) is None and bootstrap([0.5]) is None and bootstrap([0.5, NAN]) is None

    def test_the_same_seed_gives_the_same_interval(self) -> None:
        values = np.random.default_rng(0).random(20)
        assert bootstrap(values, seed=3) == bootstrap(values, seed=3) != bootstrap(values, seed=4)

    def test_bad_input(self) -> None:
        with pytest.raises(InputError, match="level must be between 0 and 1, got 95"):
            bootstrap([0.5, 0.6], level=95)
        with pytest.raises(InputError, match="resamples must be >= 1, got 0"):
            bootstrap([0.5, 0.6], resamples=0)


class TestStanding:
    def test_how_others_compare_with_the_best(self) -> None:
        rng = np.random.default_rng(0)
        common = rng.random((5, 30))
        noise = rng.standard_normal((3, 5, 30))
        scores = {
            "far": common - 0.2 + 0.05 * noise[0],
            "best": common + 0.02,
            "near": common + 0.019 + 0.01 * noise[1],
            "unclear": common + 0.01 + 0.5 * noise[2],
        }
        found = standing(scores)
        assert found.best == "best"
        assert found.relations == {"far": WORSE, "near": EQUAL, "unclear": UNCLEAR}
        assert found.ties == ("near", "unclear") and found.related(WORSE) == ("far",)
        assert (found.margin, found.num_seeds, found.num_clients) == (0.01, 5, 30)
        assert found.differences["far"] == estimate(scores["best"] - scores["far"])
        names = list(found.relations)
        expected = np.minimum(1, holm([found.p_values[name] for name in names]) * 4 / 2)  # the best of four
        assert [found.adjusted[name] for name in names] == expected.tolist()
        assert standing(scores, margin=0.0001).relations["near"] == UNCLEAR
        assert standing(scores, margin=1.0).relations["unclear"] == EQUAL

    def test_seeds_are_repeats_and_pairs_are_not(self) -> None:
        """A lead that one of five seeds makes: significant over 5 × 40 pairs, but not over seeds."""
        common = np.random.default_rng(0).random((5, 40))
        lead = np.array([0.3, 0.01, -0.01, 0.02, 0.01])[:, None]
        scores = {"one": common, "other": common + lead}
        assert wilcoxon(scores["one"], scores["other"]).p_value < 1e-6  # type: ignore[union-attr]
        assert standing(scores).relations == {"one": UNCLEAR}

    def test_of_losses_the_least_is_best(self) -> None:
        found = standing({"a": [1.0, 2.0, 3.0], "b": [0.5, 1.5, 2.5]}, higher_is_better=False)
        assert found.best == "b" and found.margin == pytest.approx(0.02 * 1.5)
        assert found.differences["a"].mean == 0.5

    def test_one_method_alone(self) -> None:
        found = standing({"only": [0.5, 0.6]})
        assert (found.best, found.ties, found.adjusted) == ("only", (), {})

    def test_one_client(self) -> None:
        assert standing({"a": [0.9], "b": [0.1]}).relations == {"b": UNCLEAR}

    def test_the_mean_is_over_clients_and_then_over_seeds(self) -> None:
        """As in tables: pooled, the seed with more clients would count more."""
        scores = {"a": np.array([[0.9, NAN, NAN], [0.1, 0.1, 0.1]]), "b": np.array([[0.4, NAN, NAN], [0.4, 0.4, 0.4]])}
        assert mean_score(scores["a"]) == pytest.approx(0.5)
        assert standing(scores).best == "a"

    def test_bad_input(self) -> None:
        with pytest.raises(InputError, match="pass the scores of at least one method"):
            standing({})
        with pytest.raises(InputError, match="no client has a score"):
            standing({"a": [NAN], "b": [NAN]})
