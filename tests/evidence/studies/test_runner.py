"""The runner: in order of importance, in processes, within a budget, and nothing is lost."""

import io
from dataclasses import replace
from pathlib import Path

import pytest
from bespokefl_evidence.studies import runner
from bespokefl_evidence.studies.cells import CellStore, Spec
from bespokefl_evidence.studies.experiment import MORE_SEEDS, Scenario
from rich.console import Console

from bespokefl.core.errors import InputError
from tests.evidence.studies import toy


def quiet() -> Console:
    return Console(file=io.StringIO())


def test_cells_are_ordered_by_priority_and_tuning_comes_first(tmp_path: Path) -> None:
    one, store = toy.experiment(), CellStore(tmp_path)
    order = [(spec.row, spec.seed) for spec in runner.in_order([one], store)]
    assert order[:2] == [("Local", 0), ("Local", 1)] and len(order) == 5
    toy.invent_all(one, store, lambda spec: {"validation": {"personal": 0.5}})
    order = [(spec.row, spec.seed) for spec in runner.in_order([one], store)]
    assert order[2] == ("FedAvg tuning lr=0.01", 100) and order[5:] == [("FedAvg", 0), ("FedAvg", 1)]
    assert [spec.priority for spec in runner.in_order([one], store)] == [1, 1, 2, 2, 2, 2, MORE_SEEDS]


def test_a_process_computes_the_same_and_missing_data_are_one_sentence_after_that(tmp_path: Path) -> None:
    """A budget of nothing computes nothing. Then all cells of priority 1 are computed that have data."""
    missing = Scenario("none", "iid", clients=2, data="femnist_by_writer")
    one = toy.experiment(seeds=1, how_to_get="record some")
    one = replace(one, scenarios=[missing, *one.scenarios])
    store, scratch = CellStore(tmp_path / "cells"), tmp_path / "scratch"
    assert not runner.compute_missing([one], store, scratch=scratch, budget=0.0, processes=1, console=quiet())
    assert list(store.of("toy")) == []
    with pytest.raises(
        InputError, match=r"^1 cell cannot be computed: femnist_by_writer.npz is not in .*: record some"
    ):
        runner.compute_missing([one], store, scratch=scratch, priority=1, processes=1, console=quiet())
    found = {cell.scenario: cell for cell in CellStore(store.directory).of("toy")}
    assert list(found) == ["two"] and found["two"].row == "Local"
    expected = one.compute(Spec("toy", "two", "Local", 0, found["two"].settings), tmp_path / "alone", None)
    assert expected is not None and found["two"].results == expected[0]
    assert not any(scratch.rglob("*.safetensors"))  # the checkpoint of a finished cell is removed


def test_the_status_counts_cells_whose_settings_are_not_known_yet(tmp_path: Path) -> None:
    one, store = toy.experiment(), CellStore(tmp_path)
    assert [(each.priority, each.done, each.total, each.left) for each in runner.status([one], store)] == [
        (1, 0, 2, None),
        (2, 0, 4, None),
        (4, 0, 1, None),
    ]
    specs = list(one.specs(store))
    local = next(spec for spec in specs if spec.row == "Local")
    store.put(local, {}, 10.0, "0")  # 5 seconds a round
    tuning = next(spec for spec in specs if spec.row == "FedAvg tuning lr=0.1")
    store.put(tuning, {"validation": {"personal": 0.5}}, 3.0, "0")  # one round
    found = {each.priority: each for each in runner.status([one], store)}
    assert (found[1].done, found[1].spent, found[1].left) == (1, 10.0, 10.0)
    assert (found[2].done, found[2].spent, found[2].left) == (1, 3.0, 3.0 + 3.0 + 2 * 3.0)
    assert found[4].left == 2 * 3.0


def test_an_estimate_of_an_unknown_row_is_the_mean_of_the_others() -> None:
    def spec(row: str, rounds: int) -> Spec:
        return Spec("toy", "two", row, 0, {"run": {"rounds": rounds}})

    estimate = runner.Estimate([(spec("a", 10), 20.0), (spec("b", 10), 40.0)])
    assert estimate.seconds(spec("a", 5)) == pytest.approx(10.0)
    assert estimate.seconds(spec("c", 5)) == pytest.approx(15.0)
    assert runner.Estimate([]).seconds(spec("c", 5)) is None


@pytest.mark.parametrize(
    ("text", "expected"), [("90m", 5400), ("2h", 7200), ("45s", 45), ("1h30m", 5400), ("0.5h", 1800)]
)
def test_durations(text: str, expected: float) -> None:
    assert runner.seconds(text) == expected


@pytest.mark.parametrize("text", ["", "90", "m", "1h 30m x", "-5m"])
def test_a_wrong_duration_is_one_sentence(text: str) -> None:
    with pytest.raises(InputError, match="a budget must be a time such as 90m"):
        runner.seconds(text)
