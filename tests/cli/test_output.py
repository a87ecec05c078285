"""Options that all commands share: --json, --quiet, --verbose, --log-file; and hyper-parameters as flags."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from bespokefl_evidence.benchmarks import deployment_overhead, speed

import bespokefl as bf
from bespokefl import cli
from bespokefl.cli import completion
from bespokefl.cli.commands import data, deploy, new, split
from bespokefl.cli.options import as_hyper_parameter
from bespokefl.workflows.deploy import demo, node_models, runs
from bespokefl.workflows.newcomers import predict as newcomers
from bespokefl.workflows.run import api

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


COMMANDS = {  # of every command that reports something: how it is called, and a key of its JSON object
    "run": (f"ditto {SMALL} --out x", "scores"),
    "resume": ("r", "scores"),
    "tune": (f"ditto {SMALL} --grid lr=0.1,0.2 --out x", "flags"),
    "compare": (f"fedavg {SMALL} --seeds 1 --no-tune --out x", "methods"),
    "diagnose": (f"{SMALL.replace('--rounds 1', '')} --steps 2 --trial-rounds 0 --out x", "recommendation"),
    "report": ("r", "files"),
    "personalize": ("r --data new.npz --out x", "scores"),
    "predict": ("r --client 0 --data new.npz --out x.csv", "predictions"),
    "export": ("r --client 0 --to safetensors --out x", "files"),
    "methods": ("ditto", "hyper_parameters"),
    "models": ("", "models"),
    "demo": ("--rounds 1 --out x", "sentence"),
    "reproduce": ("", "experiments"),
    "bench": ("", "cases"),
    "data list": ("", "data"),
    "data info": ("digits", "examples"),
    "data fetch": ("digits", "error"),  # built in
    "data path": ("", "path"),
    "split make": ("iid --clients 3 --out x.json", "class_counts"),
    "split export": ("iid --clients 3 --to pflib --out x", "path"),
    "split list": ("", "splits"),
    "split show": ("iid --clients 3", "class_counts"),
    "new method": ("mine", "files"),
    "new project": ("mine", "files"),
    "deploy init": ("x --node a", "path"),
    "deploy renew": ("d", "path"),
    "deploy start": ("d --method ditto --run one --wait", "scores"),
    "deploy status": ("d", "nodes"),
    "deploy stop": ("d --run one", "run"),
    "deploy fetch": ("d --run one --out x", "path"),
    "deploy predict": ("d --name a --data new.npz --out x.csv", "predictions"),
    "deploy export": ("d --name a --client 0 --to safetensors --out x", "files"),
    "deploy demo": ("--out x", "scores"),
    "deploy overhead": ("", "seconds_per_round"),
}


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with a run, examples and a deployment."""
    folder = tmp_path_factory.mktemp("prepared")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        assert bespoke(f"run ditto {SMALL} --rounds 2 --out r -q") == 0
        assert bespoke("deploy init d --node a -q") == 0
    shutil.copytree(folder / "r", folder / "d" / "server" / "runs" / "one" / "result")
    digits = bf.load("digits")
    np.savez(folder / "new.npz", x=digits.x[:20], y=digits.y[:20])
    return folder


@pytest.fixture
def without_processes(prepared: Path, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What takes processes or minutes ends at once; the current directory is a copy of the prepared one."""
    shutil.copytree(prepared, here, dirs_exist_ok=True)
    timing = speed.Timing(speed.CASES["logistic"], 0.1, {1: 9.0}, 50, 0.1)
    monkeypatch.setattr(speed, "main", lambda **_: [timing])
    monkeypatch.setattr(deployment_overhead, "overhead", lambda *_, **__: {"100 kB": {"bespoke": 0.5, "flower": 3.0}})
    monkeypatch.setattr(demo, "demo", lambda *given: bf.load_run(shutil.copytree("r", given[3])))
    monkeypatch.setattr(demo, "follow", lambda *_, **__: None)
    monkeypatch.setattr(api, "resume", lambda *_, **__: bf.load_run("r"))
    monkeypatch.setattr(runs, "start", lambda *_: "one")
    monkeypatch.setattr(runs, "stop", lambda *_: None)
    monkeypatch.setattr(runs, "fetch", lambda *_: None)
    monkeypatch.setattr(runs, "list_nodes", lambda _: {"a": "online"})
    monkeypatch.setattr(runs, "list_runs", lambda _: {"one": {"state": "done"}})
    monkeypatch.setattr(node_models, "predict", lambda *_, **__: ("0", newcomers.predict("r", "0", "new.npz")))
    monkeypatch.setattr(node_models, "node_result", lambda *_: bf.load_run("r"))


@pytest.mark.usefixtures("without_processes")
class TestAllCommands:
    def test_none_is_missing(self) -> None:
        groups = {"data": data, "split": split, "new": new, "deploy": deploy}
        there = {(one.name or one.callback.__name__).rstrip("_") for one in cli.app.registered_commands if one.callback}
        for group, module in groups.items():
            named = [one.name or one.callback.__name__ for one in module.app.registered_commands if one.callback]
            there |= {f"{group} {name}" for name in named}
        assert there - {"deploy server", "deploy node"} == set(COMMANDS)  # these two run until Ctrl-C

    @pytest.mark.parametrize("command", COMMANDS)
    def test_json(self, command: str, capsys: pytest.CaptureFixture[str]) -> None:
        arguments, key = COMMANDS[command]
        found = document(f"{command} {arguments}", capsys, code=2 if key == "error" else 0)
        assert found["command"] == command and found[key]

    @pytest.mark.parametrize("command", [one for one in COMMANDS if COMMANDS[one][1] != "error"])
    def test_quiet(self, command: str, capsys: pytest.CaptureFixture[str]) -> None:
        assert bespoke(f"{command} {COMMANDS[command][0]} -q") == 0
        lines = capsys.readouterr().out.splitlines()
        assert lines and all(line.strip() and "\u2500" not in line for line in lines)  # no table


class TestJson:
    def test_scores(self, capsys: pytest.CaptureFixture[str]) -> None:
        run = document(f"run ditto {SMALL} --out r", capsys)
        assert (run["command"], run["method"], run["path"], run["clients"]) == ("run", "ditto", "r", 3)
        assert 0 <= run["scores"]["personal"]["accuracy"]["mean"] <= 1
        assert document("report r", capsys)["files"] == ["r/report.html"]

    def test_verdicts_say_whether_they_are_conclusive(self, capsys: pytest.CaptureFixture[str]) -> None:
        found = document(f"compare fedavg {SMALL} --seeds 1 --no-tune --out c", capsys)
        assert found["best"]["method"] in ("local", "fedavg") and found["best"]["conclusive"] is False
        assert found["best"]["sentence"].startswith("Untuned: No method") and not found["fairest"]["conclusive"]

    @pytest.mark.parametrize(
        ("line", "command", "sentence"),
        [
            ("run dito", "run", "unknown method 'dito'; did you mean 'ditto'?"),
            ("run ditto --rounds x", "run", "Invalid value for '--rounds'"),
            ("run ditto --nope", "run", "No such option"),
            ("run ditto --lr", None, "--lr must be followed by a value"),
            ("split show", "split show", "Missing argument"),
            ("rn", None, "No such command 'rn'"),
        ],
    )
    def test_an_error(self, line: str, command: str | None, sentence: str, capsys: pytest.CaptureFixture[str]) -> None:
        given = line.replace("--lr", "--json --lr") if line.endswith("--lr") else f"{line} --json"
        assert bespoke(given) == 2
        printed = capsys.readouterr()
        (text,) = printed.out.splitlines()
        found = json.loads(text)
        assert found["error"].startswith(sentence) and found.get("command") == command
        assert printed.err == f"error: {found['error']}\n"


@pytest.mark.parametrize(
    ("line", "lines"),
    [("methods", {"ditto", "selffl"}), ("models", {"mlp"}), ("data list", {"digits"}), ("split list", {"ds-3"})],
)
def test_quiet_lists_names(line: str, lines: set[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert bespoke(f"{line} -q") == 0
    assert lines <= set(capsys.readouterr().out.splitlines())


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
        said = capsys.readouterr().err
        assert "No such option '--lrr'. Did you mean '--lr', a hyper-parameter of the method? A hyper" in said
        assert "--log" not in said and "--set NAME=VALUE" in said
        assert bespoke("run ditto --ronds 3") == 2
        assert "'--rounds'" in (said := capsys.readouterr().err) and "?) A hyper-parameter is set with" in said
        assert bespoke("rnu ditto") == 2
        assert capsys.readouterr().err == "error: No such command 'rnu'. Did you mean 'run'?\n"
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


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts_of_all_shells(shell: str, here: Path) -> None:
    """A shell that is installed also checks the syntax of its script."""
    code = f"from bespokefl.cli import main; main(['--show-completion', {shell!r}])"
    environment = os.environ | {"_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    assert done.returncode == 0 and f"_BESPOKE_COMPLETE=complete_{shell}" in done.stdout, done.stderr
    (here / "script").write_text(done.stdout)
    if shutil.which(shell):
        assert subprocess.run([shell, "-n", "script"], cwd=here).returncode == 0


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("run selff", {"selffl"}),
        ("compare local pers", {"persfl", "persfl-gd"}),
        ("methods dit", {"ditto"}),
        ("deploy start d --method pfedv", {"pfedvem"}),
        ("run ditto --data fash", {"fashion-mnist"}),
        ("tune ditto --model ml", {"mlp"}),
        ("run ditto --split ds-", {"ds-1", "ds-2", "ds-3", "ds-4"}),
        ("split show dirich", {"dirichlet"}),
        ("data info cifar10", {"cifar10", "cifar100"}),
    ],
)
def test_shells_complete_names(
    words: str, expected: set[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("_BESPOKE_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", f"bespoke {words}")
    monkeypatch.setenv("COMP_CWORD", str(len(words.split())))
    assert bespoke("") == 0
    assert expected <= set(capsys.readouterr().out.splitlines())


def test_changes_of_splits_complete() -> None:
    assert completion.splits("iid + rot") == ["iid + rotation"]


@pytest.mark.parametrize("closed", [">&-", "2>&-", ">&- 2>&- <&-"])
def test_closed_standard_streams(closed: str, here: Path) -> None:
    """They are not an error, and nothing that is printed ends up in a file."""
    command = f"{sys.executable} -m bespokefl.cli run fedavg {SMALL} --out x --overwrite {closed}"
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0 and "Traceback" not in done.stderr, done.stderr
    assert json.loads((here / "x" / "result.json").read_text())
    assert (
        subprocess.run(["sh", "-c", f"{sys.executable} -m bespokefl.cli methods {closed}"], timeout=300).returncode == 0
    )
    failed = f"{sys.executable} -m bespokefl.cli run nothing {closed}"
    assert subprocess.run(["sh", "-c", failed], capture_output=True, timeout=300).returncode == 2


def test_a_long_error_is_shortened(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli._fail("x" * 5000, 2, []) == 2
    printed = capsys.readouterr().err
    assert len(printed) < 1600 and "…" in printed
