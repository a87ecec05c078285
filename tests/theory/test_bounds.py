"""The bounds of User-Centric FL: special cases by hand, and what makes them larger or smaller."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bespokefl.core.errors import InputError
from bespokefl.theory.bounds import jensen_shannon, theorem1, theorem2

N = (100, 200, 700)
KNOWN = {"d": 10.0, "B": 2.0, "delta": 0.05}


def test_a_client_alone_has_the_local_bound() -> None:
    # w is one-hot: Σ w²/n = 1/200, and the discrepancy of P_i to itself is 0, whatever the others' are.
    roots = math.sqrt(2 * 10 / 1000 * math.log(math.e * 1000 / 10)) + math.sqrt(math.log(2 / 0.05))
    local = 2 * math.sqrt(1 / 200) * roots
    apart = (0.3, 0.0, 0.9)
    assert theorem1((0, 1, 0), N, **KNOWN, gamma=0.25, discrepancies=apart) == pytest.approx(local + 0.5)
    assert theorem2((0, 1, 0), N, **KNOWN, divergences=apart) == pytest.approx(local)


def test_one_distribution_and_fedavg_weights_use_all_examples() -> None:
    # w_j = n_j/n: Σ w²/n = 1/n, and nobody is apart. No other weights have a smaller bound.
    weights = np.array(N) / sum(N)
    roots = math.sqrt(2 * 10 / 1000 * (1 + math.log(100))) + math.sqrt(math.log(40))
    best = theorem2(weights, N, **KNOWN, divergences=(0, 0, 0))
    assert best == pytest.approx(2 * roots / math.sqrt(1000))
    others = np.random.default_rng(0).dirichlet(np.ones(3), size=50)
    assert (theorem2(others, N, **KNOWN, divergences=(0, 0, 0)) > best).all()


def test_distances_by_hand() -> None:
    # Beyond the part that both share: 2 (.5·.2 + .25·.4) + 2·.1 = .6, and 2 √(2 (.5·.2 + .25·.4)) = 2 √.4.
    w, apart = (0.25, 0.5, 0.25), (0.0, 0.2, 0.4)
    shared = theorem2(w, N, **KNOWN, divergences=(0, 0, 0))
    assert theorem1(w, N, **KNOWN, gamma=0.1, discrepancies=apart) - shared == pytest.approx(0.6)
    assert theorem2(w, N, **KNOWN, divergences=apart) - shared == pytest.approx(2 * math.sqrt(0.4))


def test_a_matrix_is_bounded_row_by_row() -> None:
    rng = np.random.default_rng(1)
    W, apart = rng.dirichlet(np.ones(3), size=3), rng.random((3, 3))
    found = theorem1(W, N, **KNOWN, gamma=(0.1, 0.2, 0.3), discrepancies=apart)
    for i in range(3):
        assert found[i] == theorem1(W[i], N, **KNOWN, gamma=(i + 1) / 10, discrepancies=apart[i])


@given(
    weights=st.lists(st.floats(0.01, 1), min_size=3, max_size=3),
    apart=st.lists(st.floats(0, 1), min_size=3, max_size=3),
    which=st.integers(0, 2),
)
def test_what_makes_the_bounds_larger_and_smaller(weights: list[float], apart: list[float], which: int) -> None:
    w = np.array(weights) / sum(weights)
    farther = np.array(apart) + 0.1 * (np.arange(3) == which)
    more = np.array(N) + 50 * (np.arange(3) == which)
    for bound in (
        lambda n=N, d=10.0, B=2.0, delta=0.05, apart=apart: theorem1(w, n, d, B, delta, 0.1, apart),
        lambda n=N, d=10.0, B=2.0, delta=0.05, apart=apart: theorem2(w, n, d, B, delta, apart),
    ):
        usual = bound()
        assert bound(n=more) < usual
        assert bound(d=20.0) > usual
        assert bound(B=3.0) > usual
        assert bound(delta=0.01) > usual
        assert bound(apart=farther) > usual


def test_collaboration_pays_while_the_others_are_near() -> None:
    # Theorem 1, two clients of n examples: sharing gains B (1 − √½) √(1/n) (…), and costs 2 · ½ · d_F.
    local = float(theorem1((1, 0), (500, 500), **KNOWN, gamma=0, discrepancies=(0, 0)))
    worth = local * (1 - math.sqrt(0.5))
    for apart in (0.99 * worth, 1.01 * worth):
        shared = theorem1((0.5, 0.5), (500, 500), **KNOWN, gamma=0, discrepancies=(0, apart))
        assert (shared < local) == (apart < worth)


def test_jensen_shannon() -> None:
    assert jensen_shannon((0.2, 0.8), (0.2, 0.8)) == 0
    assert jensen_shannon((1, 0), (0, 1)) == pytest.approx(math.log(2))  # nothing in common: the largest it gets
    # ½ (.5 log(.5/.75)+.5 log(.5/.25)) + ½ log(1/.75)
    by_hand = 0.5 * (0.5 * math.log(2 / 3) + 0.5 * math.log(2)) + 0.5 * math.log(4 / 3)
    assert jensen_shannon((0.5, 0.5), (1, 0)) == pytest.approx(by_hand)
    rng = np.random.default_rng(0)
    p, q = rng.dirichlet(np.ones(4), size=(2, 20))
    assert (jensen_shannon(p, q) == jensen_shannon(q, p)).all()
    assert ((jensen_shannon(p, q) > 0) & (jensen_shannon(p, q) < math.log(2))).all()


@pytest.mark.parametrize("wrong", [{"d": 0.0}, {"d": 1001.0}, {"delta": 0.0}, {"delta": 1.0}])
def test_where_the_theorems_say_nothing(wrong: dict[str, float]) -> None:
    with pytest.raises(InputError, match="VC dimension"):
        theorem2((0, 1, 0), N, **(KNOWN | wrong), divergences=(0, 0, 0))
