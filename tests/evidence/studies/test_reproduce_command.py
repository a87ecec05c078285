"""`bespoke reproduce`: what is printed and written, and one sentence for every mistake."""

import shlex
from pathlib import Path
from typing import Any

import pytest
from bespokefl_evidence import studies
from bespokefl_evidence.studies import runner
from bespokefl_evidence.studies.cells import CellStore

from bespokefl import cli
from tests.evidence.studies import toy


def bespoke(line: str) -> int:
    with pytest.raises(SystemExit) as ended:
        cli.main(shlex.split(line))
    return int(ended.value.code or 0)


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty directory, in which there is one small experiment."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(
        studies, "STUDIES", studies.Studies({"toy": toy.experiment, "toy-2": lambda: toy.experiment(name="toy-2")})
    )
    return tmp_path


def fill(directory: Path, experiment: Any = None) -> CellStore:
    store = CellStore(directory)

    def results(spec: Any) -> dict[str, Any]:
        return {"validation": {"personal": 0.5}} if spec.settings.get("tuning") else toy.invented([0.5, 0.7])

    toy.invent_all(experiment or toy.experiment(), store, results)
    return store


def test_without_a_name_experiments_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert bespoke("reproduce") == 0
    assert capsys.readouterr().out.splitlines() == [f"{name:<20} Two methods on digits" for name in ("toy", "toy-2")]


def test_the_status(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fill(here / "runs/cells")
    assert bespoke("reproduce --status") == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["toy", "2", "4", "4", "4", "min", "0", "s"] in lines
    assert ["toy-2", "1", "0", "2", "0", "s", "unknown"] in lines
    assert ["all", "7", "14", "7", "min", "over", "0", "s"] in lines


def test_tables_of_named_experiments_are_printed_and_nothing_is_computed(
    here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "compute_missing", lambda *_, **__: pytest.fail("computed"))
    fill(here / "other")
    assert bespoke("reproduce toy --table --cells other") == 0
    assert "| Local | 90.0 | 60.0 ± 0.0 | -30.0 | 2 of 2 |" in capsys.readouterr().out
    assert bespoke("reproduce toy --table") == 0  # another directory
    assert "| Local | 90.0 | – | – | 0 of 2 |" in capsys.readouterr().out
    assert sorted(path.name for path in here.iterdir()) == ["other"]


def test_cells_of_a_checkout_are_preferred_and_pages_go_to_docs(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    fill(here / "evidence/cells")
    (here / "docs").mkdir()
    (here / "docs/results.md").write_text("old")
    assert bespoke("reproduce --table") == 0
    assert "Written to docs/results.md." in capsys.readouterr().out
    assert "| Local | 90.0 | 60.0 ± 0.0 | -30.0 | 2 of 2 |" in (here / "docs/results.md").read_text()
    assert (here / "docs/claims.md").read_text().startswith("# The papers' claims")
    assert (here / "docs/figures/toy-rounds.svg").exists()


def test_flags_reach_the_runner(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[dict[str, Any]] = []

    def record(found: Any, store: CellStore, **how: Any) -> bool:
        asked.append({"names": [one.name for one in found], "cells": store.directory, **how})
        return True

    monkeypatch.setattr(runner, "compute_missing", record)
    (here / "data").mkdir()
    flags = "--budget 90m --priority 2 --processes 3 --cluster auto --files data --cells there"
    assert bespoke(f"reproduce toy-2 toy {flags}") == 0
    (found,) = asked
    assert found["names"] == ["toy-2", "toy"] and found["cells"] == Path("there") and found["files"] == Path("data")
    assert (found["budget"], found["priority"], found["processes"]) == (5400, 2, 3)
    assert found["cluster"] == "auto"
    assert "## toy-2" in capsys.readouterr().out
    assert bespoke("reproduce all --out there --part") == 0
    assert asked[1]["cluster"] == "none"
    assert asked[1]["names"] == ["toy", "toy-2"] and asked[1]["priority"] == 1 and asked[1]["cells"] == Path("there")
    warned = capsys.readouterr().err
    assert "warning: --part is now --priority 1" in warned and "warning: --out is now --cells." in warned


def test_ctrl_c_ends_as_everywhere(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def interrupted(*_: Any, **__: Any) -> bool:
        raise KeyboardInterrupt

    monkeypatch.setattr(runner, "compute_missing", interrupted)
    assert bespoke("reproduce toy") == 130
    assert capsys.readouterr().err == "error: interrupted.\n"


@pytest.mark.parametrize(
    ("line", "sentence"),
    {
        "reproduce toi": "unknown experiment 'toi'; did you mean 'toy'?",
        "reproduce toi --table": "unknown experiment 'toi'",
        "reproduce toy --budget soon": "a budget must be a time such as 90m, 2h or 45s, got 'soon'.",
        "reproduce toy --cluster far": "cluster must be none, auto or the HOST:PORT of a Ray cluster",
        "reproduce toy --files nowhere": "there is no directory 'nowhere' (--files).",
        "reproduce toy --priority 0": "Invalid value for '--priority'",
        "reproduce toy --table --cells damaged": "is damaged",
        "reproduce toy --status --cells damaged": "is damaged",
        "reproduce toy --cells damaged": "is damaged",
        "reproduce toy --table --cells foreign": "holds the cell of toy, two: Local, seed 1",
    }.items(),
)
def test_a_mistake_is_one_sentence_and_nothing_is_lost(
    here: Path, line: str, sentence: str, capfd: pytest.CaptureFixture[str]
) -> None:
    fill(here / "damaged")
    fill(here / "foreign")
    (here / "damaged/toy/two/Local.0.json").write_text("{")
    (here / "foreign/toy/two/Local.0.json").write_bytes((here / "foreign/toy/two/Local.1.json").read_bytes())
    before = {path: path.read_bytes() for path in here.rglob("*.json")}
    assert bespoke(line) == 2
    printed = capfd.readouterr()
    assert printed.out == "" and printed.err.count("\n") == 1 and printed.err.startswith("error: ")
    assert sentence in printed.err
    assert {path: path.read_bytes() for path in here.rglob("*.json")} == before
