"""Trackers hold what a run logged: every round once, also if it was killed and resumed."""

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import bespokefl as bf
from bespokefl import trackers
from bespokefl.cli import main
from bespokefl.core.errors import InputError
from bespokefl.data import Clients
from bespokefl.engines.outcome import Progress
from bespokefl.trackers import tracker
from tests.trackers.readers import Figures, read_mlflow, read_tensorboard, read_wandb

SMALL: dict[str, Any] = {"model": "logistic", "rounds": 5, "workers": 1, "eval_every": 2}


@pytest.fixture(scope="module")
def clients() -> Clients:
    x = np.random.default_rng(1).normal(size=(60, 3))
    return Clients.from_arrays(x, (x[:, 0] > 0).astype(int), np.arange(60) % 3)


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name in ("MLFLOW_TRACKING_URI", "WANDB_MODE", "WANDB_DIR"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


TRACKERS = [
    pytest.param(
        "tensorboard(clients=true)", lambda here: read_tensorboard(here / "tensorboard/run"), id="tensorboard"
    ),
    pytest.param("wandb(clients=True)", lambda here: read_wandb(here / "wandb"), id="wandb", marks=pytest.mark.slow),
    pytest.param("mlflow(clients=true)", read_mlflow, id="mlflow", marks=pytest.mark.slow),  # making its tables is slow
]


@pytest.mark.parametrize(("log", "read"), TRACKERS)
def test_a_killed_and_resumed_run_logs_every_round_once(
    log: str, read: Callable[[Path], Figures], clients: Clients, here: Path
) -> None:
    """The run dies in round 4, after the checkpoint of round 2 and after round 3 was logged."""

    def die(now: Progress) -> None:
        if now.done == 3:
            raise ZeroDivisionError

    given = {"checkpoint": here / "run", "checkpoint_every": 2, "log": log, **SMALL}
    with pytest.raises(ZeroDivisionError):
        bf.run("ditto", clients, progress=die, **given)
    result = bf.run("ditto", clients, **given)
    found = read(here)
    assert [step for step, _ in found["round/seconds"]] == [1, 2, 3, 4, 5]
    assert [step for step, _ in found["personal/validation_accuracy"]] == [0, 2, 4, 5]
    evaluated = [line["personal"]["test_loss"] for line in result.rounds if "personal" in line]
    assert [value for _, value in found["personal/test_loss"]][1:] == pytest.approx(evaluated)
    costs = [line["up_bytes"] for line in result.rounds]
    assert [value for _, value in found["round/up_bytes"]] == pytest.approx(costs)
    final = dict(found["final/personal/test_accuracy"])
    assert final == {5: pytest.approx(float(np.nanmean(result.personal["accuracy"])))}
    for name, accuracy in zip(result.names, result.personal["accuracy"], strict=True):
        steps = found[f"clients/{name}/personal/test_accuracy"]
        assert [step for step, _ in steps] == [2, 4, 5] and steps[-1][1] == pytest.approx(accuracy)
    repeated = {
        name: steps for name, values in found.items() if max((steps := Counter(s for s, _ in values)).values()) > 1
    }
    assert not repeated


def test_a_tracker_that_joins_later_logs_the_earlier_rounds_too(clients: Clients, here: Path) -> None:
    def die(now: Progress) -> None:
        if now.done == 3:
            raise ZeroDivisionError

    given = {"checkpoint": here / "run", "checkpoint_every": 2, **SMALL}
    with pytest.raises(ZeroDivisionError):
        bf.run("ditto", clients, progress=die, **given)
    result = bf.run("ditto", clients, log="tensorboard", **given)
    found = read_tensorboard(here / "tensorboard/run")
    assert [step for step, _ in found["round/up_bytes"]] == [1, 2, 3, 4, 5]
    losses = [line["personal"]["test_loss"] for line in result.rounds if "personal" in line]
    assert [value for _, value in found["personal/test_loss"]][1:] == pytest.approx(losses)
    assert not [name for name in found if name.startswith("clients/")]  # only on request


def test_every_run_has_its_own_directory(clients: Clients, here: Path) -> None:
    for _ in range(2):
        bf.run("fedavg", clients, log="tensorboard", seed=3, **SMALL)
    bf.run("fedavg", clients, callbacks=[trackers.TensorBoard(dir="elsewhere", name="mine")], **SMALL)
    assert sorted(path.name for path in (here / "tensorboard").iterdir()) == ["fedavg-3", "fedavg-3-2"]
    assert read_tensorboard(here / "elsewhere/mine").keys() >= {"personal/test_loss", "global/test_loss"}


@pytest.mark.slow
def test_of_a_comparison_the_compared_runs_are_logged_and_not_its_tuning(clients: Clients, here: Path) -> None:
    given = SMALL | {"rounds": 2, "log": "tensorboard"}
    bf.compare(["ditto"], clients, seeds=(0, 1), tune=60, grids={"ditto": {"lr": (0.1, 0.2)}}, **given)
    names = [f"{method}-{seed}" for method in ("ditto", "fedavg", "local") for seed in (0, 1)]
    assert sorted(path.name for path in (here / "tensorboard").iterdir()) == names


def test_a_tuning_logs_every_point(clients: Clients, here: Path) -> None:
    bf.tune("ditto", clients, grid={"lr": (0.1, 0.2)}, model="logistic", rounds=2, workers=1, log="tensorboard")
    assert sorted(path.name for path in (here / "tensorboard").iterdir()) == ["ditto-0", "ditto-0-2"]


def test_the_command_line_logs_and_its_config_says_so(here: Path) -> None:
    command = "run fedavg --model logistic --clients 3 --rounds 2 --workers 1 --out runs/few --quiet"
    with pytest.raises(SystemExit) as ended:
        main([*command.split(), "--log", "tensorboard(clients=true)"])
    assert ended.value.code == 0
    assert 'log = "tensorboard(clients=true)"' in (here / "runs/few/config.toml").read_text()
    found = read_tensorboard(here / "tensorboard/few")
    assert [step for step, _ in found["round/trained"]] == [1, 2]
    assert any(name.startswith("clients/") for name in found)


@pytest.mark.parametrize(
    ("log", "sentence"),
    [
        ("tensrboard", "unknown tracker 'tensrboard'; did you mean 'tensorboard'"),
        ("tensorboard(cliens=true)", "unknown key of tensorboard 'cliens'; did you mean 'clients'"),
        ("tensorboard mlflow", 'expected a name such as "this" or "this'),
    ],
)
def test_mistakes_are_found_before_training(log: str, sentence: str, clients: Clients, here: Path) -> None:
    for train in (
        lambda: bf.run("ditto", clients, log=log),
        lambda: bf.compare(["ditto"], clients, log=log),
        lambda: bf.tune("ditto", clients, grid={"lr": (0.1,)}, log=log),
    ):
        with pytest.raises(InputError, match=sentence.replace("(", r"\(")):
            train()
    assert not list(here.iterdir())


@pytest.mark.parametrize(
    ("log", "package"), [("tensorboard", "tensorboardX"), ("mlflow", "mlflow"), ("wandb", "wandb")]
)
def test_a_missing_package_is_one_sentence(
    log: str, package: str, clients: Clients, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tracker, "find_spec", lambda name: None if name == package else object())
    with pytest.raises(InputError, match=rf'needs {package}, which is not installed; pip install "bespokefl\[{log}\]"'):
        bf.run("ditto", clients, log=log)


def test_several_trackers_are_separated_by_commas() -> None:
    found = trackers.of("tensorboard(clients=true, dir='x'), wandb, mlflow(experiment='e')")
    assert [type(one).__name__ for one in found] == ["TensorBoard", "WandB", "MLflow"]
    assert [one.clients for one in found] == [True, False, False]
    assert trackers.of("") == []
