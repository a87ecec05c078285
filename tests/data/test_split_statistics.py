"""The figures that say how different clients are, by hand."""

import math
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bespokefl.data import Clients
from bespokefl.data.split_statistics import class_counts, effective_classes, gini, label_distance, measure


def clients_of(labels: list[list[int]]) -> Clients:
    """One client for each list, all of it for training."""
    return Clients.from_sets([(np.zeros((len(one), 1)), np.array(one)) for one in labels])


def test_three_clients_by_hand() -> None:
    clients = clients_of([[0, 0, 0, 0], [1, 1], [0, 1]])
    assert class_counts(clients).tolist() == [[4, 0], [0, 2], [1, 1]]
    found = measure(clients)
    assert found.label_distance == pytest.approx((1 + 0.5 + 0.5) / 3)
    assert found.effective_classes == pytest.approx((1 + 1 + 2) / 3)
    assert found.size_gini == pytest.approx((2 + 2 + 0) / 3 / (2 * 8 / 3) * (2 / 3))
    assert (found.smallest, found.median, found.largest, found.untested) == (2, 2, 4, 3)


@given(st.lists(st.lists(st.floats(0.01, 1), min_size=4, max_size=4), min_size=2, max_size=9))
def test_mean_over_all_pairs(rows: list[list[float]]) -> None:
    shares = np.array(rows) / np.sum(rows, axis=1, keepdims=True)
    pairs = [abs(one - other).sum() / 2 for one, other in combinations(shares, 2)]
    assert label_distance(shares) == pytest.approx(np.mean(pairs), abs=1e-12)


@given(st.lists(st.integers(1, 1000), min_size=1, max_size=12))
def test_gini(sizes: list[int]) -> None:
    differences = [abs(one - other) for one in sizes for other in sizes]
    assert gini(np.array(sizes)) == pytest.approx(np.mean(differences) / (2 * np.mean(sizes)), abs=1e-12)


def test_limits() -> None:
    assert gini(np.array([7, 7, 7])) == 0
    assert gini(np.array([1] * 99 + [10**9])) == pytest.approx(0.99, abs=1e-6)
    assert effective_classes(np.full((3, 10), 0.1)) == pytest.approx(10)
    assert effective_classes(np.eye(3)) == pytest.approx(1)
    assert label_distance(np.eye(3)) == pytest.approx(1)
    assert label_distance(np.full((5, 4), 0.25)) == 0
    half = effective_classes(np.array([[0.5, 0.25, 0.25]]))
    assert half == pytest.approx(math.exp(0.5 * math.log(2) + 0.5 * math.log(4)))


def test_regression_and_a_single_client() -> None:
    numbers = measure(Clients.from_sets([(np.zeros((3, 1)), np.zeros(3)), (np.zeros((1, 1)), np.zeros(1))]))
    assert (numbers.label_distance, numbers.effective_classes) == (None, None)
    assert numbers.size_gini == pytest.approx(0.25)
    alone = measure(clients_of([[0, 1]]))
    assert alone.label_distance is None
    assert alone.effective_classes == pytest.approx(2)


def test_labels_are_those_the_clients_see() -> None:
    """Exchanged labels move counts between the columns."""
    from bespokefl.data import load

    clients = load("digits").split("classes(k=2) + permuted_labels(groups=2)", clients=4)
    plain = load("digits").split("classes(k=2)", clients=4)
    assert clients.transforms is not None
    for client, transform in enumerate(clients.transforms):
        assert transform.labels is not None
        assert class_counts(clients)[client][list(transform.labels)].tolist() == class_counts(plain)[client].tolist()
