"""The work of a run in totals, and which methods differ from the rest."""

import pytest

from bespokefl.metrics.work import totals, unequal


def test_totals_add_up_rounds_and_the_final_models() -> None:
    rounds = [
        {"trained": 2, "gradient_steps": 6, "gradients": 50, "head_gradients": 4},
        {"trained": 1, "gradient_steps": 3, "gradients": 30, "head_gradients": 2},
    ]
    assert totals(rounds, [9, 7, 5]) == {
        "steps": 3.0,
        "gradients": 87,
        "head_gradients": 11,
        "final_gradients": 12,
    }
    assert totals([{"trained": 2}]) is None  # of an earlier version
    assert totals([]) == {"steps": 0.0, "gradients": 0, "head_gradients": 0, "final_gradients": 0}


def test_methods_that_differ_from_most() -> None:
    work = {"local": 100, "fedavg": 102, "ditto": 200, "selffl": 70}
    assert unequal(work) == {"ditto": pytest.approx(200 / 101), "selffl": pytest.approx(70 / 101)}
    assert unequal({"local": 100, "fedavg": 104}) == {}
    assert unequal({"local": 100, "ditto": 200}) == {"ditto": 2.0}  # the smaller work is the usual one
    assert unequal({"local": 100}) == {}
