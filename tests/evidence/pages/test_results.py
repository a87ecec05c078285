"""Pages and figures: made from cells alone, complete about what is missing, and equal to those in docs/."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from bespokefl_evidence import studies
from bespokefl_evidence.pages import claim_tests, claims, figures, method_results, own_studies
from bespokefl_evidence.pages import results as pages
from bespokefl_evidence.studies import experiment
from bespokefl_evidence.studies.cells import CellStore, Spec
from bespokefl_evidence.studies.experiment import Experiment, Row, Scenario
from bespokefl_evidence.studies.selffl_synthetic import SyntheticStudy

from bespokefl.core.errors import InputError
from bespokefl.methods import REGISTRY
from tests.evidence.studies import toy

ROOT = Path(__file__).parents[3]
M = 12  # clients


def invented_results(spec: Spec) -> dict[str, Any]:
    """Local .9 in seed 0 and .8 in seed 1, FedAvg best at the edge of its grid, and Diverging does."""
    if spec.settings.get("tuning"):
        score = {0.01: 0.5, 0.1: 0.6}.get(spec.settings["set"]["lr"])
        return {"failed": "non-finite"} if score is None else {"validation": {"personal": score}}
    if spec.row == "Diverging":
        return {"failed": "non-finite"}
    return toy.invented([0.9 - 0.1 * spec.seed - (0.6 if spec.row == "FedAvg" else 0)] * 4 + [0.1])


def toy_with_three_rows(**changes: Any) -> Experiment:
    one = toy.experiment(differs=["The digits are small."], also=["worst"], **changes)
    rows = [*one.rows, Row("Diverging", "local", published_worst={"two": 12.0})]
    return toy.experiment(differs=one.differs, also=one.also, rows=rows, **changes)


def test_a_section_has_published_ours_and_difference(tmp_path: Path) -> None:
    one, store = toy_with_three_rows(), CellStore(tmp_path)
    toy.invent_all(one, store, invented_results)
    lines = pages.section(one, store, figures=[]).splitlines()
    ours = (0.74 + 0.66) / 2  # (4 × .9 + .1) / 5 and (4 × .8 + .1) / 5
    assert f"| Local | 90.0 | {100 * ours:.1f} ± 4.0 | {100 * ours - 90:+.1f} | – | 10.0 ± 0.0 | – | 2 of 2 |" in lines
    assert "| Diverging | – | diverged | – | 12.0 | diverged | – | 2 of 2 |" in lines
    assert "9 of 9 cells, all are computed; 9 min of computing time." in lines
    grid = "lr 0.01: 50.0; lr 0.1: 60.0; lr 1e+30: diverged"
    assert f"| FedAvg | two | lr 0.1 | {grid} |" in lines
    assert "- The digits are small." in lines and "## toy" in lines


def test_what_is_missing_is_said(tmp_path: Path) -> None:
    one, store = toy_with_three_rows(), CellStore(tmp_path)
    for spec in list(one.specs(store)):
        if spec.row in ("Local", "FedAvg tuning lr=0.01") and spec.seed != 1:
            store.put(spec, invented_results(spec), 10.0, "0")
    text = pages.section(one, store, figures=[])
    assert "2 of 9 cells, 7 are missing; 20 s of computing time." in text
    assert "| Local | 90.0 | 74.0 | -16.0 | – | 10.0 | – | 1 of 2 |" in text
    assert "| FedAvg | 80.0 | – | – | – | – | – | 0 of 2 |" in text
    assert "| FedAvg | two | – | lr 0.01: 50.0; lr 0.1: –; lr 1e+30: – |" in text


def test_a_choice_at_the_edge_of_the_grid_is_said(tmp_path: Path) -> None:
    one, store = toy.experiment(rows=[Row("FedAvg", "fedavg", grid={"lr": [0.01, 0.1]})]), CellStore(tmp_path)
    toy.invent_all(one, store, invented_results)
    assert "| FedAvg | two | lr 0.1 (edge of the grid: lr) |" in pages.section(one, store, figures=[])


def test_weighted_and_global_results_have_columns(tmp_path: Path) -> None:
    row = Row("A", "fedavg", published={"two": 50.0}, published_global={"two": 40.0})
    one, store = toy.experiment(rows=[row], weighted=True, seeds=1), CellStore(tmp_path)
    toy.invent_all(one, store, lambda spec: toy.invented([0.2, 0.8], whole_test=0.45, **{"global": [0.1, 0.3]}))
    weighted = (10 * 0.2 + 11 * 0.8) / 21
    expected = f"| A | 50.0 | {100 * weighted:.1f} | {100 * weighted - 50:+.1f} | 50.0 | 40.0 | 45.0 | +5.0 | 1 of 1 |"
    assert expected in pages.section(one, store, figures=[])


def test_the_interpretation_is_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(experiment, "PAPERS", tmp_path)
    (tmp_path / "toy.toml").write_text(toy.TOML)
    (tmp_path / "toy.md").write_text("Local wins, as it should.\n")
    one = Experiment.read("toy")
    assert "Local wins, as it should." in pages.section(one, CellStore(tmp_path / "cells"), figures=[])
    with pytest.raises(InputError, match="unknown experiment 'toi'; did you mean 'toy'"):
        Experiment.read("toi")


# -- figures


def rich_results(spec: Spec) -> dict[str, Any]:
    """Results with all that the figures of the four papers need."""
    rng = np.random.default_rng(spec.seed + len(spec.row))
    groups = ["x", "y"] * (M // 2)
    weights = np.array([[1.0 + 9.0 * (one == other) for other in groups] for one in groups])
    clients = {
        "grid_accuracy": rng.random((M, 15)).tolist(),
        "confidence": (1 + rng.random(M)).tolist(),
        "deviation": (1 + rng.random(M)).tolist(),
    }
    server: dict[str, Any] = {
        "silhouette": [0.0, 0.4, 0.3, None, *[0.2] * (M - 5), 0.0],
        "streams": 4 if "k=4" in spec.row else M,
    }
    server["collaboration"] = (weights / weights.sum(1, keepdims=True)).tolist()
    notes = {"clients": clients, "server": server}
    return toy.invented(rng.random(M), notes=notes, groups=groups)


def of_paper(name: str) -> Experiment:
    rows = {
        "selffl": [Row("Self-FL", "selffl")],
        "persfl": [Row("PersFL", "persfl"), Row("FedAvg", "fedavg"), Row("Local", "local")],
        "ucfl": [Row("UCFL k=m", "ucfl"), Row("UCFL k=4", "ucfl"), Row("FedAvg", "fedavg")],
        "pfedvem": [Row("pFedVEM", "pfedvem"), Row("Local", "local")],
    }[name]
    scenarios = [Scenario(f"C={rate}", "iid", clients=M) for rate in (".1", ".5")]
    return toy.experiment(name=f"{name}-toy", rows=rows, scenarios=scenarios)


FIGURES = {
    "selffl": ["rounds", "participation"],
    "persfl": ["rounds", "grid", "improvement", "fairness"],
    "ucfl": ["rounds", "collaboration", "silhouette", "time"],
    "pfedvem": ["rounds", "size", "confidence"],
}


@pytest.mark.parametrize("name", FIGURES)
def test_figures_of_a_paper_are_drawn_the_same_again(name: str, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    one, store = of_paper(name), CellStore(tmp_path)
    assert list(figures.drawings(one, store)) == []
    toy.invent_all(one, store, rich_results)
    found = list(figures.drawings(one, store))
    assert [drawing.file for drawing in found] == [f"{name}-toy-{kind}.svg" for kind in FIGURES[name]]
    texts = [drawing.svg() for drawing in found]
    assert all(text.startswith("<?xml") and text.endswith("</svg>\n") and "<dc:date>" not in text for text in texts)
    assert next(figures.drawings(one, CellStore(tmp_path))).svg() == texts[0]
    assert all(row.label in texts[0] for row in one.rows)


def test_missing_matplotlib_is_one_sentence_and_nothing_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, store = of_paper("selffl"), CellStore(tmp_path / "cells")
    toy.invent_all(one, store, rich_results)
    monkeypatch.setattr("bespokefl_evidence.pages.drawing.find_spec", lambda name: None)
    with pytest.raises(InputError, match=r'figures need matplotlib, .*; pip install "bespokefl\[figures\]"'):
        pages.write([one], store, tmp_path / "docs")
    assert not (tmp_path / "docs").exists()


def test_all_pages_are_written(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    one, store = of_paper("ucfl"), CellStore(tmp_path / "cells")
    toy.invent_all(one, store, rich_results)
    written = pages.write([one], store, tmp_path / "docs")
    drawn = {f"ucfl-toy-{kind}.svg" for kind in FIGURES["ucfl"]}
    assert {path.name for path in written} == {"results.md", "claims.md"} | drawn
    text = (tmp_path / "docs/results.md").read_text()
    assert "![Silhouette of W against the number of streams](figures/ucfl-toy-silhouette.svg)" in text
    assert "| [ucfl-toy](#ucfl-toy) | 12 of 12 | 12 min |" in text
    other = tmp_path / "docs/figures/photo.svg"
    other.write_text("not ours")
    pages.write([one], CellStore(tmp_path / "empty"), tmp_path / "docs")
    assert list((tmp_path / "docs/figures").iterdir()) == [other]  # figures without cells are gone
    empty = (tmp_path / "docs/results.md").read_text()
    assert "## Not computed yet" in empty and "| ucfl-toy |" in empty and "## ucfl-toy" not in empty


def test_false_accepts_have_a_table(tmp_path: Path) -> None:
    row = Row("A", "fedavg", published_false_accepts={"global": [0.92, 1.01]})
    one, store = toy.experiment(rows=[row], seeds=2, detection=True), CellStore(tmp_path)
    accepts = {"global": [0.5, None, 2.0], "personal": [0.5, 1.0, 1.0]}
    toy.invent_all(one, store, lambda spec: toy.invented([0.5] * 3, false_accepts=accepts))
    assert "| A | 0.92 1.01 | 0.50 – 2.00 | – | 0.50 1.00 1.00 |" in pages.section(one, store, figures=[])


# -- our own studies


def test_the_page_of_the_synthetic_study(tmp_path: Path) -> None:
    study, store = SyntheticStudy(repeats=2), CellStore(tmp_path)
    empty = own_studies.synthetic_page(study, store)
    assert "| FedAvg | – | – | – | – | – |" in empty and own_studies.INCOMPLETE in empty and "{{" not in empty
    for title in ("With few active clients", "With all clients active", "In the heterogeneous case"):
        assert f"- *{title}*: not computed yet.\n" in empty
    assert "Self-FL wins" not in empty and "worse than Local" not in empty
    toy.invent_all(study, store, lambda spec: {"personal": [0.03, 0.05], "global": [0.01, 0.01]})
    page = own_studies.synthetic_page(study, store)
    assert "| FedAvg | 40.0 (10.0) | 40.0 (10.0) | 40.0 (10.0) | 40.0 (10.0) | 40.0 (10.0) |" in page
    assert "| λ of Ditto, from 1, 10, 100, 1000 | 1 | 1 |" in page
    assert "not computed yet" not in page and "Self-FL wins" in page and "{{" not in page
    assert own_studies.INCOMPLETE not in page and "changes with C by less than a quarter (1.000) | yes |" in page


def test_the_page_of_where_it_pays(tmp_path: Path) -> None:
    found = [study for study in studies.find([]) if isinstance(study, studies.PersonalizationStudy)]
    store = CellStore(tmp_path)
    empty = own_studies.where_page(found, store)
    assert "| *few* | – | – | – | – | – | – |" in empty and own_studies.INCOMPLETE in empty and "{{" not in empty
    for spec in list(found[0].specs(store)):
        if spec.row != "local/lr=0.01, epochs=3" or spec.scenario != "few":
            test = 0.9 if spec.settings["method"] == "fedavg" else 0.8
            store.put(spec, {"validation": [test] * 5, "test": [test] * 5}, 1.0, "0")
    page = own_studies.where_page(found, store)
    assert "| *classes* | 80.0 (0.0) | 90.0 (0.0) | 80.0 (0.0) |" in page
    assert "| *few* | – | 90.0 (0.0) | 80.0 (0.0) |" in page  # a grid that is not complete chooses nothing


# -- what is in docs/


@pytest.fixture(scope="module")
def committed() -> tuple[list[Experiment], CellStore]:
    found = [one for one in studies.find([]) if isinstance(one, Experiment)]
    return found, CellStore(ROOT / "evidence/cells")


ADVICE = 'docs/ is not what the cells say; run "bespoke reproduce --table"'


def test_the_results_page_is_that_of_the_cells(committed: tuple[list[Experiment], CellStore]) -> None:
    assert (ROOT / "docs/results.md").read_text() == pages.results_page(*committed), ADVICE


def test_the_claims_page_is_that_of_the_cells(committed: tuple[list[Experiment], CellStore]) -> None:
    experiments, store = committed
    found = claims.page(claims.read(), [*experiments, SyntheticStudy()], store, ROOT / "docs")
    assert (ROOT / "docs/claims.md").read_text() == found, ADVICE


def test_the_pages_of_our_own_studies_are_those_of_the_cells(committed: tuple[list[Experiment], CellStore]) -> None:
    found = own_studies.pages(studies.find([]), committed[1])
    own = {"results-selffl-synthetic.md", "where-it-pays.md", "compare-check.md", "diagnose-calibration.md"}
    assert {path.name for path in found} == own
    for path, text in found.items():
        assert (ROOT / "docs" / path).read_text() == text, ADVICE


def test_the_results_of_methods_are_those_of_the_cells(committed: tuple[list[Experiment], CellStore]) -> None:
    found = method_results.pages(studies.find([]), committed[1], ROOT / "docs")
    assert {name for path in found for name in method_results.MORE.get(path.stem, (path.stem,))} == {*REGISTRY}
    for path, text in found.items():
        assert (ROOT / "docs" / path).read_text() == text, ADVICE
    table = found[Path("methods/ditto.md")]
    (line,) = (line for line in table.splitlines() if "three of the ten classes" in line)
    cell = committed[1].directory / "compare-check/all-methods-digits/all.0.json"
    scores = json.loads(cell.read_text())["results"]["methods"]["ditto"]["scores"]
    assert f"| {100 * np.nanmean(np.array(scores, dtype=float), 1).mean():.1f} ±" in line


def test_a_page_without_cells_says_so(tmp_path: Path) -> None:
    page = tmp_path / "methods" / "ditto.md"
    page.parent.mkdir()
    page.write_text(f"# Ditto\n\n{method_results.BEGIN}\nold\n{method_results.END}\n\nBy hand.\n")
    (page.parent / "README.md").write_text("no place for results")
    found = method_results.pages(studies.find([]), CellStore(tmp_path / "empty"), tmp_path)
    (text,) = found.values()
    assert "old" not in text and "No cell of this method is stored yet." in text and text.endswith("By hand.\n")


def test_the_figures_are_those_of_the_cells(committed: tuple[list[Experiment], CellStore]) -> None:
    found = {drawing.file for one in committed[0] for drawing in figures.drawings(one, committed[1])}
    measured = {"growth.svg"}  # by bespoke bench --growth
    assert {path.name for path in (ROOT / "docs/figures").glob("*.svg")} == found | measured, ADVICE


@pytest.mark.slow
def test_the_figures_show_what_the_cells_say(committed: tuple[list[Experiment], CellStore]) -> None:
    pytest.importorskip("matplotlib")
    for one in committed[0]:
        for drawing in figures.drawings(one, committed[1]):
            assert (ROOT / "docs/figures" / drawing.file).read_text() == drawing.svg(), f"{drawing.file}: {ADVICE}"


def test_stored_cells_are_small() -> None:
    """All cells together stay below 20 MB."""
    assert sum(path.stat().st_size for path in (ROOT / "evidence/cells").rglob("*.json")) < 20e6


# -- from training to figures


REAL = {
    "ucfl": [Row("UCFL k=m", "ucfl"), Row("UCFL k=4", "ucfl", set={"streams": 4}), Row("FedAvg", "fedavg")],
    "persfl": [
        Row("PersFL", "persfl", set={"imitations": [0.0, 0.5], "temperatures": [1.0, 5.0], "distil_epochs": 1}),
        Row("FedAvg", "fedavg"),
    ],
    "pfedvem": [Row("pFedVEM", "pfedvem"), Row("Local", "local")],
}


@pytest.mark.parametrize("name", REAL)
def test_trained_cells_have_what_figures_and_claims_need(name: str, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    scenario = Scenario("rotated", "iid + rotation(groups=4)", clients=8)
    one = toy.experiment(name=f"{name}-toy", rows=REAL[name], scenarios=[scenario], model="mlp", seeds=1)
    store = CellStore(tmp_path / "cells")
    toy.compute_all(one, store, tmp_path / "scratch")
    found = list(figures.drawings(one, store))
    assert [drawing.file for drawing in found] == [f"{name}-toy-{kind}.svg" for kind in FIGURES[name]]
    assert all("</svg>" in drawing.svg() for drawing in found)
    evidence = claim_tests.Evidence([one], store)
    values: dict[str, list[dict[str, Any]]] = {
        "ucfl": [
            {"a": "UCFL k=m", "kind": "silhouette", "peak": 4},
            {"a": "UCFL k=m", "b": "UCFL k=4", "metric": "own_group"},
            {"a": "UCFL k=4", "b": "UCFL k=m", "kind": "time", "system": "wired", "streams": (4, 8)},
            {"a": "UCFL k=4", "b": "FedAvg", "metric": "uploaded_bytes"},
        ],
        "persfl": [
            {"a": "PersFL", "b": "FedAvg", "kind": "everyone"},
            {"a": "PersFL", "b": "FedAvg", "kind": "fairest"},
            {"a": "PersFL", "b": "FedAvg", "metric": "worst_decile"},
        ],
        "pfedvem": [
            {"a": "pFedVEM", "kind": "correlation", "metric": "deviation"},
            {"a": "pFedVEM", "kind": "correlation", "metric": "size"},
        ],
    }
    for asked in values[name]:
        judged = claim_tests.judge(claim_tests.Comparison(one.name, "rotated", **asked), evidence)
        assert judged.verdict != claim_tests.UNTESTED and judged.effect, asked
