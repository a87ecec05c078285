"""The command: what it prints and writes, and that every mistake is one sentence, exit code 2 and nothing written."""

import io
import json
import os
import re
import resource
import shlex
import signal
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from bespokefl import cli, methods
from bespokefl.engines.simulation import Progress
from bespokefl.experiments import demo as demonstration
from bespokefl.experiments import terminal
from bespokefl.experiments.manual import hyper, reference

QUICK = "--rounds 2 --workers 1 --clients 4"


def bespoke(line: str) -> int:
    """Run the command in this process; its exit code."""
    with pytest.raises(SystemExit) as ended:
        cli.main(shlex.split(line))
    return int(ended.value.code or 0)


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def everything(path: Path) -> dict[str, Any]:
    found = {str(one.relative_to(path)): one for one in path.rglob("*") if "__pycache__" not in one.parts}
    return {name: one.read_bytes() if one.is_file() else None for name, one in found.items()}


# -- mistakes


@pytest.fixture
def material(here: Path) -> Path:
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(40, 4)), np.arange(40) % 3
    np.savez("own.npz", x=x, y=y, client=np.arange(40) % 4)
    x[5, 2] = np.nan
    np.savez("nan.npz", x=x, y=y)
    x[5, 2] = np.inf
    np.savez("inf.npz", x=x, y=y)
    Path("nets_for_cli.py").write_text(
        "from torch import nn\n"
        "def three(): return nn.Sequential(nn.Flatten(), nn.Linear(64, 3))\n"
        "def failing(): raise ValueError('two\\nlines')\n"
    )
    Path("key.toml").write_text('method = "ditto"\nronds = 3\n')
    Path("type.toml").write_text('method = "ditto"\nrounds = "three"\n')
    Path("half.toml").write_text("method = ")
    Path("thesis").mkdir()
    Path("thesis/thesis.tex").write_text("years")
    Path("taken").mkdir()
    Path("taken/config.toml").write_text('method = "ditto"\n')
    Path("taken/result.json").write_text("{}")
    return here


MISTAKES = {
    "run dito": "unknown method 'dito'; did you mean 'ditto'? See \"bespoke methods\".",
    "run": "a run needs a method, got none",
    "run ditto --data digts": "unknown data 'digts'; did you mean 'digits'?",
    "run ditto --data none.npz": "no file 'none.npz'",
    "run ditto --data nan.npz --split iid": "x must be finite",
    "run ditto --data inf.npz --split iid": "x must be finite",
    "run ditto --split dirichlt": "unknown split 'dirichlt'; did you mean 'dirichlet'?",
    "run ditto --split 'dirichlet(alpha=0)'": "alpha must be > 0, got 0",
    "run ditto --split 'dirichlet(alpha=-0.1)'": "alpha must be > 0, got -0.1",
    "run ditto --split 'dirichlet(beta=1)'": "unknown key of dirichlet 'beta'",
    "run ditto --split 'classes(k=11)'": "k must be at most the number of classes, 10",
    "run ditto --split by_column": "by_column needs data that name the client of each example",
    "run ditto --split none.json": "cannot read the split 'none.json'",
    "run ditto --split iid --clients 1798": "iid needs at least 1798 examples",
    "run ditto --clients 1798": "dirichlet(alpha=0.4) needs at least",
    "run ditto --clients 0": "clients must be at least 1, got 0",
    "run ditto --model mpl": "unknown model 'mpl'; did you mean 'mlp'?",
    "run ditto --model 'mlp(hiden=3)'": "unknown key of mlp 'hiden'; did you mean 'hidden'?",
    "run ditto --model nets_for_cli:three": "the model's output does not fit the labels: expected (3, 10)",
    "run ditto --model nets_for_cli:failing": "'nets_for_cli:failing' failed with ValueError: two lines.",
    "run ditto --model nets_for_cli:tree": "did you mean 'three'?",
    "run ditto --model no_such_module:three": "cannot import 'no_such_module'",
    "run ditto --data own.npz --split by_column --model lenet": "lenet needs pictures",
    "run ditto --head tail": "the model has no head 'tail'",
    "run ditto --loss mse": "the loss 'mse' does not fit the data",
    "run ditto --set lrr=1": "unknown hyper-parameter of ditto 'lrr'; did you mean 'lr'?",
    "run ditto --set lr=fast": "lr of ditto must be a float such as 0.05, got 'fast'.",
    "run ditto --set lr=-1": "lr must be > 0, got -1.0",
    "run ditto --set lr": "--set must be followed by key=value, such as lr=0.1, got 'lr'.",
    "run ditto --set pull=-1": "pull must be >= 0",
    "run ditto --set lr=1e30": "non-finite in round 1 for clients ",
    "run ditto --participation 0": "participation must be in (0, 1]",
    "run ditto --participation 1.5": "participation must be in (0, 1]",
    "run ditto --rounds 0": "rounds must be at least 1, got 0.",
    "run ditto --rounds many": "Invalid value for '--rounds'",
    "run ditto --ronds 3": "No such option: --ronds",
    "run ditto fedavg": "unexpected extra argument",
    "run ditto --batch-size 0": "batch_size must be at least 1",
    "run ditto --chunk 0": "chunk must be at least 1",
    "run ditto --precision float16": "precision must be 'float32' or 'float64'",
    "run ditto --device abacus": "cannot compute on the device 'abacus'",
    "run ditto --start none.safetensors": "there is no file 'none.safetensors'.",
    "run ditto --start taken": "has no global model to start from",
    "run ditto --out taken": "'taken' already holds a run; use --overwrite to replace it",
    "run ditto --out thesis": "'thesis' holds something that is not a run",
    "run ditto --out thesis --overwrite": "'thesis' holds something that is not a run",
    "run ditto --out own.npz": "it is a file",
    "run --config key.toml": "unknown key 'ronds'; did you mean 'rounds'?",
    "run --config type.toml": "rounds must be a whole number, got 'three'.",
    "run --config half.toml": "'half.toml' must be a TOML file",
    "run --config none.toml": "cannot read the config 'none.toml'",
    "methods dito": "unknown method 'dito'; did you mean 'ditto'?",
    "rn": "No such command 'rn'",
    "demo --rounds 0": "Invalid value for '--rounds'",
    "bench --only sonnet": "unknown bench case 'sonnet'",
}


@pytest.mark.parametrize("line", MISTAKES)
def test_a_mistake_is_one_sentence(line: str, material: Path, capfd: pytest.CaptureFixture[str]) -> None:
    before = everything(material)
    assert bespoke(line) == 2
    printed = capfd.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("error: ")
    assert MISTAKES[line] in printed.err
    assert printed.err.endswith("\n") and printed.err.count("\n") == 1
    assert "Traceback" not in printed.err
    assert everything(material) == before


def test_where_to_write_is_checked_before_anything_is_trained(
    material: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("bespokefl.experiments.run._train", lambda *_: pytest.fail("it trained first"))
    assert bespoke("run ditto --out taken") == 2
    assert "already holds a run" in capsys.readouterr().err


# -- a run


def test_the_command_of_the_readme_and_its_repetition(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    line = (
        'run ditto --data digits --split "dirichlet(alpha=0.4)" --clients 20 --model mlp --rounds 20 '
        "--participation 0.5 --batch-size 32 --local-epochs 1 --set lr=0.1 --set personal_lr=0.1 --set pull=1 "
        "--seed 0 --out runs/ditto"
    )
    assert bespoke(line) == 0
    printed = capsys.readouterr()
    assert printed.err == ""  # no bar where there is no terminal
    found = json.loads(Path("runs/ditto/result.json").read_text())
    assert f"{found['personal']['accuracy']['mean']:.4f}" in printed.out
    assert "Written to runs/ditto" in printed.out
    assert found["hyper"] == methods.Ditto(lr=0.1, personal_lr=0.1, pull=1).hyper()
    assert found["personal"]["accuracy"]["mean"] > found["global"]["accuracy"]["mean"]

    assert bespoke("run --config runs/ditto/config.toml --out elsewhere --workers 1") == 0
    for name in ("clients.csv", "personal.safetensors", "global.safetensors", "split.json"):
        assert (here / "elsewhere" / name).read_bytes() == (here / "runs/ditto" / name).read_bytes(), name
    again = json.loads(Path("elsewhere/result.json").read_text())
    assert again["settings"].pop("workers") == 1 and found["settings"].pop("workers") == 0
    assert {key: value for key, value in again.items() if key != "timing"} == {
        key: value for key, value in found.items() if key != "timing"
    }


def test_a_method_alone_is_enough(capsys: pytest.CaptureFixture[str]) -> None:
    assert bespoke("run local --quiet") == 0
    assert capsys.readouterr().out == "runs/local\n"
    assert bespoke(f"run local --quiet {QUICK}") == 0
    assert capsys.readouterr().out == "runs/local-2\n"
    assert json.loads(Path("runs/local/result.json").read_text())["global"] is None


def test_flags_win_over_the_file(capsys: pytest.CaptureFixture[str]) -> None:
    Path("my.toml").write_text(
        'method = "ditto"\nrounds = 3\nbatch-size = 8\nclients = 4\nseed = 5\nworkers = 1\n[set]\nlr = 0.5\npull = 2\n'
    )
    assert bespoke("run --config my.toml --rounds 2 --seed 0 --set lr=0.25 --out run") == 0
    found = json.loads(Path("run/result.json").read_text())
    assert (found["rounds"], found["seed"], found["settings"]["batch_size"]) == (2, 0, 8)
    assert (found["hyper"]["lr"], found["hyper"]["pull"]) == (0.25, 2.0)
    assert bespoke("run fedavg --config my.toml --out other") == 0
    assert "warning: [set] in the config is for ditto and is not used for fedavg." in capsys.readouterr().err
    assert json.loads(Path("other/result.json").read_text())["hyper"] == methods.FedAvg().hyper()


def test_own_data_model_and_split_are_found_from_elsewhere(material: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert bespoke("run ditto --data own.npz --split by_column --rounds 2 --workers 1 --out run") == 0
    assert bespoke("run fedavg --data own.npz --split run/split.json --rounds 2 --workers 1 --out second") == 0
    first, second = (json.loads((material / name / "result.json").read_text()) for name in ("run", "second"))
    assert first["clients"] == second["clients"] == 4
    assert first["split_hash"] == second["split_hash"]
    (material / "sub").mkdir()
    monkeypatch.chdir(material / "sub")
    assert bespoke("run --config ../second/config.toml --out again") == 0
    assert Path("again/clients.csv").read_bytes() == (material / "second/clients.csv").read_bytes()


def test_overwrite_replaces_a_run(material: Path) -> None:
    assert bespoke(f"run local {QUICK} --out taken --overwrite") == 0
    assert json.loads(Path("taken/result.json").read_text())["method"] == "local"


def test_choices_are_told_if_asked_and_warnings_always(material: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert bespoke(f"run local {QUICK} --verbose") == 0
    assert "note: chunk " in capsys.readouterr().err
    assert bespoke(f"run local --data own.npz --split by_column {QUICK} --clients 9") == 0
    assert capsys.readouterr().err == "warning: the split has 4 clients of its own; clients = 9 is not used\n"


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1", 1),
        ("0.1", 0.1),
        ("1e-3", 1e-3),
        ("true", True),
        ("False", False),
        ("[1, 2.5]", [1, 2.5]),
        ("inf", float("inf")),
        ("'1'", "1"),
        ("equal", "equal"),
        ("a=b", "a=b"),
        ("", ""),
    ],
)
def test_values_of_set(text: str, value: Any) -> None:
    found = cli._hyper([f"some-key={text}"])
    assert found == {"some_key": value}
    assert type(found["some_key"]) is type(value)


# -- Ctrl-C


def test_ctrl_c_ends_after_the_round_with_results(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupt(now: Progress) -> None:
        if now.done == 2:
            os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(terminal, "bar", lambda *_: nullcontext(interrupt))
    assert bespoke("run local --rounds 500 --workers 1 --clients 4 --out run") == 130
    printed = capsys.readouterr()
    assert printed.err == "warning: stopping after this round; press Ctrl-C again to stop at once\n"
    assert "Interrupted after round 3 of 500." in printed.out and "To run it to its end" in printed.out
    assert json.loads(Path("run/result.json").read_text())["interrupted"] is True


def test_ctrl_c_before_there_is_anything(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("bespokefl.experiments.run.run_config", interrupt)
    assert bespoke("run local") == 130
    assert capsys.readouterr().err == "error: interrupted; nothing was written.\n"
    assert everything(here) == {}


# -- the other commands


def test_help_and_version_are_quick_and_leave_torch_alone() -> None:
    script = "import sys; from bespokefl import cli\ntry: cli.main(['{}'])\nfinally: print('torch' in sys.modules)"
    for asked, expected in (("--help", "bench"), ("--version", "bespoke ")):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        printed = subprocess.run([sys.executable, "-c", script.format(asked)], capture_output=True, text=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        assert printed.returncode == 0
        assert expected in printed.stdout
        assert printed.stdout.splitlines()[-1] == "False"
        assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 1  # of the processor: others wait


def test_no_command_shows_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert bespoke("") == 0
    assert "Usage: bespoke" in capsys.readouterr().out


def test_methods_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert bespoke("methods") == 0
    printed = capsys.readouterr().out
    for name, method in methods.REGISTRY.items():
        line = next(line for line in printed.splitlines() if line.strip().startswith(f"{name} "))
        assert reference(method) in line
    assert "Li et al., ICML 2021" in printed


@pytest.mark.parametrize("name", methods.REGISTRY)
def test_a_method_is_explained(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert bespoke(f"methods {name}") == 0
    printed = capsys.readouterr().out
    method = methods.REGISTRY[name]
    for key, value in method().hyper().items():
        line = next(line for line in printed.splitlines() if line.strip().startswith(f"{key} "))
        assert terminal.written(value) in line
    assert method.citation in printed
    assert "Differs from the paper" in printed


def test_a_hyper_parameters_meaning_is_the_comment_beside_it() -> None:
    found = {name: (default, meaning) for name, default, meaning in hyper(methods.Ditto)}
    assert found["pull"] == (1.0, "λ; 0 is Local")
    assert found["momentum"] == (0.0, "")


def test_models_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert bespoke("models") == 0
    printed = capsys.readouterr().out
    assert all(name in printed for name in ("logistic", "mlp", "lenet", "module:function"))


@pytest.mark.slow
def test_the_demo_shows_every_method(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert bespoke("demo --rounds 2 --seed 1") == 0
    printed = capsys.readouterr()
    lines = [line.split() for line in printed.out.splitlines()]
    shown = {line[0]: line for line in lines if line and line[0] in methods.REGISTRY}
    expected = [name for name, _ in demonstration.trials(demonstration.clients(1), 2, 1)]
    assert list(shown) == expected
    assert shown["local"][4] == "-" and float(shown["ditto"][4]) > 0
    assert sum(line[:1] == ["bespoke"] for line in lines) == 3
    assert printed.err == ""
    assert everything(here) == {}


def test_bench_is_asked_for_what_was_typed(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[dict[str, Any]] = []
    monkeypatch.setattr("bespokefl.experiments.bench.main", lambda **how: asked.append(how))
    assert bespoke("bench --quick --only mlp") == 0
    assert asked == [{"quick": True, "only": "mlp"}]


# -- the terminal


def test_the_bar_shows_round_scores_and_time() -> None:
    screen = Console(file=io.StringIO(), force_terminal=True, width=120)
    with terminal.bar(screen, "ditto") as report:
        assert report is not None
        report(Progress(1, 40, "train"))
        report(Progress(10, 40, "survey", {"validation_loss": 0.25, "validation_accuracy": 0.875, "other": 1.0}))
    assert isinstance(screen.file, io.StringIO)
    shown = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", screen.file.getvalue())
    assert "ditto" in shown and "round 1/40" in shown
    assert re.search(r"round 10/40 \(survey\) validation loss 0.250, accuracy 0.875 \d\d:\d\d left", shown)


@pytest.mark.parametrize(("is_terminal", "quiet"), [(False, False), (True, True)])
def test_there_is_no_bar_where_nobody_looks(is_terminal: bool, quiet: bool) -> None:
    screen = Console(file=io.StringIO(), force_terminal=is_terminal)
    with terminal.bar(screen, "ditto", quiet) as report:
        assert report is None
    assert isinstance(screen.file, io.StringIO) and screen.file.getvalue() == ""


def test_sizes_for_people() -> None:
    assert [terminal.size(n) for n in (0, 999, 1000, 6_008_000, 3e12, 5e15)] == [
        "0 B",
        "999 B",
        "1.0 kB",
        "6.0 MB",
        "3.0 TB",
        "5000.0 TB",
    ]
