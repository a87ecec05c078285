"""Test spread and summary by hand on a few clients."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from bespokefl.core.errors import InputError
from bespokefl.metrics import standard_error, summarize, worst, worst_decile
from bespokefl.metrics.spread import largest_decile, smallest_decile

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
    for found in (worst([]), worst_decile([NAN]), largest_decile([], []), smallest_decile([NAN], [3])):
        assert found is None
    assert standard_error([0.5]) is None
    assert standard_error([0.25, 0.75]) == pytest.approx(math.sqrt(0.125 / 2))


def test_the_largest_and_the_smallest_tenth_count_by_their_examples() -> None:
    values, sizes = np.arange(11) / 10, np.array([5, 40, 3, 9, 7, 8, 30, 6, 1, 10, 11])  # a tenth of 11 are two
    assert largest_decile(values, sizes) == pytest.approx((40 * 0.1 + 30 * 0.6) / 70)
    assert smallest_decile(values, sizes) == pytest.approx((3 * 0.2 + 1 * 0.8) / 4)


def test_clients_of_equal_size_share_the_last_positions() -> None:
    values, sizes = [1.0, 0.5, 0.25, 0.0], [7, 3, 3, 3]
    assert smallest_decile(values, sizes) == pytest.approx((0.5 + 0.25 + 0.0) / 3)  # one position for three
    assert largest_decile(values, [3, 3, 3, 3]) == pytest.approx(1.75 / 4)
    assert largest_decile([0.5, 0.75], [0, 0]) == pytest.approx(0.625)
    # eleven clients, two positions: the largest has one, the ten others share the other, each with 4 examples
    assert largest_decile([1.0] + [0.5] * 10, [8] + [4] * 10) == pytest.approx((8 * 1.0 + 4 * 0.5) / 12)


def test_lists_arrays_and_tensors_are_the_same() -> None:
    for kind in (list, np.array, torch.tensor):
        assert largest_decile(kind([0.5, 0.25]), kind([1, 2])) == 0.25
        assert summarize(kind([0.5, 0.25]), kind([1, 2]))["mean"] == 0.375


@pytest.mark.parametrize(
    ("values", "sizes", "sentence"),
    [
        (
            [0.5, 0.6],
            [1],
            "values and sizes must be of the same clients or examples, got the shapes \\(2,\\) and \\(1,\\)",
        ),
        ([[0.5, 0.6]], [1, 2], "values must be one per client, got the shape \\(1, 2\\)"),
        (0.5, [1], "got the shape \\(\\)"),
        (["good"], [1], "values must be numbers, one per client, got \\['good'\\]"),
        ([math.inf], [1], "values must be finite"),
        ([0.5], [-1], "sizes must be numbers of examples"),
    ],
)
def test_what_is_no_value_per_client(values: object, sizes: object, sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        largest_decile(values, sizes)


@given(st.lists(st.floats(0, 1), min_size=2, max_size=40))
def test_worst_at_most_worst_decile_at_most_mean(values: list[float]) -> None:
    found = summarize(values, np.ones(len(values)))
    assert found["worst"] is not None and found["worst_decile"] is not None and found["mean"] is not None
    assert found["worst"] <= found["worst_decile"] + 1e-12 <= found["mean"] + 2e-12
    assert found["mean"] == pytest.approx(found["weighted_mean"])
