"""The figures of a handful of clients, worked out by hand."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bespokefl.metrics import summarize, worst, worst_decile

NAN = float("nan")


def test_three_clients_by_hand() -> None:
    found = summarize([0.5, 0.9, 1.0], [1, 1, 2])
    mean = (0.5 + 0.9 + 1.0) / 3
    variance = ((0.5 - mean) ** 2 + (0.9 - mean) ** 2 + (1.0 - mean) ** 2) / 2
    assert found == {
        "mean": pytest.approx(mean),
        "weighted_mean": pytest.approx((0.5 + 0.9 + 2 * 1.0) / 4),
        "std": pytest.approx(math.sqrt(variance)),
        "worst": 0.5,
        "worst_decile": 0.5,
    }


def test_of_losses_the_worst_is_the_largest() -> None:
    found = summarize([0.5, 0.9, 2.0], [1, 1, 2], higher_is_better=False)
    assert (found["worst"], found["worst_decile"]) == (2.0, 2.0)


@pytest.mark.parametrize(("clients", "num"), [(1, 1), (9, 1), (10, 1), (11, 2), (20, 2), (21, 3), (30, 3), (100, 10)])
def test_worst_decile_is_a_tenth_of_the_clients_rounded_up(clients: int, num: int) -> None:
    values = np.random.default_rng(0).permutation(clients)
    assert worst_decile(values) == sum(range(num)) / num
    assert worst_decile(values, higher_is_better=False) == sum(range(clients - num, clients)) / num


def test_clients_without_data_are_left_out() -> None:
    assert summarize([0.25, NAN, 0.75], [1, 100, 1]) == summarize([0.25, 0.75], [1, 1])
    assert worst([NAN, 0.5]) == 0.5
    assert worst_decile([NAN] * 10 + [0.5, 1.0]) == 0.5


def test_what_is_undefined_is_none() -> None:
    assert summarize([0.5], [3])["std"] is None
    assert set(summarize([NAN, NAN], [3, 4]).values()) == {None}
    assert set(summarize([], []).values()) == {None}
    assert math.isnan(worst([]))


@given(st.lists(st.floats(0, 1), min_size=2, max_size=40))
def test_worst_at_most_worst_decile_at_most_mean(values: list[float]) -> None:
    found = summarize(values, np.ones(len(values)))
    assert found["worst"] is not None and found["worst_decile"] is not None and found["mean"] is not None
    assert found["worst"] <= found["worst_decile"] + 1e-12 <= found["mean"] + 2e-12
    assert found["mean"] == pytest.approx(found["weighted_mean"])
