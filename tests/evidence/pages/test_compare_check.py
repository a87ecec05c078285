"""The page on `bespoke compare` is made from cells, and says where comparison and search differ."""

from pathlib import Path

import numpy as np
import pytest
from bespokefl_evidence.pages import compare_check
from bespokefl_evidence.studies.cells import CellStore
from bespokefl_evidence.studies.compare_check import MORE, SAME, CompareCheck, points

from bespokefl import methods
from bespokefl.workflows.compare.candidates import GRIDS

ROOT = Path(__file__).parents[3]


def test_the_page_is_that_of_the_cells() -> None:
    found = compare_check.page(CompareCheck.read(), CellStore(ROOT / "evidence" / "cells"))
    assert found == (ROOT / "docs" / compare_check.PAGE).read_text(encoding="utf-8"), "bespoke reproduce --table"


def test_the_search_chooses_by_validation_within_the_work_it_may_use(tmp_path: Path) -> None:
    study, store = CompareCheck.read(), CellStore(tmp_path)
    scenario = study.scenarios[0]
    assert study.choice(scenario, "local", SAME, store) is None  # before the search is complete
    number = len(points(study.grids["local"]))
    for at, spec in enumerate(study.search_specs(scenario, "local", MORE)):
        scores: list[list[float] | None] = [[0.5, 0.6, 0.7] for _ in range(number)]
        scores[0], scores[at + 1] = None, [0.8, 0.8, 0.8 + 0.01 * at]
        store.put(spec, {"validation": scores}, 1.0, "0")
    same, more = (study.choice(scenario, "local", work, store) for work in (SAME, MORE))
    assert same == points(study.grids["local"])[2] | {"local_epochs": scenario.epochs}
    assert more == points(study.grids["local"])[3] | {"local_epochs": study.more_epochs * scenario.epochs}


def test_a_new_method_leaves_cells_valid(monkeypatch: pytest.MonkeyPatch) -> None:
    study = CompareCheck.read()
    assert {*study.all_names} <= {*methods.REGISTRY} and len(study.all_names) > 20
    before = [study.all_spec(one).settings for one in study.all_methods]
    monkeypatch.setitem(methods.REGISTRY, "new", "bespokefl.methods.new")  # type: ignore[arg-type]
    monkeypatch.setitem(GRIDS, "new", {"lr": [0.1]})
    assert [study.all_spec(one).settings for one in study.all_methods] == before
    assert "fedala" not in before[0]["methods"] and "fedala" in before[1]["methods"]


def test_disagreement_is_said() -> None:
    noise = np.random.default_rng(0).normal(0, 0.002, (3, 5, 20))
    search = {"local": 0.9 + noise[0], "fedavg": 0.8 + noise[1], "ditto": 0.7 + noise[2]}
    assert "both have the best mean with local; the same methods" in compare_check.agreement(search, search)
    equal = {"local": 0.9 + noise[0], "fedavg": 0.9 + noise[1]}
    assert "; no method is significantly behind the best in either;" in compare_check.agreement(equal, equal)
    compared = search | {"local": 0.6 + noise[0]}
    said = compare_check.agreement(compared, search)
    assert "the best means are those of fedavg and of local" in said
    assert "disagree on whether local, fedavg can be told" in said
    assert "loses 10.0 points" in said and "-30.0 points, of local" in said
