"""Commands that write into the current directory, and runs resumed from another directory."""

import shutil
import tomllib
from pathlib import Path
from typing import Any

import pytest

from bespokefl import cli
from bespokefl.workflows.results.result import load_run
from bespokefl.workflows.run.api import resume, run_config
from tests.faults.test_full_disk import started_by
from tests.faults.test_resume import ROUNDS, config, stop_after, write_data

QUICK = ["--data", "../own.npz", "--model", "logistic", "--rounds", "2", "--workers", "1", "--quiet"]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty current directory next to the data."""
    write_data(tmp_path / "own.npz")
    (tmp_path / "e").mkdir()
    monkeypatch.chdir(tmp_path / "e")
    return tmp_path / "e"


def code_of(*words: object) -> int:
    with pytest.raises(SystemExit) as ended:
        cli.main([str(one) for one in words])
    return int(ended.value.code or 0)


def beside(place: Path) -> list[str]:
    return sorted(one.name for one in place.parent.iterdir() if one != place)


WORDS: dict[str, list[str]] = {
    "run": ["run", "ditto", *QUICK],
    "compare": ["compare", "ditto", "--seeds", "0", "--no-tune", *QUICK],
    "tune": ["tune", "ditto", "--grid", "prox_weight=0.1,1", *QUICK],
    "diagnose": [
        "diagnose",
        "--data",
        "../own.npz",
        "--model",
        "logistic",
        "--trial-rounds",
        "1",
        "--workers",
        "1",
        "--quiet",
    ],
}


@pytest.mark.parametrize("out", [".", "../e", ""])
@pytest.mark.parametrize("command", WORDS)
def test_write_into_the_current_directory(
    command: str, out: str, here: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert code_of(*WORDS[command], "--out", out or here) == 0
    assert beside(here) == ["own.npz"]
    assert {"run": "result.json", "compare": "report.html", "tune": "grid.csv", "diagnose": "diagnosis.html"}[
        command
    ] in [one.name for one in here.iterdir()]
    assert Path.cwd() == here  # not the replaced directory
    printed = capfd.readouterr()
    assert "error" not in printed.err
    if command != "tune":  # which adds to the folder that is there
        assert f"the current directory was replaced: cd {here} shows the new one" in printed.err
    if command in ("run", "compare"):
        assert printed.out == f"{here}\n"


def test_write_newcomers_into_the_current_directory(here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    run_config(config(here.parent / "own.npz", "ditto", here.parent / "run"))
    words = [
        "personalize",
        "../run",
        "--data",
        "../own.npz",
        "--client",
        "3",
        "--workers",
        "1",
        "--out",
        ".",
        "--quiet",
    ]
    assert code_of(*words) == 0
    assert capfd.readouterr().out == f"{here}\n" and (here / "newcomers.csv").exists()
    assert beside(here) == ["own.npz", "run"]


def test_a_report_is_not_written_to_a_directory(here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    run_config(config(here.parent / "own.npz", "ditto", here.parent / "run"))
    assert code_of("report", "../run", "--out", ".") == 2
    assert capfd.readouterr().err == "error: cannot write to '.': Is a directory; name a file.\n"
    assert beside(here) == ["own.npz", "run"] and not list(here.iterdir())


@pytest.mark.parametrize("inside", ["", "checkpoints"])
def test_resume_from_inside_the_run_directory(inside: str, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given = config(here.parent / "own.npz", "ditto", here)
    assert run_config(given, stop_after(2)).interrupted
    monkeypatch.chdir(here / inside)
    assert code_of("resume", ".." if inside else ".") == 0
    assert not load_run(here).interrupted and beside(here) == ["own.npz"]
    assert Path.cwd() == here


@pytest.mark.slow
def test_a_shell_in_a_replaced_directory(here: Path) -> None:
    """The shell stays in the replaced directory, and the next command reports it."""
    shell = ("sh", "-c", 'cd "$0" && "$@"; echo "$?"; "$@"; echo "$?"', here)
    ended = started_by(tuple(map(str, shell)), "run", "ditto", *QUICK, "--checkpoint-every", 0, "--out", ".")
    assert ended.stdout == f"{here}\n0\n2\n"
    assert ended.stderr == (
        f"warning: the current directory was replaced: cd {here} shows the new one\n"
        "error: the current directory no longer exists, perhaps because results replaced it; enter it again, as in: "
        'cd "$PWD".\n'
    )
    assert beside(here) == ["own.npz"]


def test_current_directory_replaced_during_the_run(here: Path) -> None:
    """The first checkpoint replaces the directory, and the run continues in the new one."""
    seen: list[bool] = []

    def look(now: Any) -> None:
        seen.append(Path("checkpoints").is_dir())

    for seed in (0, 1):
        given = config(Path("../own.npz"), "ditto", Path(), overwrite=True, state_dir="../states", seed=seed)
        run_config(given, look)
    assert any(seen[ROUNDS:]) and load_run(here).config.seed == 1
    assert beside(here) == ["own.npz", "states"]


def test_current_directory_deleted(here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    shutil.rmtree(here)
    for words in (["run", "ditto"], ["resume", "."], ["methods"]):
        assert code_of(*words) == 2
        assert "error: the current directory no longer exists" in capfd.readouterr().err


def test_a_relative_state_dir_is_resolved_at_the_start(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A resume from another directory uses the same --state-dir."""
    run = here.parent / "run"
    first = config(here.parent / "own.npz", "ditto", run, state_dir="states")
    assert run_config(first, stop_after(2)).interrupted
    assert tomllib.loads((run / "config.toml").read_text())["state_dir"] == str(here / "states")
    elsewhere = here.parent / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    (here / "states").rmdir()
    assert not resume(run).interrupted
    assert (here / "states").is_dir() and not list(elsewhere.iterdir())
