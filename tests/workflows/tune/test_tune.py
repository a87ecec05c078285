"""Tuning: every point of a grid on the same clients, chosen on validation data and on nothing else."""

import csv
import json
import logging
import os
import re
import shlex
import signal
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import bespokefl as bf
from bespokefl import cli, methods
from bespokefl.cli import terminal
from bespokefl.core.client_index import ClientIndex
from bespokefl.core.errors import InputError, TrainingError
from bespokefl.data.clients import Clients
from bespokefl.workflows.run import jobs
from bespokefl.workflows.run.api import run
from bespokefl.workflows.run.client_loading import hold_back
from bespokefl.workflows.run.jobs import Step
from bespokefl.workflows.run.settings import RunSettings
from bespokefl.workflows.tune import api as tuning_module
from bespokefl.workflows.tune.api import tune, tune_config
from bespokefl.workflows.tune.grid import expand
from bespokefl.workflows.tune.result import Tuning, run_command

pytestmark = pytest.mark.slow  # `make check` is to stay under two minutes

QUICK: dict[str, Any] = {"rounds": 2, "workers": 1, "batch_size": 16, "model": "logistic"}
GRID = {"prox_weight": (0.1, 2.0), "lr": (0.01, 0.5)}


def federation(num: int = 5, seed: int = 0) -> Clients:
    rng = np.random.default_rng(seed)
    client, y = np.arange(30 * num) % num, rng.integers(0, 3, 30 * num)
    x = rng.normal(size=(30 * num, 4)) + 1.5 * np.eye(4)[(y + client % 2) % 4]
    return Clients.from_arrays(x, y, client)


@pytest.fixture(scope="module")
def clients() -> Clients:
    return federation()


@pytest.fixture(scope="module")
def tuning(clients: Clients) -> Tuning:
    return tune("ditto", clients, grid=GRID, **QUICK)


def test_the_table_ends_with_the_constant_predictor(clients: Clients, tuning: Tuning, tmp_path: Path) -> None:
    known = run("local", clients, **QUICK).constant
    assert known is not None and tuning.constant is not None
    expected = float(np.nanmean(known["validation_accuracy"]))
    assert tuning.constant["validation_accuracy"] == pytest.approx(expected)
    table = terminal.tuning_table(tuning)
    columns = [[*column.cells] for column in table.columns]
    assert columns[1][-1] == "majority class" and f"{100 * expected:.2f}" in [column[-1] for column in columns]
    assert columns[0][-1] == "" and len(columns[0]) == len(tuning.points) + 1
    for cell in tuning.cells.values():
        cell_without = {key: value for key, value in cell.items() if key != "constant"}
        assert Tuning({}, tuning.points, (0,), {"": cell_without}, True).constant is None  # of earlier versions


# -- what is compared, and how it is chosen


def test_every_point_is_the_run_it_says(clients: Clients, tuning: Tuning) -> None:
    assert [(line["prox_weight"], line["lr"]) for line in tuning.table] == [
        (0.1, 0.01),
        (0.1, 0.5),
        (2.0, 0.01),
        (2.0, 0.5),
    ]
    for line in tuning.table:
        result = run(methods.Ditto(prox_weight=line["prox_weight"], lr=line["lr"]), clients, **QUICK)
        assert line["validation_accuracy"] == pytest.approx(float(result.personal["validation_accuracy"].mean()))
        assert line["validation_loss"] == pytest.approx(float(result.personal["validation_loss"].mean()))
        assert line["failed"] is None


def test_the_best_on_validation_data_is_chosen_and_can_be_run(clients: Clients, tuning: Tuning) -> None:
    values = [line["validation_accuracy"] for line in tuning.table]
    assert len(set(values)) > 1 and tuning.by == "validation_accuracy"
    first = values.index(max(values))
    assert tuning.chosen == first
    assert tuning.best == {key: tuning.table[first][key] for key in GRID}
    assert tuning.method == methods.Ditto(**tuning.best) and tuning.options == {}
    assert "<- chosen" in repr(tuning).splitlines()[1 + first]
    again = run(tuning.method, clients, **(QUICK | tuning.options))
    assert again.personal["validation_accuracy"].mean() == pytest.approx(max(values))


def test_ties_keep_the_first(clients: Clients) -> None:
    """Equal models, as Ditto's global rate does not touch the personal ones where nothing pulls."""
    for rates in ((0.01, 0.5), (0.5, 0.01)):
        found = tune(methods.Ditto(prox_weight=0.0), clients, grid={"lr": rates}, **QUICK)
        assert len({line["validation_accuracy"] for line in found.table}) == 1
        assert found.chosen == 0 and found.best == {"lr": rates[0]}


def test_a_tie_is_not_broken_by_the_last_bit(clients: Clients, tuning: Tuning) -> None:
    cells = {key: dict(cell) for key, cell in tuning.cells.items()}
    for at, (point, value) in enumerate(zip(tuning.points, (0.3, 0.1 + 0.2, 0.2, 0.1), strict=True)):
        cells[point.key(0)]["validation_accuracy"] = value
        assert at != 1 or value > 0.3
    assert Tuning(tuning.about, tuning.points, [0], cells, interrupted=False).chosen == 0


def test_poisoned_test_labels_change_nothing(clients: Clients, tuning: Tuning) -> None:
    poisoned = replace(clients, y=clients.y.clone())
    poisoned.y[clients.test.indices] = (poisoned.y[clients.test.indices] + 1) % 3
    best = run(tuning.method, clients, **QUICK), run(tuning.method, poisoned, **QUICK)
    assert best[0].personal["accuracy"].tolist() != best[1].personal["accuracy"].tolist()  # they would be seen
    found = tune("ditto", poisoned, grid=GRID, **QUICK)
    for line, other in zip(tuning.table, found.table, strict=True):
        assert {**line, "seconds": 0} == {**other, "seconds": 0}
    assert found.best == tuning.best


def test_test_data_that_overflow_stop_nothing(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(60, 3))
    clients = Clients.from_arrays(x, x.sum(1), np.arange(60) % 3)
    clients.y[clients.test.indices] = 1e30  # whose square is infinite
    result = run("ditto", clients, **QUICK)
    assert any("test loss is not finite" in note for note in result.notes)
    written = json.loads((result.save(tmp_path / "run") / "result.json").read_text())
    assert written["personal"]["loss"]["mean"] is None and written["personal"]["train_loss"]["mean"] > 0
    assert tune("ditto", clients, grid={"prox_weight": (0.1, 1)}, **QUICK).chosen is not None


def test_regression_is_chosen_by_loss() -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(80, 3))
    clients = Clients.from_arrays(x, x.sum(1), np.arange(80) % 4)
    found = tune("local", clients, grid={"lr": (0.001, 0.1, 0.01)}, **QUICK)
    assert found.by == "validation_loss"
    losses = [line["validation_loss"] for line in found.table]
    assert found.chosen == losses.index(min(losses)) == 1
    assert all(line["validation_accuracy"] is None for line in found.table)


def test_a_loss_of_ones_own_leaves_the_accuracy_to_choose_by(clients: Clients) -> None:
    def brier(outputs: Tensor, targets: Tensor) -> Tensor:
        return (outputs.softmax(-1) - nn.functional.one_hot(targets, 3)).square().sum(-1)

    assert tune("ditto", clients, grid={"lr": (0.1, 0.2)}, loss=brier, **QUICK).by == "validation_accuracy"


def test_a_number_of_seeds(clients: Clients) -> None:
    grid = {"prox_weight": (1.0,)}
    assert tune("ditto", clients, grid=grid, seeds=3, **QUICK).seeds == (0, 1, 2)


def test_several_seeds_are_averaged(clients: Clients) -> None:
    found = tune("ditto", clients, grid={"prox_weight": (0.1, 2.0)}, seeds=(3, 4), **QUICK)
    for line in found.table:
        own = [
            float(
                run(methods.Ditto(prox_weight=line["prox_weight"]), clients, seed=seed, **QUICK)
                .personal["validation_loss"]
                .mean()
            )
            for seed in (3, 4)
        ]
        assert own[0] != own[1]
        assert line["validation_loss"] == pytest.approx((own[0] + own[1]) / 2)
        assert line["validation_loss_std"] == pytest.approx(abs(own[0] - own[1]) / 2**0.5)


def test_settings_of_a_run_can_be_in_the_grid(clients: Clients) -> None:
    found = tune("ditto", clients, grid={"local_steps": (1, 30), "batch_size": (4, 8)}, **QUICK)
    assert [point.options["batch_size"] for point in found.points] == [4, 8, 4, 8]
    assert found.best["local_steps"] == 30 and found.options == found.best
    again = run(found.method, clients, **(QUICK | found.options))
    chosen = found.table[found.chosen or 0]
    assert again.personal["validation_accuracy"].mean() == pytest.approx(chosen["validation_accuracy"])


def test_the_start_is_shared(clients: Clients) -> None:
    start = {"head.weight": torch.full((3, 4), 0.25), "head.bias": torch.zeros(3)}
    found = tune(methods.Local(), clients, grid={"lr": (1e-30, 2e-30)}, start=start, **QUICK)
    at_start = run(methods.Local(lr=1e-30), clients, start=start, **QUICK).personal["validation_loss"].mean()
    assert [line["validation_loss"] for line in found.table] == pytest.approx([float(at_start)] * 2)
    assert found.about["start"]


def test_those_held_back_are_not_tuned_with(clients: Clients) -> None:
    found = tune("ditto", clients, grid={"prox_weight": (0.5,)}, newcomers=0.4, **QUICK)
    trained, _ = hold_back(clients, 0.4, 0)
    expected = run(methods.Ditto(prox_weight=0.5), trained, **QUICK).personal["validation_loss"].mean()
    assert found.table[0]["validation_loss"] == pytest.approx(float(expected))
    assert found.about["clients"] == list(trained.names)


def test_arrays_and_lists_are_values_too(clients: Clients) -> None:
    points = expand(
        methods.Ditto(), {"prox_weight": np.logspace(-1, 0, 2), "lr": [np.float32(0.5)]}, {"local_steps": None}
    )
    assert [point.values for point in points] == [{"prox_weight": 0.1, "lr": 0.5}, {"prox_weight": 1.0, "lr": 0.5}]
    (point,) = expand(methods.PersFL(), {"imitations": [[0, 0.5]]}, {"local_steps": None})
    assert point.values == {"imitations": (0, 0.5)}


# -- a point that fails


def test_a_point_that_diverges_is_kept_as_failed(clients: Clients, tmp_path: Path) -> None:
    found = tune("ditto", clients, grid={"personal_lr": (1e30, 0.1)}, seeds=(0, 1), out=tmp_path / "t", **QUICK)
    failed, done = found.table
    assert "non-finite" in failed["failed"] and failed["validation_accuracy"] is None
    assert done["failed"] is None and found.chosen == 1
    assert len(found.cells) == 3  # after the first seed's failure there is no mean to find
    assert "personal_lr=1e+30: validation accuracy failed" in repr(found)
    with (tmp_path / "t" / "grid.csv").open(newline="") as file:
        assert next(csv.DictReader(file))["failed"] == failed["failed"]


def test_if_all_points_fail_there_is_nothing_to_use(clients: Clients) -> None:
    found = tune("ditto", clients, grid={"personal_lr": (1e30, 1e31)}, **QUICK)
    assert found.chosen is None
    for use in ("best", "method", "flags"):
        with pytest.raises(TrainingError, match="none of the 2 points could be trained; the first error: the weights"):
            getattr(found, use)


# -- on disk


def test_the_folder_of_a_tuning(clients: Clients, tuning: Tuning, tmp_path: Path) -> None:
    found = tune("ditto", clients, grid=GRID, out=tmp_path / "deep" / "t", **QUICK)
    assert found.path == tmp_path / "deep" / "t"
    assert {file.name for file in found.path.iterdir()} == {"tuning.json", "grid.csv"}
    held = json.loads((found.path / "tuning.json").read_text())
    assert held["chosen"] == found.best == tuning.best
    assert held["about"]["split_hash"] == clients.hash and held["about"]["model"] == "logistic"
    assert len(held["points"]) == len(held["cells"]) == 4 and held["by"] == "validation_accuracy"
    with (found.path / "grid.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [float(row["validation_loss"]) for row in rows] == [line["validation_loss"] for line in found.table]
    assert [(float(row["prox_weight"]), float(row["lr"])) for row in rows] == [
        (0.1, 0.01),
        (0.1, 0.5),
        (2.0, 0.01),
        (2.0, 0.5),
    ]
    assert "test" not in " ".join(rows[0])


def counted(monkeypatch: pytest.MonkeyPatch) -> list[methods.Ditto]:
    """The methods that are trained from now on."""
    trained: list[Any] = []

    def counting(method: Any, *args: Any, **kwargs: Any) -> Any:
        trained.append(method)
        return run(method, *args, **kwargs)

    monkeypatch.setattr(tuning_module, "run", counting)
    return trained


def test_what_is_done_is_not_done_again(clients: Clients, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trained = counted(monkeypatch)
    first = tune("ditto", clients, grid={"prox_weight": (0.1, 2.0)}, out=tmp_path, **QUICK)
    assert len(trained) == 2
    again = tune("ditto", clients, grid={"prox_weight": (0.1, 2.0)}, out=tmp_path, **(QUICK | {"workers": 2}))
    assert len(trained) == 2 and again.table == first.table and again.best == first.best
    wider = tune("ditto", clients, grid={"prox_weight": (1.0, 2.0), "lr": (0.05, 0.1)}, out=tmp_path, **QUICK)
    assert [(one.prox_weight, one.lr) for one in trained[2:]] == [
        (1.0, 0.05),
        (1.0, 0.1),
        (2.0, 0.1),
    ]  # 0.05 is the default
    assert wider.table[2]["validation_loss"] == first.table[1]["validation_loss"]
    tune("ditto", clients, grid={"prox_weight": (0.1, 2.0)}, out=tmp_path, **QUICK)
    assert len(trained) == 5  # points of other grids stay
    assert len(json.loads((tmp_path / "tuning.json").read_text())["points"]) == 2  # but the table is of this one
    tune("ditto", clients, grid={"prox_weight": (2.0,)}, seeds=(0, 1), out=tmp_path, **QUICK)
    tune("ditto", clients, grid={"prox_weight": (2.0,)}, out=tmp_path, **(QUICK | {"rounds": 3}))
    assert len(trained) == 7
    tune("ditto", clients, grid={"prox_weight": (2.0,)}, out=tmp_path, overwrite=True, **QUICK)
    assert len(trained) == 8


def test_a_folder_of_something_else_is_refused(clients: Clients, tmp_path: Path) -> None:
    grid = {"prox_weight": (0.5,)}
    tune("ditto", clients, grid=grid, out=tmp_path / "t", **QUICK)
    for settings, sentence in (
        ({"model": "mlp"}, "holds a tuning with another model"),
        ({"precision": "float64"}, "another precision"),
        ({"newcomers": 0.2}, "another clients"),
        ({"start": {"head.weight": torch.zeros(3, 4), "head.bias": torch.zeros(3)}}, "another start"),
    ):
        with pytest.raises(InputError, match=sentence):
            tune("ditto", clients, grid=grid, out=tmp_path / "t", **(QUICK | settings))
    with pytest.raises(InputError, match="another method"):
        tune("fedprox", clients, grid={"lr": (0.1,)}, out=tmp_path / "t", **QUICK)
    with pytest.raises(InputError, match="another split_hash"):
        tune("ditto", federation(seed=1), grid=grid, out=tmp_path / "t", **QUICK)
    (tmp_path / "t" / "tuning.json").write_text("{")
    with pytest.raises(InputError, match="is damaged"):
        tune("ditto", clients, grid=grid, out=tmp_path / "t", **QUICK)
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "thesis.tex").write_text("years")
    for overwrite in (False, True):
        with pytest.raises(InputError, match="holds something that is not a tuning"):
            tune("ditto", clients, grid=grid, out=tmp_path / "thesis", overwrite=overwrite, **QUICK)


@dataclass(frozen=True, kw_only=True)
class Mine(methods.FedAvg):
    """FedAvg by a name that is registered for another."""

    name: ClassVar[str] = "ditto"
    colour: str = "red"


def test_what_came_from_python_is_tuned_but_not_continued(clients: Clients, tmp_path: Path) -> None:
    given: dict[str, dict[str, Any]] = {
        "method": {"method": Mine(), "grid": {"colour": ("red", "blue")}},
        "model": {"method": "fedavg", "grid": {"lr": (0.1, 0.2)}, "model": nn.Linear(4, 3)},
        "loss": {"method": "fedavg", "grid": {"lr": (0.1,)}, "loss": lambda outputs, y: outputs.square().mean(-1)},
    }
    for what, settings in given.items():
        for again in (False, True):
            if again:
                with pytest.raises(InputError, match=f"holds a tuning with a {what} made in Python"):
                    tune(clients=clients, out=tmp_path / what, **(QUICK | settings))
            else:
                assert tune(clients=clients, out=tmp_path / what, **(QUICK | settings)).chosen is not None


# -- Ctrl-C


def test_ctrl_c_keeps_what_is_done_and_the_rest_is_done_later(
    clients: Clients, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(step: Step) -> None:
        if step.number == 3:
            os.kill(os.getpid(), signal.SIGINT)

    whole = tune("ditto", clients, grid=GRID, **QUICK)
    found = tune("ditto", clients, grid=GRID, out=tmp_path, progress=interrupt, **QUICK)
    assert found.interrupted and len(found.cells) == 2 and found.chosen is None
    assert "2 of 4 points" in repr(found) and "not trained" in repr(found)
    with pytest.raises(InputError, match="was interrupted and has chosen nothing yet"):
        found.best  # noqa: B018
    held = json.loads((tmp_path / "tuning.json").read_text())
    assert held["chosen"] is None and len(held["cells"]) == 2
    trained = counted(monkeypatch)
    again = tune("ditto", clients, grid=GRID, out=tmp_path, **QUICK)
    assert len(trained) == 2 and not again.interrupted
    assert [{**line, "seconds": 0} for line in again.table] == [{**line, "seconds": 0} for line in whole.table]
    assert again.best == whole.best


def test_a_second_ctrl_c_keeps_it_as_well(clients: Clients, tmp_path: Path) -> None:
    def interrupt(step: Step) -> None:
        if step.number == 2:
            raise KeyboardInterrupt

    found = tune("ditto", clients, grid=GRID, out=tmp_path / "t", progress=interrupt, **QUICK)
    assert found.interrupted and len(json.loads((tmp_path / "t" / "tuning.json").read_text())["cells"]) == 1


def test_progress_is_told_of_all_points(clients: Clients) -> None:
    steps: list[Step] = []
    tune("ditto", clients, grid={"prox_weight": (0.1, 1)}, seeds=(0, 1), progress=steps.append, **QUICK)
    assert [(step.number, step.total, step.rounds.done) for step in steps] == [
        (number, 4, done) for number in (1, 2, 3, 4) for done in (1, 2)
    ]
    assert [step.text for step in steps[::2]] == [
        f"prox_weight={pull}, seed {seed}" for pull in (0.1, 1.0) for seed in (0, 1)
    ]


# -- side by side


def timeless(found: Tuning) -> tuple[list[dict[str, Any]], dict[str, dict[str, Any]]]:
    """Every figure but the seconds."""
    table = [{**line, "seconds": 0} for line in found.table]
    return table, {key: {**cell, "seconds": 0} for key, cell in sorted(found.cells.items())}


def test_points_trained_side_by_side_are_the_same_to_the_last_bit(
    clients: Clients, tuning: Tuning, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained = counted(monkeypatch)
    found = tune("ditto", clients, grid=GRID, out=tmp_path, **(QUICK | {"workers": 2}))
    assert trained == []  # not here, so in processes of their own
    assert timeless(found) == timeless(tuning) and found.best == tuning.best
    again = tune("ditto", clients, grid=GRID, out=tmp_path, **QUICK)
    assert trained == [] and again.table == found.table  # what was done there is not done again


@pytest.mark.parametrize(
    ("values", "settings", "many"),
    [
        ((0.1,), {"workers": 2}, None),  # a point alone
        ((0.1, 1.0), {"workers": 3}, None),  # fewer points than workers
        ((0.1, 1.0), {"workers": 2}, 5 * (3 * 4 + 3) - 1),  # models of 5 clients that do not fit into memory twice
        ((0.1, 1.0), {"workers": 2, "state_dir": "states"}, None),  # whose place is that of one run
    ],
)
def test_where_that_does_not_pay_or_fit_each_point_gets_all_workers(
    clients: Clients,
    values: tuple[float, ...],
    settings: dict[str, Any],
    many: int | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    given = []

    def counting(*args: Any, **kwargs: Any) -> Any:
        given.append(kwargs["workers"])
        return run(*args, **kwargs)

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(tuning_module, "run", counting)
    monkeypatch.setattr(jobs, "MAX_PARAMETERS", many or jobs.MAX_PARAMETERS)
    found = tune("ditto", clients, grid={"prox_weight": values}, **(QUICK | settings))
    assert given == [settings["workers"]] * len(values) and found.chosen is not None


def test_progress_of_points_side_by_side_is_one(clients: Clients) -> None:
    steps: list[Step] = []
    tune("ditto", clients, grid=GRID, progress=steps.append, **(QUICK | {"workers": 2, "rounds": 20}))
    assert {step.text for step in steps} == {
        f"prox_weight={pull}, lr={lr}" for pull in GRID["prox_weight"] for lr in GRID["lr"]
    }
    assert all(step.total == 4 and step.rounds.total == 20 and step.rounds.phase == "train" for step in steps)
    done = [step.done for step in steps]
    assert done == sorted(done) and 0 < done[0] < done[-1] <= 4
    assert any(step.done > step.number - 1 + step.rounds.done / 20 for step in steps)  # with others running


def test_a_point_that_diverges_does_not_lose_those_beside_it(clients: Clients) -> None:
    grid, seeds = {"personal_lr": (1e30, 0.1, 0.2)}, (0, 1, 2, 3)
    serial = tune("ditto", clients, grid=grid, seeds=seeds, **QUICK)
    found = tune("ditto", clients, grid=grid, seeds=seeds, **(QUICK | {"workers": 2}))
    assert timeless(found)[0] == timeless(serial)[0] and found.best == serial.best
    assert "non-finite" in found.table[0]["failed"]
    failed = [cell for cell in found.cells.values() if cell["failed"]]
    assert 1 <= len(failed) <= 2  # those that were begun before the first had failed


def test_ctrl_c_keeps_what_is_done_side_by_side(clients: Clients, tmp_path: Path) -> None:
    def interrupt(step: Step) -> None:
        if step.number >= 2 and not asked:
            asked.append(step)
            os.kill(os.getpid(), signal.SIGINT)

    asked: list[Step] = []
    settings = QUICK | {"workers": 2, "rounds": 60}
    whole = tune("ditto", clients, grid=GRID, **settings)
    found = tune("ditto", clients, grid=GRID, out=tmp_path, progress=interrupt, **settings)
    assert asked and found.interrupted and 1 <= len(found.cells) < 4 and found.chosen is None
    assert len(json.loads((tmp_path / "tuning.json").read_text())["cells"]) == len(found.cells)
    again = tune("ditto", clients, grid=GRID, out=tmp_path, **settings)
    assert timeless(again) == timeless(whole)


def test_a_process_that_dies_is_told_and_trained_again_when_asked(
    clients: Clients, tuning: Tuning, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    here = os.getpid()

    def deadly(method: Any, *args: Any, **kwargs: Any) -> Any:
        if method.prox_weight == 0.1 and method.lr == 0.5:
            assert os.getpid() != here
            os.kill(os.getpid(), signal.SIGKILL)
        return run(method, *args, **kwargs)

    settings = QUICK | {"workers": 2}
    with monkeypatch.context() as patch, caplog.at_level(logging.WARNING, logger="bespokefl"):
        patch.setattr(tuning_module, "run", deadly)
        found = tune("ditto", clients, grid=GRID, out=tmp_path, **settings)
    assert "its process died twice (exit code -9)" in found.table[1]["failed"]
    assert [line["failed"] is None for line in found.table] == [True, False, True, True]
    assert found.chosen is not None and not found.interrupted
    assert "prox_weight=0.1, lr=0.5: its process died (exit code -9); it is run again" in caplog.text
    assert "prox_weight=0.1, lr=0.5: its process died twice" in caplog.text
    again = tune("ditto", clients, grid=GRID, out=tmp_path, **settings)
    assert timeless(again) == timeless(tuning)


def test_a_mistake_that_only_training_finds_is_told(clients: Clients) -> None:
    for workers in (1, 2):
        with pytest.raises(InputError, match="needs a split that knows the clients' true groups"):
            tune("oracle", clients, grid={"lr": (0.1, 0.2)}, **(QUICK | {"workers": workers}))


# -- the line to use


def test_the_command_is_what_was_tuned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    grid = {"imitations": [(0.0,), (0.0, 0.5)], "batch_size": [8, 16]}
    settings: dict[str, Any] = {"rounds": 2, "workers": 1, "clients": 4, "model": "mlp(hidden=(5,))"}
    config = RunSettings(method="persfl", set={"distil_epochs": 1, "weights": "equal"}, batch_size=4, **settings)
    found = tune_config(config, grid, None)
    line = run_command(config, found)
    assert line.startswith("bespoke run persfl ") and found.flags in line and "--batch-size 4" not in line
    with pytest.raises(SystemExit):
        cli.main([*shlex.split(line)[1:], "--out", "best", "--quiet"])
    result = bf.load_run("best")
    assert result.hyper == json.loads(json.dumps(found.method.hyper()))
    assert {key: getattr(result.config, key) for key in settings} == settings
    chosen = found.table[found.chosen or 0]
    assert result.personal["validation_accuracy"].mean() == pytest.approx(chosen["validation_accuracy"])


# -- what makes no sense


@pytest.mark.parametrize(
    ("grid", "sentence"),
    [
        ({}, 'a grid needs at least one key and its values, such as "prox_weight=0.1,1,2", got none.'),
        ({"prox_weigth": (1,)}, "unknown grid key for ditto 'prox_weigth'; did you mean 'prox_weight'?"),
        ({"seed": (1, 2)}, "unknown grid key for ditto 'seed'"),
        ({"prox_weight": ()}, "the grid's prox_weight must be one or more values to try, got ()."),
        ({"prox_weight": 3}, "the grid's prox_weight must be one or more values to try, got 3."),
        ({"prox_weight": "3"}, "the grid's prox_weight must be one or more values to try, got '3'."),
        ({"prox_weight": ("abc",)}, "prox_weight of ditto must be a number, got 'abc'."),
        ({"prox_weight": (1, -1)}, "prox_weight must be >= 0, got -1.0"),
        ({"prox_weight": (1, 1.0)}, "the grid has prox_weight=1.0 twice"),
        ({"rounds": (0,)}, "rounds must be at least 1, got 0."),
        ({"rounds": ("x",)}, "rounds must be an integer, got 'x'."),
        ({"local_epochs": (1, 2), "local_steps": (3,)}, "local_epochs has no effect if local_steps is given"),
    ],
)
def test_a_grid_that_makes_no_sense_is_refused(clients: Clients, grid: Any, sentence: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=re.escape(sentence)):
        tune("ditto", clients, grid=grid, out=tmp_path / "t", **QUICK)
    assert not (tmp_path / "t").exists()


def test_other_mistakes_are_refused(clients: Clients) -> None:
    grid = {"prox_weight": (1,)}
    with pytest.raises(InputError, match="unknown setting 'ronds'; did you mean 'rounds'"):
        tune("ditto", clients, grid=grid, ronds=3)
    with pytest.raises(InputError, match="clients must be Clients, got Dataset"):
        tune("ditto", bf.load("digits"), grid=grid)  # type: ignore[arg-type]
    for seeds in ((), (1, 1), (0.5,), 0, -1, True, "5", 2.0):
        with pytest.raises(InputError, match="seeds must be one or more different integers"):
            tune("ditto", clients, grid=grid, seeds=seeds)  # type: ignore[arg-type]
    blind = replace(clients, validation=ClientIndex.of_lists([[]] * len(clients)))  # type: ignore[list-item]
    with pytest.raises(InputError, match="tuning needs validation data"):
        tune("ditto", blind, grid=grid)
    with pytest.raises(InputError, match="local_epochs has no effect if local_steps is given"):
        tune("ditto", clients, grid={"local_epochs": (1, 2)}, local_steps=3)
