"""The benchmark of methods counts what a method computes."""

from dataclasses import replace
from pathlib import Path

import pytest
from bespokefl_evidence.benchmarks import methods
from bespokefl_evidence.benchmarks.speed import CASES

# 12 clients with 12 examples, of which two are for validation: one step of ten.
TINY = replace(CASES["mlp"], model="mlp(hidden=(5,))", shape=(8,), sizes=(12,) * 12, batch_size=10)


@pytest.mark.parametrize(
    ("name", "phase", "work"),
    [
        ("fedavg", "train", (1, 0, 0)),
        ("ditto", "train", (2, 0, 0)),
        ("pfedme", "train", (5, 0, 0)),
        ("ifca", "train", (1, 0, 4)),  # the loss of four models
        ("fedfomo", "train", (1, 0, 6 * 0.2)),  # the validation loss of the client's, its former and four other models
        ("fedrep", "train", (1, 10, 1)),  # ten epochs of the head on features that are computed once
        ("ucfl-parallel", "survey", (2 - 0.1, 0, 0)),  # all ten examples, and three batches of three
        ("ucfl-parallel", "train", (4, 0, 0)),
    ],
)
def test_the_work_of_a_round(name: str, phase: str, work: tuple[float, float, float]) -> None:
    found = {price.phase: price for price in methods.measure(name, TINY, repeats=1)}
    assert found[phase].work == pytest.approx(work)
    assert found[phase].price > 0 and found[phase].spread[0] <= found[phase].price <= found[phase].spread[1]


def test_every_method_is_in_the_table() -> None:
    """docs/performance.md has a row with all three prices for every phase of every method."""
    rows = (Path(__file__).parents[3] / "docs" / "performance.md").read_text(encoding="utf-8").splitlines()
    listed = {cells[1].strip() for cells in (row.split("|") for row in rows) if len(cells) == 7 and "–" in cells[4]}
    for name in methods.methods.REGISTRY:
        phases = [phase.name for phase in methods.methods.build(name, {}).phases(1)]
        assert {name} | {f"{name}, {phase}" for phase in phases if phase != "train"} <= listed


def test_every_method_has_a_price() -> None:
    assert set(methods.OPTIONS) <= set(methods.methods.REGISTRY) and set(methods.TIMED) <= set(CASES)
