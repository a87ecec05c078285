"""Test pages of comparisons, runs and interrupted runs, and the errors for everything else."""

import json
import re
import shutil
from html import unescape
from pathlib import Path

import numpy as np
import pytest

from bespokefl import report
from bespokefl.cli import main
from bespokefl.core.errors import InputError
from bespokefl.report.curves import curve
from bespokefl.report.document import read_document
from bespokefl.report.figures import Figure, Section
from tests.report.chromium import chromium
from tests.report.comparisons import document, save
from tests.report.test_page import figures, scroll_through


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Train a method that has a global model and figures of its own."""
    path = tmp_path_factory.mktemp("runs") / "persfl"
    options = ["--clients", "6", "--rounds", "2", "--eval-every", "1", "--set", "distil_epochs=1", "--workers", "1"]
    with pytest.raises(SystemExit) as ended:
        main(["run", "persfl", *options, "--quiet", "--out", str(path)])
    assert ended.value.code in (0, None)
    return path


def words(path: Path) -> str:
    """Return the text of a page without scripts and styles."""
    text = re.sub(r"<(script|style).*?</\1>", " ", path.read_text(encoding="utf-8"), flags=re.DOTALL)
    return unescape(re.sub(r"<[^>]+>", " ", text))


def test_page_of_a_run(run: Path) -> None:
    path = report.write(run, citations={"persfl": "@phdthesis{persfl}"})
    assert path == run / "report.html"
    text = words(path)
    mean = json.loads((run / "result.json").read_text(encoding="utf-8"))["personal"]["accuracy"]["mean"]
    assert f"{100 * mean:.1f}" in text
    assert "One seed" in text
    assert "Against global model" in text
    assert "Left out: this is a single run; bespoke compare trains Local and FedAvg as well." in text
    assert "@phdthesis{persfl}" in text
    assert "Inside persfl" in text


@pytest.mark.slow
def test_figures_of_a_run_are_drawn(run: Path, tmp_path: Path) -> None:
    with chromium() as browser:
        browser.size(400)
        browser.open(report.write(run, tmp_path / "page.html"))
        scroll_through(browser)
        drawn = figures(browser)
        assert {"curves", "against-0", "size", "histogram", "m0-grid", "m0-teachers"} <= set(drawn)
        assert all(drawn.values())
        assert browser.complaints() == []
        assert browser.value("document.scrollingElement.scrollWidth <= innerWidth")


def test_a_killed_run_shows_its_newest_checkpoint(run: Path, tmp_path: Path) -> None:
    killed = tmp_path / "killed"
    newest = killed / "checkpoints" / "round-00000002"
    newest.mkdir(parents=True)
    for name in ("config.toml", "split.json"):
        shutil.copy(run / name, killed / name)
    rounds, notes = (
        [json.loads(line) for line in (run / name).read_text(encoding="utf-8").splitlines()]
        for name in ("rounds.jsonl", "client_rounds.jsonl")
    )
    record = {
        "history": rounds[:2],
        "client_notes": [note for note in notes if note["round"] <= 2],
        "communication": {"up_bytes": 1, "down_bytes": 2},
        "seconds": [0.1, 0.2],
    }
    (newest / "record.json").write_text(json.dumps({"content": {"record": record}}), encoding="utf-8")
    text = words(report.write(killed))
    assert "Unfinished: the run stopped after 2 of 2 rounds." in re.sub(r"\s+", " ", text).replace(" :", ":")
    assert f"{100 * rounds[1]['personal']['test_accuracy']:.1f}" in text
    assert "Left out: the clients have not been tested one by one." in text


def test_curve_is_the_mean_over_seeds_with_its_error() -> None:
    made = document(seeds=2, rounds=4)
    method = made["methods"][2]
    found = curve(method, "accuracy", True, ["wired"])
    assert found is not None
    assert found["round"] == [2, 4]  # the rounds that were evaluated
    last = [run["history"]["accuracy"][-1] for run in method["runs"]]
    assert found["mean"][-1] == pytest.approx(100 * np.mean(last), abs=0.01)
    assert found["sem"][-1] == pytest.approx(100 * np.std(last, ddof=1) / np.sqrt(2), abs=0.01)
    assert found["bytes"] == [6000, 12000]


def test_names_are_escaped(tmp_path: Path) -> None:
    hostile = "</script><img src=x onerror=alert(1)>'\"&{{ 7 * 7 }}{title}"
    made = document(names=[hostile] * 12)
    made["title"] = made["notes"][0] = made["command"] = made["methods"][2]["name"] = hostile
    text = report.write(save(tmp_path, made)).read_text(encoding="utf-8")
    assert "<img" not in re.sub(r"<script.*?</script>", "", text, flags=re.DOTALL)
    numbers = re.search(r'<script type="application/json" id="numbers">(.*?)</script>', text, re.DOTALL)
    assert numbers is not None and json.loads(numbers[1])["clients"] == [hostile] * 12
    assert words(tmp_path / "report.html").count(hostile) >= 4


def test_a_narrow_figure_without_a_neighbour_is_wide() -> None:
    narrow, wide = Figure("a", "a", "", half=True), Figure("b", "b", "")
    left_out = Figure("c", "c", "", half=True, missing="no data.")
    some = [narrow, narrow, narrow, wide, narrow, left_out, narrow, narrow]
    assert [one.half for one in Section("", "", some).arranged] == [True, True, *[False] * 4, True, True]


def test_other_directories_are_rejected(tmp_path: Path) -> None:
    with pytest.raises(
        InputError, match=r"must be the directory of a comparison, a run or a diagnosis, but it has neither"
    ):
        report.write(tmp_path)
    with pytest.raises(InputError, match="neither"):
        report.write(tmp_path / "nowhere")
    (tmp_path / "compare.json").write_text("{", encoding="utf-8")
    with pytest.raises(InputError, match="is damaged"):
        report.write(tmp_path)
    save(tmp_path, document() | {"format": 99})
    with pytest.raises(InputError, match="must be a comparison of format 1, got 99"):
        report.write(tmp_path)


def test_a_comparison_is_found_by_its_directory_and_by_its_file(tmp_path: Path) -> None:
    save(tmp_path, document())
    assert read_document(tmp_path) == read_document(tmp_path / "compare.json")
    assert report.write(tmp_path / "compare.json") == tmp_path / "report.html"


def test_a_page_that_cannot_be_written_leaves_the_old_one(tmp_path: Path) -> None:
    save(tmp_path, document())
    (tmp_path / "file").write_text("", encoding="utf-8")
    with pytest.raises(InputError, match="cannot write to"):
        report.write(tmp_path, tmp_path / "file" / "page.html")
    assert sorted(one.name for one in tmp_path.iterdir()) == ["compare.json", "file"]


def test_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save(tmp_path, document())
    with pytest.raises(SystemExit) as ended:
        main(["report", str(tmp_path), "--out", str(tmp_path / "page.html")])
    assert ended.value.code in (0, None)
    assert str(tmp_path / "page.html") in capsys.readouterr().out
    assert (tmp_path / "page.html").exists()


def call(*words: str) -> None:
    with pytest.raises(SystemExit) as ended:
        main(list(words))
    assert ended.value.code in (0, None)


def test_a_diagnosis_can_be_written_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--steps", "2", "--trial-rounds", "1", "--workers", "1", "--quiet", "--out", str(tmp_path / "d")]
    call("diagnose", "--clients", "4", *options)
    page = tmp_path / "d" / "diagnosis.html"
    first = page.read_text(encoding="utf-8")
    page.unlink()
    call("report", str(tmp_path / "d"))
    assert str(page) in capsys.readouterr().out
    assert page.read_text(encoding="utf-8") == first
    call("report", str(tmp_path / "d" / "diagnosis.json"), "--out", str(tmp_path / "page.html"))
    assert (tmp_path / "page.html").read_text(encoding="utf-8") == first


@pytest.mark.slow
def test_a_killed_comparison_shows_its_finished_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place = tmp_path / "c"
    options = ["--clients", "4", "--rounds", "1", "--seeds", "0,1", "--model", "logistic", "--workers", "1"]
    call("compare", "ditto", *options, "--quiet", "--out", str(place))
    for name in ("compare.json", "clients.csv", "report.html"):
        (place / name).unlink()
    for name in ("local-1", "ditto-0", "ditto-1"):
        shutil.rmtree(place / "runs" / name)
    shutil.copytree(place / "runs" / "local-0", place / "runs" / ".local-0.new-1-2")  # it was being written
    call("report", str(place))
    text = re.sub(r"\s+", " ", words(place / "report.html"))
    assert "Unfinished: 3 of 6 runs are available." in text.replace(" :", ":")
    assert "bespoke compare ditto --seeds 0,1" in text
    assert "ditto has no finished run yet." in text
    call("compare", "ditto", *options, "--quiet", "--out", str(place))
    assert "Unfinished" not in words(place / "report.html")
    for one in (place / "runs").iterdir():
        shutil.rmtree(one)
    (place / "compare.json").unlink()
    capsys.readouterr()
    with pytest.raises(SystemExit) as ended:
        main(["report", str(place)])
    said = capsys.readouterr().err
    assert ended.value.code == 2
    assert (
        said.startswith("error: ") and "has no finished run yet; repeat the command that started it to resume." in said
    )


@pytest.mark.slow
def test_a_real_comparison_from_its_command_to_its_figures(tmp_path: Path) -> None:
    methods = ["selffl", "persfl", "ucfl", "pfedvem"]
    options = ["--clients", "6", "--rounds", "3", "--seeds", "0,1", "--eval-every", "1", "--out", str(tmp_path / "all")]
    rates = [f"{name}.lr" for name in ("local", "fedavg", "selffl", "persfl", "ucfl")] + ["pfedvem.base_lr"]
    options += ["--set", "persfl.distil_epochs=2", *(word for rate in rates for word in ("--grid", f"{rate}=0.05,0.1"))]
    with pytest.raises(SystemExit) as ended:
        main(["compare", *methods, *options])
    assert ended.value.code in (0, None)
    with chromium() as browser:
        browser.open(tmp_path / "all" / "report.html")
        scroll_through(browser)
        drawn = figures(browser)
        assert {key.rsplit("-", 1)[-1] for key in drawn} >= {
            "map",
            "silhouette",
            "grid",
            "teachers",
            "steps",
            "confidence",
        }
        assert all(drawn.values())
        assert browser.complaints() == []
