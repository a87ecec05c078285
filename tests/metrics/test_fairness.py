"""Test the fairness measures by hand, and their properties."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bespokefl.core.errors import InputError
from bespokefl.metrics.fairness import (
    LOWER_IS_FAIRER,
    average_variance,
    cosine_similarity,
    entropy,
    jain,
    measures,
    of_gains,
)

NAN = float("nan")
VECTORS = st.lists(st.floats(1e-3, 1e3), min_size=1, max_size=30)


def test_three_clients_by_hand() -> None:
    values = [1.0, 2.0, 3.0]
    assert average_variance(values) == pytest.approx(((1 - 2) ** 2 + 0 + (3 - 2) ** 2) / 3)
    assert cosine_similarity(values) == pytest.approx(2 / math.sqrt((1 + 4 + 9) / 3))
    shares = (1 / 6, 2 / 6, 3 / 6)
    assert entropy(values) == pytest.approx(-sum(p * math.log(p) for p in shares))
    assert jain(values) == pytest.approx(6**2 / (3 * 14))


@given(VECTORS)
def test_all_alike_is_fairest(values: list[float]) -> None:
    found = measures([values[0]] * len(values))
    assert found["average_variance"] == pytest.approx(0, abs=1e-9)
    assert (found["cosine_similarity"], found["jain"]) == (pytest.approx(1), pytest.approx(1))
    assert found["entropy"] == pytest.approx(math.log(len(values)))
    for name, value in measures(values).items():
        assert value is not None and found[name] is not None
        sign = -1 if name in LOWER_IS_FAIRER else 1
        assert sign * value <= sign * found[name] + 1e-9


@given(VECTORS, st.floats(1e-3, 1e3))
def test_scale_matters_to_the_variance_only(values: list[float], scale: float) -> None:
    found, scaled = measures(values), measures([scale * one for one in values])
    assert scaled["average_variance"] == pytest.approx(scale**2 * found["average_variance"], rel=1e-6, abs=1e-9)
    for name in ("cosine_similarity", "entropy", "jain"):
        assert scaled[name] == pytest.approx(found[name], abs=1e-9)
    assert found["jain"] == pytest.approx(found["cosine_similarity"] ** 2)


def test_one_gets_everything() -> None:
    found = measures([0.0, 5.0, 0.0, 0.0])
    assert found["jain"] == 1 / 4 and found["entropy"] == 0.0 and found["cosine_similarity"] == 1 / 2


def test_tiny_and_huge_values_do_not_vanish() -> None:
    assert jain([1e-200, 1e-200]) == jain([1e200, 1e200]) == 1.0


def test_undefined_measures_are_none() -> None:
    assert set(measures([]).values()) == set(measures([NAN]).values()) == {None}
    found = measures([0.0, 0.0])
    assert found.pop("average_variance") == 0.0 and set(found.values()) == {None}


def test_gains_of_both_signs_are_measured_apart() -> None:
    found = of_gains([0.5, -0.25, 0.0, 0.25, -0.75, NAN])
    assert found == {"improved": measures([0.5, 0.25]), "decreased": measures([0.25, 0.75])}
    assert set(of_gains([0.5, 0.25])["decreased"].values()) == {None}
    with pytest.raises(InputError, match=r"fairness is of values >= 0, got -0\.25; of gains, use fairness\.of_gains"):
        jain([0.5, -0.25])
