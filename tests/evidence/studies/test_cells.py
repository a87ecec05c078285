"""Cells: found, computed again when settings change, and refused when they are damaged or foreign."""

import signal
from dataclasses import replace
from pathlib import Path

import pytest
from bespokefl_evidence.studies.cells import CellStore
from bespokefl_evidence.studies.experiment import Experiment, Row, Scenario, Tuning

from bespokefl.core.errors import InputError
from bespokefl.engines.outcome import Progress
from tests.evidence.studies import toy


@pytest.fixture(scope="module")
def computed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Experiment, CellStore]:
    one, directory = toy.experiment(), tmp_path_factory.mktemp("cells")
    store = CellStore(directory / "cells")
    toy.compute_all(one, store, directory / "scratch")
    return one, store


def test_cells_are_found_again_and_tuning_decides(computed: tuple[Experiment, CellStore]) -> None:
    one, store = computed
    again = CellStore(store.directory)
    specs = list(one.specs(again))
    assert len(specs) == 3 + 2 + 2 and all(again.get(spec) is not None for spec in specs)
    assert list(one.waiting(again)) == []
    tuning = [again.get(spec) for spec in one.tuning_specs(one.scenarios[0], one.rows[1])]
    found = [None if cell is None else cell.results.get("validation", {}).get("personal") for cell in tuning]
    assert found[0] is not None and found[1] is not None and found[2] is None  # 1e30 diverges
    assert "non-finite" in tuning[2].results["failed"] if tuning[2] is not None else False
    best = max(range(2), key=lambda at: found[at] or 0)
    assert one.choice(one.scenarios[0], one.rows[1], again) == {"lr": [0.01, 0.1][best]}
    cell = again.get(specs[0])
    assert cell is not None and len(cell.results["personal"]) == 5 and cell.results["curve"][-1][0] == 2
    assert all(0 <= value <= 1 for value in cell.results["personal"])


def test_a_cell_of_other_settings_is_missing(computed: tuple[Experiment, CellStore]) -> None:
    one, store = computed
    changed = replace(one, rows=[replace(one.rows[0], set={"lr": 0.2}), one.rows[1]])
    missing = [spec.row for spec in changed.specs(store) if store.get(spec) is None]
    assert missing == ["Local", "Local"]


def test_results_of_tuning_have_no_test_scores(computed: tuple[Experiment, CellStore]) -> None:
    one, store = computed
    for spec in one.tuning_specs(one.scenarios[0], one.rows[1])[:2]:
        cell = store.get(spec)
        assert cell is not None and set(cell.results) == {"validation"}


def test_an_interrupted_cell_is_resumed_to_the_same_result(tmp_path: Path) -> None:
    one = toy.experiment(rows=[Row("Local", "local")], rounds=5)
    spec = next(one.specs(CellStore(tmp_path)))
    whole = one.compute(spec, tmp_path / "whole", None)

    def interrupt(step: Progress) -> None:
        if step.done == 1:
            signal.raise_signal(signal.SIGINT)

    assert one.compute(spec, tmp_path / "part", None, interrupt) is None
    rounds: list[int] = []
    found = one.compute(spec, tmp_path / "part", None, lambda step: rounds.append(step.done))
    assert found is not None and whole is not None and found[0] == whole[0]
    assert rounds and 1 not in rounds  # the first round was not trained again


def test_scenarios_share_the_cells_of_tuning(tmp_path: Path) -> None:
    scenarios = [Scenario("two", "classes(k=2)", clients=5), Scenario("three", "classes(k=3)", clients=5)]
    one = toy.experiment(scenarios=scenarios, tuning=Tuning(rounds=1, scenario="three"))
    files = [spec.file for spec in one.specs(CellStore(tmp_path))]
    assert len(files) == len(set(files)) == 2 * 2 + 3
    assert sum(file.startswith("toy/three/FedAvg-tuning") for file in files) == 3


@pytest.mark.parametrize(
    ("damage", "sentence"),
    [
        (lambda text: text[: len(text) // 2], "is damaged"),
        (lambda text: "[]", "is damaged"),
        (lambda text: text.replace('"seed": 0', '"seed": "0"'), "was changed after it was computed"),
        (lambda text: text.replace('"rounds": 2', '"rounds": 3'), "was changed after it was computed"),
    ],
    ids=["cut", "list", "seed", "settings"],
)
def test_a_damaged_or_edited_cell_is_one_sentence(tmp_path: Path, damage: object, sentence: str) -> None:
    assert callable(damage)
    one, store = toy.experiment(rows=[Row("Local", "local")]), CellStore(tmp_path)
    toy.invent_all(one, store, lambda spec: toy.invented([0.5]))
    spec = next(one.specs(store))
    path = tmp_path / spec.file
    path.write_text(damage(path.read_text()))
    before = path.read_bytes()
    with pytest.raises(InputError, match=sentence) as raised:
        CellStore(tmp_path).get(spec)
    assert spec.file in str(raised.value) and "delete it" in str(raised.value)
    assert path.read_bytes() == before


def test_a_foreign_cell_is_one_sentence(tmp_path: Path) -> None:
    one, store = toy.experiment(rows=[Row("Local", "local"), Row("FedAvg", "fedavg")]), CellStore(tmp_path)
    toy.invent_all(one, store, lambda spec: toy.invented([0.5]))
    first, second = tmp_path / "toy/two/Local.0.json", tmp_path / "toy/two/FedAvg.0.json"
    first.write_bytes(second.read_bytes())
    with pytest.raises(InputError, match="holds the cell of toy, two: FedAvg, seed 0") as raised:
        [CellStore(tmp_path).get(spec) for spec in one.specs(store)]
    assert "toy/two/FedAvg.0.json" in str(raised.value)
