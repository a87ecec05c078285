"""The command: what it prints and writes, and that every mistake is one sentence, exit code 2 and nothing written."""

import io
import json
import math
import os
import re
import resource
import shlex
import signal
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from rich.console import Console

import bespokefl as bf
from bespokefl import cli, methods
from bespokefl.cli import options, terminal
from bespokefl.cli.commands import tune
from bespokefl.cli.commands.show import hyperparameters, reference
from bespokefl.engines.outcome import Progress
from bespokefl.workflows.compare import demo
from bespokefl.workflows.results import score_tables
from bespokefl.workflows.run.jobs import Step
from bespokefl.workflows.tune.shared_settings import literal

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
    "run ditto --split by_column": "a table with --client COLUMN, data with an array client, or another split",
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
    "run ditto --data own.npz --split by_column --model lenet": "lenet needs images",
    "run ditto --head tail": "the model has no head 'tail'",
    "run ditto --loss mse": "the loss 'mse' does not fit the data",
    "run ditto --set lrr=1": "unknown hyper-parameter of ditto 'lrr'; did you mean 'lr'?",
    "run ditto --set lr=fast": "lr of ditto must be a number, got 'fast'.",
    "run ditto --set lr=-1": "lr must be > 0, got -1.0",
    "run ditto --set lr": "--set must be followed by key=value, such as lr=0.1, got 'lr'.",
    "run ditto --set prox_weight=-1": "prox_weight must be >= 0",
    "run ditto --set lr=1e30": "non-finite in round 1 for clients ",
    "run ditto --participation 0": "participation must be in (0, 1]",
    "run ditto --participation 1.5": "participation must be in (0, 1]",
    "run ditto --rounds 0": "rounds must be at least 1, got 0.",
    "run ditto --rounds many": "Invalid value for '--rounds'",
    "run ditto --ronds 3": "No such option",
    "run ditto fedavg": "unexpected extra argument",
    "run ditto --batch-size 0": "--batch-size must be at least 1",
    "run ditto --chunk 0": "chunk must be at least 1",
    "run ditto --precision float16": "precision must be 'float32' or 'float64'",
    "run ditto --device abacus": "cannot compute on the device 'abacus'",
    "run ditto --start none.safetensors": "there is no file 'none.safetensors'.",
    "run ditto --start taken": "has no global model to start from",
    "run ditto --out taken": "'taken' already holds a run; use --overwrite to replace it",
    "run ditto --out thesis": "'thesis' holds something that is not a run",
    "run ditto --out thesis --overwrite": "'thesis' holds something that is not a run",
    "run ditto --out own.npz": "it is a file",
    "run ditto --newcomers 1": "newcomers must be in [0, 1), the share of clients held back from training, got 1.0.",
    "run ditto --newcomers 0.5 --clients 1 --split iid": "needs at least 2 clients",
    "run local --keep-rounds": "local has no global model to keep of every round; leave --keep-rounds out.",
    "run --config key.toml": "unknown key 'ronds'; did you mean 'rounds'?",
    "run --config type.toml": "rounds must be an integer, got 'three'.",
    "run --config half.toml": "'half.toml' must be a TOML file",
    "run --config none.toml": "cannot read the config 'none.toml'",
    "methods dito": "unknown method 'dito'; did you mean 'ditto'?",
    "rn": "No such command 'rn'",
    "demo --rounds 0": "Invalid value for '--rounds'",
    "bench --only sonnet": "unknown bench case 'sonnet'",
    "bench --methods --only sonnet": "unknown method 'sonnet'",
    "bench --methods --scale": "give one of them",
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


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run, one that was interrupted, and data for both."""
    folder = tmp_path_factory.mktemp("runs")
    rng = np.random.default_rng(0)
    x, y, client = (
        rng.normal(size=(40, 4)),
        np.arange(40) % 3,
        np.array(["ada", "ben", "cleo", "dan"])[np.arange(40) % 4],
    )
    np.savez(folder / "own.npz", x=x, y=y, client=client)
    np.savez(folder / "new.npz", x=x[:20], y=y[:20], client=np.array(["gil", "hal"])[np.arange(20) % 2])
    np.savez(folder / "unnamed.npz", x=x[:20], y=y[:20])
    np.savez(folder / "wide.npz", x=rng.normal(size=(6, 5)), y=np.arange(6) % 3)
    np.savez(folder / "labels.npz", x=x, y=y + 1)
    np.savez(folder / "empty.npz", x=x[:0], y=y[:0])
    np.savez(folder / "x.npz", x=x[:3])
    (folder / "thesis").mkdir()
    (folder / "thesis" / "thesis.tex").write_text("years")
    result = bf.run("ditto", bf.load(folder / "own.npz").split("by_column"), model="logistic", rounds=2, workers=1)
    result.save(folder / "done")
    result.about["interrupted"] = True
    result.save(folder / "halfway")
    return folder


LATER = {
    "tune": "a run needs a method, got none",
    "tune dito --grid prox_weight=1": "unknown method 'dito'; did you mean 'ditto'?",
    "tune ditto": 'a grid needs at least one key and its values, such as "prox_weight=0.1,1,2", got none.',
    "tune ditto --grid proxweight=1,2": "unknown grid key for ditto 'proxweight'; did you mean 'prox_weight'?",
    "tune ditto --grid prox_weight": "--grid must be followed by key=value,value, such as prox_weight=0.1,1",
    "tune ditto --grid prox_weight=": "--grid must be followed by key=value,value",
    "tune ditto --grid prox_weight=1,,2": "--grid must be followed by key=value,value",
    "tune ditto --grid =1,2": "--grid must be followed by key=value,value",
    "tune ditto --grid prox_weight=1,two": "prox_weight of ditto must be a number, got 'two'.",
    "tune ditto --grid prox_weight=1,-1": "prox_weight must be >= 0",
    "tune ditto --grid prox_weight=1 --grid prox_weight=2": "the grid has prox_weight twice; give all its values",
    "tune ditto --grid prox_weight=1,1": "the grid has prox_weight=1.0 twice",
    "tune ditto --grid prox_weight=1 --set prox_weight=2": "prox_weight has both a fixed value and values in the grid",
    "tune ditto --grid rounds=0": "rounds must be at least 1, got 0.",
    "tune ditto --grid prox_weight=1 --seeds 0,x": "--seeds must be a number of seeds, such as 5, or seeds",
    "tune ditto --grid prox_weight=1 --seeds 0,0": "--seeds 0,0 has seed 0 twice; give different seeds.",
    "tune ditto --grid prox_weight=1 --out thesis": "'thesis' holds something that is not a tuning",
    "tune ditto --grid prox_weight=1 --out done": "'done' holds something that is not a tuning",
    "personalize done": "Missing option '--data'",
    "personalize none --data new.npz": "'none' is not the directory of a run",
    "personalize halfway --data new.npz": "newcomers need a finished run, but the one in 'halfway' was interrupted",
    "predict halfway --client 1 --data new.npz": "predictions need a finished run, but the one in 'halfway'",
    "personalize done --data none.npz": "no file 'none.npz'; give a path to an .npz file.",
    "personalize done --data x.npz": "'x.npz' must have an array y",
    "personalize done --data wide.npz": "must have examples of shape (4,), as the run was trained with, got (5,).",
    "personalize done --data labels.npz": "'labels.npz' must be among those of the run, 0, 1, 2, got 3.",
    "personalize done --data empty.npz": "x must hold at least one example, got none",
    "personalize done --data new.npz --client hall": "there are gil, hal; did you mean 'hal'?",
    "personalize done --data new.npz --out thesis": "'thesis' holds something that is not newcomers' models",
    "personalize done --data new.npz --out done": "'done' holds something that is not newcomers' models",
    "personalize done --data new.npz --device abacus": "cannot compute on the device 'abacus'",
    "predict done --data x.npz": "Missing option '--client'",
    "predict none --client ada --data x.npz": "'none' is not the directory of a run",
    "predict done --client adda --data x.npz": "there is no client 'adda'; there are ada, ben, cleo, dan; did you",
    "predict done --client 7 --data x.npz": "there is no client '7'; there are ada, ben, cleo, dan.",
    "predict done --client ada --data wide.npz": "must have examples of shape (4,), as the run was trained with",
    "predict done --client ada --data none.npz": "no file 'none.npz'",
    "predict done --client ada --data x.npz --out own.npz": "'own.npz' exists already; use --overwrite",
    "predict done --client ada --data x.npz --out thesis": "'thesis' is a directory; give the name of a file",
}


@pytest.mark.parametrize("line", LATER)
def test_a_mistake_before_or_after_a_run_is_one_sentence(
    line: str, runs: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(runs)
    before = everything(runs)
    assert bespoke(line) == 2
    printed = capfd.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("error: ") and printed.err.count("\n") == 1
    assert LATER[line] in printed.err
    assert everything(runs) == before


def test_where_to_write_is_checked_before_anything_is_trained(
    material: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("bespokefl.workflows.run.api.simulate", lambda *_: pytest.fail("it trained first"))
    assert bespoke("run ditto --out taken") == 2
    assert "already holds a run" in capsys.readouterr().err


# -- a run


def test_the_command_of_the_readme_and_its_repetition(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    line = (
        'run ditto --data digits --split "dirichlet(alpha=0.4)" --clients 20 --model mlp --rounds 20 '
        "--participation 0.5 --batch-size 32 --local-epochs 1 --set lr=0.1 --set personal_lr=0.1 --set prox_weight=1 "
        "--seed 0 --out runs/ditto"
    )
    assert bespoke(line) == 0
    printed = capsys.readouterr()
    assert printed.err == ""  # no bar where there is no terminal
    found = json.loads(Path("runs/ditto/result.json").read_text())
    line = next(line for line in printed.out.splitlines() if "personal accuracy, %" in line)
    figures = ("mean", "weighted_mean", "std", "worst", "worst_decile")
    assert line.split()[-5:] == [f"{100 * found['personal']['accuracy'][name]:.2f}" for name in figures]
    assert "Written to runs/ditto" in printed.out
    assert found["hyper"] == methods.Ditto(lr=0.1, personal_lr=0.1, prox_weight=1).hyper()
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
        'method = "ditto"\nrounds = 3\nbatch-size = 8\nclients = 4\nseed = 5\n[set]\nlr = 0.5\nprox_weight = 2\n'
    )
    assert bespoke("run --config my.toml --rounds 2 --seed 0 --set lr=0.25 --out run") == 0
    found = json.loads(Path("run/result.json").read_text())
    assert (found["rounds"], found["seed"], found["settings"]["batch_size"]) == (2, 0, 8)
    assert (found["hyper"]["lr"], found["hyper"]["prox_weight"]) == (0.25, 2.0)
    assert bespoke("run fedavg --config my.toml --out other") == 0
    assert "warning: [set] in the config is for ditto and is not used for fedavg." in capsys.readouterr().err
    assert json.loads(Path("other/result.json").read_text())["hyper"] == methods.FedAvg().hyper()


def test_own_data_model_and_split_are_found_from_elsewhere(material: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert bespoke("run ditto --data own.npz --rounds 2 --workers 1 --out run") == 0  # by_column: the data name clients
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
    found = options._hyper([f"some-key={text}"])
    assert found == {"some_key": value}
    assert type(found["some_key"]) is type(value)


# -- newcomers, predictions, tuning


def test_a_run_with_newcomers_shows_them_apart(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        bespoke(f"run persfl --data {runs}/own.npz --split by_column --rounds 2 --newcomers 0.25 --keep-rounds --out r")
        == 0
    )
    printed = capsys.readouterr().out
    found = json.loads(Path("r/result.json").read_text())
    for kind in ("personal", "finetune"):
        line = next(line for line in printed.splitlines() if f"newcomers {kind} accuracy, %" in line)
        assert f" {100 * found['newcomers'][kind]['accuracy']['mean']:.2f} " in line
    assert "Finetune: the run's global model, trained on each newcomer's data with lr 0.1" in printed
    assert "newcomers.csv" in printed and found["clients"] == 3
    assert Path("r/rounds.safetensors").exists()
    assert bespoke("run --config r/config.toml --out again --quiet") == 0
    for name in ("newcomers.csv", "newcomers.safetensors", "rounds.safetensors", "server.safetensors"):
        assert Path("r", name).read_bytes() == Path("again", name).read_bytes(), name


def test_newcomers_of_a_file_and_their_predictions(here: Path, runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert bespoke(f"personalize {runs}/done --data {runs}/new.npz --out late") == 0
    printed = capsys.readouterr()
    assert printed.err == "" and "2 newcomers from" in printed.out and "Finetune:" in printed.out
    found = json.loads(Path("late/newcomers.json").read_text())
    assert f"{found['finetune']['loss']['mean']:.4f}" in printed.out
    line = next(line for line in printed.out.splitlines() if "finetune accuracy, %" in line)
    assert f" {100 * found['finetune']['accuracy']['mean']:.2f} " in line
    assert found["names"] == ["gil", "hal"] and found["origin"]["run"] == f"{runs}/done"
    advised = next(line for line in printed.out.splitlines() if "bespoke predict" in line).partition("bespoke ")[2]
    assert bespoke(advised.replace("x.npz", f"{runs}/x.npz")) == 0
    assert capsys.readouterr().out == "Written to predictions.csv: 3 predictions by the model of client gil.\n"
    assert Path("predictions.csv").read_text().startswith("example,label,probability_0,probability_1,probability_2\n")

    assert bespoke(f"personalize {runs}/done --data {runs}/unnamed.npz --client ward --quiet") == 0
    assert capsys.readouterr().out == "runs/newcomers\n"
    assert bespoke(f"personalize {runs}/done --data {runs}/new.npz --client hal --out late --overwrite --quiet") == 0
    assert json.loads(Path("late/newcomers.json").read_text())["names"] == ["hal"]
    assert bespoke(f"personalize {runs}/done --data {runs}/new.npz --client hal --out alone") == 0
    assert ": 1 newcomer from" in capsys.readouterr().out
    assert bespoke(f"predict {runs}/done --client ben --data {runs}/x.npz --overwrite") == 0
    assert bespoke(f"predict late --client hal --data {runs}/x.npz --out second.csv") == 0
    assert bespoke(f"predict runs/newcomers --client ward --data {runs}/x.npz --out third.csv") == 0


def test_tuning_shows_the_table_and_the_line_to_use(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = f"--data {runs}/own.npz --split by_column --model logistic --workers 1"
    grid = "--grid prox_weight=0.1,2 --grid 'rounds=1,3'"
    assert bespoke(f"tune ditto {grid} {options} --set lr=0.1 --seeds 0,1 --out t") == 0
    printed = capsys.readouterr()
    assert printed.err == ""
    held = json.loads(Path("t/tuning.json").read_text())
    for point in held["points"]:
        words = [str(point["prox_weight"]), str(point["rounds"]), f"{100 * point['validation_accuracy']:.2f}"]
        line = next(
            line.split() for line in printed.out.splitlines() if [w for w in line.split() if w != "*"][:2] == words[:2]
        )
        assert words[2] in line
        assert (line[0] == "*") == (held["chosen"] == {key: point[key] for key in ("prox_weight", "rounds")})
    best = held["chosen"]
    assert (
        f"mean validation accuracy, mean of 2 seeds: prox_weight={best['prox_weight']}, rounds={best['rounds']}"
        in printed.out
    )
    flags = f"--set prox_weight={best['prox_weight']} --rounds {best['rounds']}"
    advised = next(line for line in printed.out.splitlines() if line.startswith("To use it: "))
    assert advised == f"To use it: bespoke run ditto {options} --set lr=0.1 {flags}"
    assert bespoke(f"tune ditto {grid} {options} --set lr=0.1 --seeds 0,1 --out t --quiet") == 0
    assert capsys.readouterr().out == flags + "\n"
    assert bespoke(advised.partition("bespoke ")[2] + " --out best") == 0


def test_a_tuning_that_finds_nothing_says_why(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    line = f"tune ditto --grid personal_lr=1e30,1e31 --data {runs}/own.npz --split by_column --rounds 1 --workers 1"
    assert bespoke(line) == 2
    printed = capsys.readouterr()
    assert printed.out.count("failed") == 2 and "Written to runs/tune-ditto" in printed.out
    assert printed.err.startswith("error: none of the 2 points could be trained; the first error: the weights")
    assert printed.err.count("\n") == 1


def test_ctrl_c_while_tuning_keeps_the_points_that_are_done(
    runs: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupt(step: Step) -> None:
        if step.number == at:
            os.kill(os.getpid(), signal.SIGINT)

    at = 2
    monkeypatch.setattr(terminal, "progress_bar", lambda *_: nullcontext(interrupt))
    line = (
        f"tune ditto --grid prox_weight=0.1,1,2 --data {runs}/own.npz --split by_column --rounds 3 --workers 1 --out t"
    )
    assert bespoke(line) == 130
    assert "Interrupted. To resume: the same command with --out t" in capsys.readouterr().out
    assert len(json.loads(Path("t/tuning.json").read_text())["cells"]) == 1
    at = 0
    assert bespoke(line) == 0
    assert len(json.loads(Path("t/tuning.json").read_text())["cells"]) == 3
    capsys.readouterr()
    at = 1
    assert bespoke(line.replace("--out t", "--out other")) == 130
    assert capsys.readouterr().err.endswith("error: interrupted.\n")
    assert not Path("other").exists()


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("1", [1]),
        ("0.1, 1,2", [0.1, 1, 2]),
        ("equal,examples", ["equal", "examples"]),
        ("true,False", [True, False]),
        ("(0, 0.5),(1,)", [(0, 0.5), (1,)]),
        ("[1, 2],[3]", [[1, 2], [3]]),
    ],
)
def test_values_of_a_grid(text: str, values: list[Any]) -> None:
    assert tune.read_grid([f"some-key={text}"]) == {"some_key": values}


# -- Ctrl-C


def test_ctrl_c_ends_after_the_round_with_results(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupt(now: Progress) -> None:
        if now.done == 2:
            os.kill(os.getpid(), signal.SIGINT)

    with monkeypatch.context() as patch:
        patch.setattr(terminal, "progress_bar", lambda *_: nullcontext(interrupt))
        assert bespoke("run local --rounds 6 --workers 1 --clients 4 --out run") == 130
    printed = capsys.readouterr()
    assert printed.err == "warning: stopping after this round; press Ctrl-C again to stop at once\n"
    assert "Interrupted after round 3 of 6." in printed.out and "To resume: bespoke resume run" in printed.out
    assert json.loads(Path("run/result.json").read_text())["interrupted"] is True
    assert bespoke("resume run") == 0
    assert bespoke("run local --rounds 6 --workers 1 --clients 4 --out whole") == 0
    assert Path("run/clients.csv").read_bytes() == Path("whole/clients.csv").read_bytes()
    assert not Path("run/checkpoints").exists()
    capsys.readouterr()
    assert bespoke("resume run") == 2
    assert capsys.readouterr().err == "error: the run in 'run' is finished; there is nothing to resume.\n"


def test_ctrl_c_before_there_is_anything(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("bespokefl.workflows.run.api.run_config", interrupt)
    assert bespoke("run local") == 130
    assert capsys.readouterr().err == "error: interrupted.\n"
    assert everything(here) == {}


# -- the other commands


def test_help_and_version_are_quick_and_leave_torch_alone() -> None:
    script = "import sys; from bespokefl import cli\ntry: cli.main(['{}'])\nfinally: print('torch' in sys.modules)"
    for asked, expected in (("--help", "bench"), ("--version", "bespoke ")):
        took = []
        while len(took) < 3 and min(took, default=1.0) >= 1:  # seconds of the processor: others may use it, too
            before = resource.getrusage(resource.RUSAGE_CHILDREN)
            printed = subprocess.run([sys.executable, "-c", script.format(asked)], capture_output=True, text=True)
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
            assert printed.returncode == 0
            assert expected in printed.stdout
            assert printed.stdout.splitlines()[-1] == "False"
            took.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
        assert min(took) < 1


@pytest.mark.parametrize("group", ["", "data", "new", "deploy"])
def test_no_command_shows_the_help(group: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert bespoke(group) == 0
    printed = capsys.readouterr()
    assert f"Usage: bespoke {group}".strip() in printed.out
    assert printed.err == ""


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
        assert literal(value) in line
    assert method.citation in printed
    assert "Differs from the paper" in printed


def test_a_hyper_parameters_meaning_is_the_comment_beside_it() -> None:
    found = {name: (default, meaning) for name, default, meaning in hyperparameters(methods.Ditto)}
    assert found["prox_weight"] == (1.0, "λ; 0 is Local")
    assert found["momentum"] == (0.0, "")


def test_models_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert bespoke("models") == 0
    printed = capsys.readouterr().out
    assert all(name in printed for name in ("logistic", "mlp", "lenet", "module:function"))


@pytest.mark.slow
def test_the_demo_shows_methods_and_writes_a_report(
    here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[str] = []
    monkeypatch.setattr("webbrowser.open", opened.append)
    assert bespoke("demo --rounds 1 --seed 1 --open") == 0
    printed = capsys.readouterr()
    lines = [line.split() for line in printed.out.split("Accuracy of each")[0].splitlines()]
    shown = {line[0]: line for line in lines if line and line[0] in methods.REGISTRY}
    assert sorted(shown) == sorted(demo.HYPER)
    assert shown["local"][5] == "-" and float(shown["ditto"][1]) > 1  # no share is
    assert max(map(len, printed.out.split(demo.CHOSEN_BEFOREHAND)[1].splitlines()[:-3])) <= 81
    assert "relative to fedavg" in printed.out and "ditto trains two models" in " ".join(printed.out.split())
    page = here / "runs" / "demo" / "report.html"
    *_, sentence, _, path = printed.out.splitlines()  # after the table, one sentence and the path, nothing more
    assert sentence.startswith("A model that each client trains alone (local) recognizes") and sentence.endswith(".")
    assert path == f"The report: {page.relative_to(here)}" and opened == [page.as_uri()]
    assert "Untuned" not in page.read_text(encoding="utf-8") and "chosen beforehand" in page.read_text(encoding="utf-8")
    assert json.loads((page.parent / "compare.json").read_text())["command"] == "bespoke demo --rounds 1 --seed 1"
    assert bespoke("demo --out runs/demo") == 2  # nothing is replaced
    assert "runs/demo" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("gradients", "head", "says"),
    [
        (100, 0, " % of the clients."),
        (500, 0, " % of the clients, for 5.0 times the gradients of fedavg."),
        (100, 1000, " % of the clients, for 10 times as many gradients of the last layer in addition."),
    ],
)
def test_the_sentence_of_the_demo_says_what_the_best_method_computes_in_addition(
    gradients: int, head: int, says: str
) -> None:
    def figures(mean: float, work: int, head_work: int = 0, gain: dict[str, float] | None = None) -> dict[str, Any]:
        computed = {"gradients": work, "head_gradients": head_work}
        return {"accuracy": {"mean": mean}, "work": computed, "gain": gain}

    best = figures(0.9, gradients, head, {"improved_share": 55.0})
    known = {"local": figures(0.7, 100), "fedavg": figures(0.8, 100), "persfl": best}
    found: Any = SimpleNamespace(figures=known, ranking=["persfl", "fedavg", "local"])
    sentence = demo.meaning(found)
    assert sentence.endswith(
        f"with persfl every client gets a model of its own that also learns from the others: 90 %, "
        f"better than both for 55{says}"
    )


def test_the_demo_of_all_methods_marks_those_that_are_not_tuned() -> None:
    assert demo.marked("ditto") == "ditto" and demo.marked("fedrep") == "fedrep °"
    clients = demo.demo_clients()
    assert "with ° are not tuned" in demo.introduction(clients, everything=True)[1]
    assert "°" not in " ".join(demo.introduction(clients))


def test_all_methods_of_the_demo_can_run_on_its_clients() -> None:
    clients = demo.demo_clients()
    assert clients.groups is not None and {*demo.HYPER} < {*methods.REGISTRY}
    assert all(methods.build(name, dict(hyper)).name == name for name, hyper in demo.HYPER.items())


def test_the_hyper_parameters_of_the_demo_are_inside_of_grids_of_one_size() -> None:
    assert demo.GRIDS.keys() == demo.HYPER.keys()
    for name, grid in demo.GRIDS.items():
        assert math.prod(map(len, grid.values())) == 9
        for key, values in grid.items():
            assert min(values) < demo.HYPER[name][key] < max(values) and demo.HYPER[name][key] in values


def test_bench_is_asked_for_what_was_typed(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[dict[str, Any]] = []
    monkeypatch.setattr("bespokefl_evidence.benchmarks.speed.main", lambda **how: asked.append(how) or [])
    assert bespoke("bench --quick --only mlp") == 0
    assert asked == [{"quick": True, "only": "mlp"}]
    for kind in ("methods", "scale"):
        monkeypatch.setattr(f"bespokefl_evidence.benchmarks.{kind}.main", lambda **how: asked.append(how) or [])
    assert bespoke("bench --methods --only ifca") == 0 and bespoke("bench --scale --quick") == 0
    assert asked[1:] == [{"quick": False, "only": "ifca"}, {"quick": True}]


# -- the terminal


def test_scores_as_people_read_them() -> None:
    assert [score_tables.format_score(value, "accuracy") for value in (0.98765, 1.0, 0.0, None)] == [
        "98.77",
        "100.00",
        "0.00",
        "-",
    ]
    assert [score_tables.format_score(value, "loss") for value in (0.98765, 12345.6, None)] == [
        "0.9877",
        "1.235e+04",
        "-",
    ]
    assert [score_tables.column_title(score) for score in ("validation_accuracy", "loss")] == [
        "validation accuracy, %",
        "loss",
    ]


def test_the_bar_shows_round_scores_and_time() -> None:
    screen = Console(file=io.StringIO(), force_terminal=True, width=120)
    with terminal.progress_bar(screen, "ditto") as report:
        assert report is not None
        report(Progress(1, 40, "train"))
        report(Progress(10, 40, "survey", {"validation_loss": 0.25, "validation_accuracy": 0.875, "other": 1.0}))
        report(Progress(11, 40, "train"))  # not evaluated
    assert isinstance(screen.file, io.StringIO)
    shown = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", screen.file.getvalue())
    assert "ditto" in shown and "round 1/40" in shown
    assert re.search(r"round 10/40 \(survey\) validation loss 0.2500, accuracy 87.50 % \d\d:\d\d left", shown)
    assert re.search(r"round 11/40 validation loss 0.2500, accuracy 87.50 %", shown)


def test_one_bar_shows_all_points_of_a_grid() -> None:
    screen = Console(file=io.StringIO(), force_terminal=True, width=140)
    with terminal.progress_bar(screen, "ditto") as report:
        assert report is not None
        report(Step("prox_weight=1.0", 1, 4, Progress(1, 2, "train"), 0.5))
        report(Step("prox_weight=2.0, seed 1", 3, 4, Progress(2, 2, "train", {"validation_loss": 0.25}), 3.0))
    assert isinstance(screen.file, io.StringIO)
    shown = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", screen.file.getvalue())
    assert "1/4 prox_weight=1.0, round 1/2" in shown
    assert re.search(r"3/4 prox_weight=2.0, seed 1, round 2/2 validation loss 0.2500 \d\d:\d\d left", shown)


@pytest.mark.parametrize(("is_terminal", "quiet"), [(False, False), (True, True)])
def test_there_is_no_bar_where_nobody_looks(is_terminal: bool, quiet: bool) -> None:
    screen = Console(file=io.StringIO(), force_terminal=is_terminal)
    with terminal.progress_bar(screen, "ditto", quiet) as report:
        assert report is None
    assert isinstance(screen.file, io.StringIO) and screen.file.getvalue() == ""


def test_sizes_for_people() -> None:
    assert [terminal.format_bytes(n) for n in (0, 999, 1000, 6_008_000, 3e12, 5e15)] == [
        "0 B",
        "999 B",
        "1.0 kB",
        "6.0 MB",
        "3.0 TB",
        "5000.0 TB",
    ]


def test_the_marks_of_a_comparison_are_explained() -> None:
    from bespokefl.cli.terminal import marks_in_words
    from bespokefl.metrics.significance import standing

    steps = np.linspace(0, 0.1, 20)
    scores = {"best": 0.8 + steps, "equal": 0.8 + steps + np.tile([0.001, -0.0011], 10), "worse": 0.5 + steps**2}
    found = marks_in_words(standing(scores), " %")
    assert found == (
        "* the best mean; = equal to it within 1 point; no mark: significantly worse "
        "(mixed model over seeds and clients, Holm, 5 %)."
    )
    assert "; ? too few clients or seeds to tell it from the best" in marks_in_words(
        standing({"a": [0.9], "b": [0.1]}), ""
    )
    assert marks_in_words(standing({"only": [0.5, 0.6]}), " %") == "* the best mean."
