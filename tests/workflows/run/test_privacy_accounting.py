"""Clip and noise as options of a run: what is told at the end, and what is refused."""

import json
from pathlib import Path
from typing import Any

import pytest

from bespokefl import methods
from bespokefl.cli import main
from bespokefl.core.errors import InputError
from bespokefl.data import Clients, load
from bespokefl.metrics import differential_privacy
from bespokefl.metrics.differential_privacy import epsilon
from bespokefl.workflows.run.api import run, run_config
from bespokefl.workflows.run.settings import RunSettings
from tests.faults.test_resume import contents

QUICK: dict[str, Any] = {"rounds": 3, "workers": 1, "model": "logistic", "batch_size": 64, "eval_every": 0}


@pytest.fixture(scope="module")
def digits() -> Clients:
    return load("digits").split("dirichlet(alpha=0.4)", clients=5, seed=0)


def test_every_client_s_epsilon_is_told(digits: Clients, tmp_path: Path) -> None:
    options = QUICK | {"clip": 1.0, "noise": 4.0, "participation": 0.5}
    result = run(methods.UCFL(), digits, **options, delta=1e-6)
    result.save(tmp_path / "run")
    told = json.loads((tmp_path / "run" / "result.json").read_text())["privacy"]
    reported = [line["reported"] for line in result.rounds]
    assert reported == [5, 2, 2, 2]  # the survey, then half of the clients
    assert sum(told["uploads"].values()) == 11 and min(told["uploads"].values()) >= 1
    for client, count in told["uploads"].items():
        assert told["epsilon"][client] == pytest.approx(epsilon(4.0, count, 1e-6))
    largest = epsilon(4.0, max(told["uploads"].values()), 1e-6)
    assert told["largest_epsilon"] == pytest.approx(largest)
    assert (told["clip"], told["noise"], told["delta"]) == (1.0, 4.0, 1e-6)
    assert any(f"ε ≤ {largest:.3g} at δ = 1e-06" in note for note in result.notes)


def test_without_noise_nothing_is_told_and_no_accountant_is_needed(
    digits: Clients, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(differential_privacy, "find_spec", lambda name: None)
    for options in ({}, {"clip": 1.0}, {"clip": 1.0, "noise": 0.0}):
        result = run("fedavg", digits, **QUICK, **options)
        assert result.about["privacy"] is None and not any("ε" in note for note in result.notes)
    with pytest.raises(InputError, match=r'pip install "bespokefl\[privacy\]"'):
        run("fedavg", digits, **QUICK, clip=1.0, noise=1.0)


def test_a_run_can_be_repeated_from_its_config(tmp_path: Path) -> None:
    config = RunSettings(method="selffl", clients=4, clip=0.5, noise=0.1, out=str(tmp_path / "a"), **QUICK)
    run_config(config)
    with pytest.raises(SystemExit) as ended:
        main(["run", "--config", str(tmp_path / "a" / "config.toml"), "--out", str(tmp_path / "b"), "--quiet"])
    assert ended.value.code == 0
    one, two = contents(tmp_path / "a"), contents(tmp_path / "b")
    assert one["result.json"]["privacy"] == two["result.json"]["privacy"] is not None
    assert one["personal.safetensors"] == two["personal.safetensors"]


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (["fedavg", "--noise", "1"], "error: --noise needs --clip, as it is measured in units of it, got 1 alone."),
        (["fedavg", "--clip", "0"], "error: --clip must be a number > 0, the maximum norm of an upload, got 0.0."),
        (["fedavg", "--clip", "1", "--noise", "-1"], "error: --noise must be a number >= 0"),
        (["fedavg", "--clip", "1", "--noise", "nan"], "error: --noise must be a number >= 0"),
        (["fedavg", "--clip", "1", "--noise", "1", "--delta", "2"], "error: --delta must be in (0, 1)"),
        (["ifca", "--clip", "1", "--rounds", "1"], "error: ifca uploads each client's choice (cluster)"),
    ],
)
def test_mistakes_are_one_sentence(flags: list[str], sentence: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["run", *flags])
    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert said.startswith(sentence) and said.count("\n") == 1


def test_an_accountant_that_is_not_installed_is_told_before_training(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(differential_privacy, "find_spec", lambda name: None)
    with pytest.raises(SystemExit) as ended:
        main(["run", "fedavg", "--clip", "1", "--noise", "1"])
    assert ended.value.code == 2
    assert 'pip install "bespokefl[privacy]"' in capsys.readouterr().err
