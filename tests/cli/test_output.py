"""Options that all commands share: --json, --quiet, --verbose, --log-file; and hyper-parameters as flags."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from bespokefl import cli
from bespokefl.cli.options import as_hyper_parameter

SMALL = "--data digits --split iid --clients 3 --model logistic --rounds 1 --workers 1"


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def bespoke(line: str) -> int:
    with pytest.raises(SystemExit) as ended:
        cli.main(line.split())
    assert isinstance(ended.value.code, int)
    return ended.value.code


def document(line: str, capsys: pytest.CaptureFixture[str], code: int = 0) -> dict[str, Any]:
    """The only line of stdout, as JSON."""
    capsys.readouterr()
    assert bespoke(f"{line} --json") == code
    (printed,) = capsys.readouterr().out.splitlines()
    found: dict[str, Any] = json.loads(printed)
    return found


class TestJson:
    def test_run_and_what_follows(self, capsys: pytest.CaptureFixture[str]) -> None:
        run = document(f"run ditto {SMALL} --out r", capsys)
        assert (run["command"], run["method"], run["path"], run["clients"]) == ("run", "ditto", "r", 3)
        assert 0 <= run["scores"]["personal"]["accuracy"]["mean"] <= 1
        assert document("report r", capsys)["files"] == ["r/report.html"]

    def test_tune(self, capsys: pytest.CaptureFixture[str]) -> None:
        found = document(f"tune ditto {SMALL} --grid lr=0.1,0.2 --out t", capsys)
        assert len(found["points"]) == 2 and found["flags"].startswith("--set lr=")

    def test_compare(self, capsys: pytest.CaptureFixture[str]) -> None:
        found = document(f"compare fedavg {SMALL} --seeds 1 --no-tune --out c", capsys)
        assert found["untuned"] and {"local", "fedavg"} <= {one["method"] for one in found["methods"]}

    @pytest.mark.parametrize(
        ("line", "key"),
        [
            ("methods", "methods"),
            ("methods ditto", "hyper_parameters"),
            ("models", "models"),
            ("data list", "data"),
            ("data info digits", "examples"),
            ("split list", "splits"),
            ("split show iid --clients 3", "class_counts"),
            ("new method mine", "files"),
        ],
    )
    def test_descriptions(self, line: str, key: str, capsys: pytest.CaptureFixture[str]) -> None:
        found = document(line, capsys)
        assert found[key] and line.startswith(found["command"])

    def test_an_error(self, capsys: pytest.CaptureFixture[str]) -> None:
        found = document("run dito", capsys, code=2)
        assert found["error"].startswith("unknown method 'dito'; did you mean 'ditto'?")


def test_quiet_prints_the_path(capsys: pytest.CaptureFixture[str]) -> None:
    assert bespoke("split make iid --clients 3 --out s.json -q") == 0
    assert capsys.readouterr().out == "s.json\n"


def test_a_log_file_has_all_messages(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert bespoke(f"run fedavg {SMALL} --log-file log.txt -q") == 0
    assert "note" not in capsys.readouterr().err
    assert bespoke("run fedavg --batch-size 0 --log-file log.txt") == 2
    lines = (here / "log.txt").read_text().splitlines()
    assert "INFO bespoke run begins" in lines[0] and any("INFO chunk" in line for line in lines)
    assert "INFO bespoke run is done" in "\n".join(lines)
    capsys.readouterr()
    assert bespoke("models --log-file missing/log.txt") == 2
    assert "--log-file cannot be written: 'missing/log.txt'" in capsys.readouterr().err


class TestHyperParametersAsFlags:
    @pytest.mark.parametrize(
        ("line", "option", "expected"),
        [
            ("run ditto --lr 0.1 --rounds 2", "--lr", "run ditto --set lr=0.1 --rounds 2"),
            ("run ditto --prox-weight=3", "--prox-weight", "run ditto --set prox_weight=3"),
            ("tune ditto --lr 0.1,0.2", "--lr", "tune ditto --grid lr=0.1,0.2"),
            ("compare local ditto --prox-weight 3", "--prox-weight", "compare local ditto --set prox_weight=3"),
            ("deploy start d --method ditto --lr 1", "--lr", "deploy start d --method ditto --set lr=1"),
            ("run ditto --lrr 0.1", "--lrr", None),
            ("diagnose --prox-weight 3", "--prox-weight", None),
        ],
    )
    def test_rewritten(self, line: str, option: str, expected: str | None) -> None:
        found = as_hyper_parameter(line.split(), option)
        assert (found and " ".join(found)) == expected

    def test_a_run(self, here: Path) -> None:
        assert bespoke(f"run fedavg {SMALL} --lr 0.25 --out r -q") == 0
        assert "lr = 0.25" in (here / "r" / "config.toml").read_text()

    def test_hints(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert bespoke("run ditto --lrr 0.1") == 2
        assert "No such option" in (said := capsys.readouterr().err) and "--set NAME=VALUE" in said
        assert bespoke("run ditto --lr") == 2
        assert "--lr must be followed by a value, as in --lr 0.1." in capsys.readouterr().err


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("run ditto --batch-size 0", "--batch-size must be at least 1, got 0."),
        ("run ditto --noise 1", "--noise needs --clip"),
        ("run ditto --local-steps 3 --local-epochs 2", "give --local-epochs or --local-steps, not both"),
        ("run ditto --data digits --label x", "--label is for tables"),
        ("run ditto --fractions 1", "--fractions must be three numbers"),
        ("run ditto --checkpoint-every x", "--checkpoint-every must be a number of rounds"),
    ],
)
def test_errors_name_flags(line: str, sentence: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert bespoke(line) == 2
    assert sentence in capsys.readouterr().err


@pytest.mark.parametrize(
    "variables",
    [
        {"_BESPOKE_COMPLETE": "complete_bash", "COMP_WORDS": "bespoke run --miss", "COMP_CWORD": "2"},
        {"_BESPOKE_COMPLETE": "complete_zsh", "_TYPER_COMPLETE_ARGS": "bespoke run --miss"},
        {
            "_BESPOKE_COMPLETE": "complete_fish",
            "_TYPER_COMPLETE_ARGS": "bespoke run --miss",
            "_TYPER_COMPLETE_FISH_ACTION": "get-args",
        },
    ],
    ids=["bash", "zsh", "fish"],
)
def test_shells_get_completions(variables: dict[str, str]) -> None:
    """In a process of its own, as a shell asks; torch is not imported for it."""
    code = (
        "import sys; from bespokefl.cli import main\ntry:\n    main()\nfinally:\n    assert 'torch' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], env=os.environ | variables, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "--missing-values" in done.stdout and "--rounds" not in done.stdout
