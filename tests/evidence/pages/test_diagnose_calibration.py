"""The page of the calibration: equal to that in docs/, and right about invented cells."""

from pathlib import Path
from typing import Any

from bespokefl_evidence.pages.diagnose_calibration import FILE, cases, page
from bespokefl_evidence.studies.cells import CellStore
from bespokefl_evidence.studies.diagnose_calibration import CalibrationStudy, Federation

from bespokefl.workflows.diagnose import trials

ROOT = Path(__file__).parents[3]


def invented(gain: float, realised: list[float], advised: str = "fedavg") -> dict[str, Any]:
    return {
        "verdict": "one common model",
        "advised": advised,
        "rival": "fedavg",
        "gain": gain,
        "low": gain - 0.02,
        "high": gain + 0.02,
        "variance_ratio": 11.2,
        "clients": {
            "predicted": [0.005, 0.02, 0.03],
            "variance_ratio": [1.0, 1.0, 1.0],
        },
        "outcomes": {
            "local": {"rate": 0.1, "validation": 0.5, "test": [0.5, 0.5, 0.5]},
            "fedavg": {"rate": 0.1, "validation": 0.5, "test": [0.5 + one for one in realised]},
        },
    }


def test_the_page_in_docs_is_that_of_the_cells() -> None:
    text = page(CalibrationStudy.read(), CellStore(ROOT / "evidence" / "cells"))
    assert (ROOT / "docs" / FILE).read_text(encoding="utf-8") == text


def test_the_coverage_that_is_told_is_that_of_the_cells() -> None:
    found = cases(CalibrationStudy.read(), CellStore(ROOT / "evidence" / "cells"))
    assert (sum(one.covered for one in found), len(found)) == (trials.COVERED, trials.CALIBRATED)
    text = " ".join((ROOT / "docs" / "diagnose.md").read_text(encoding="utf-8").split())
    assert f"it had the gain on test data in {trials.COVERED} of {trials.CALIBRATED} cases" in text


def test_predicted_and_realised(tmp_path: Path) -> None:
    study = CalibrationStudy(30, 2, [Federation("toy", "invented", "digits", "iid")])
    store = CellStore(tmp_path)
    good, bad = study.specs(store)
    store.put(good, invented(0.05, [0.03, 0.05, 0.07]), 1.0, "0")
    store.put(bad, invented(0.05, [-0.1, 0.0, -0.2]), 1.0, "0")
    first, second = cases(study, store)
    assert (first.covered, second.covered) == (True, False)
    assert (first.best, second.best) == ("fedavg", "local")
    assert (first.regret, round(second.regret, 3)) == (0.0, 0.1)
    assert (round(first.correlation("predicted") or 0, 3), second.correlation("variance_ratio")) == (1.0, None)
    text = page(study, store)
    assert "within one point of the best of those tried in 1 of 2 cases; the largest loss is 10.0 points" in text
    assert "fell below Local on test data in 1 of 2 cases: *toy* (seed 1)." in text
    assert "| *toy*: invented | 0 | fedavg − local | +5.0 | +3.0 to +7.0 | +5.0 | 11.2 × |" in text
    assert "| +1 to +10 | 4 | −2.0 | 50 % | 25 % | 25 % |" in text


def test_missing_cells_are_said(tmp_path: Path) -> None:
    assert "0 of 2 cells are computed." in page(
        CalibrationStudy(30, 2, [Federation("toy", "invented", "digits", "iid")]), CellStore(tmp_path)
    )
