"""Budgets and tuning of a comparison: equal work, the same schedule for every method, and what is said of it."""

import csv
import json
import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from bespokefl import cli, methods
from bespokefl.cli import terminal
from bespokefl.cli.commands.compare import with_tuning_time
from bespokefl.core.client_index import ClientIndex
from bespokefl.core.errors import InputError, TrainingError
from bespokefl.data.clients import Clients
from bespokefl.report.document import read_document
from bespokefl.report.page import comparison_html, contents
from bespokefl.workflows.compare import api, budget, candidates, pilot, tuning
from bespokefl.workflows.compare.api import compare
from bespokefl.workflows.compare.existing_runs import compare_runs, compare_unfinished
from bespokefl.workflows.run import jobs
from bespokefl.workflows.run.api import run
from bespokefl.workflows.run.settings import RunSettings
from bespokefl.workflows.tune import api as tune_api
from bespokefl.workflows.tune import schedule

QUICK: dict[str, Any] = {"rounds": 4, "workers": 1, "batch_size": 8, "model": "logistic", "seeds": (0,)}


@pytest.fixture(scope="module")
def clients() -> Clients:
    torch.set_num_threads(1)
    rng = np.random.default_rng(1)
    client, y = np.arange(120) % 4, rng.integers(0, 3, 120)
    return Clients.from_arrays(rng.normal(size=(120, 4)) + 1.5 * np.eye(4)[(y + client % 2) % 4], y, client)


# -- budgets


def test_fewer_rounds_for_more_gradients() -> None:
    fedavg = {1: 100, 3: 300}
    assert budget.equal_rounds(20, fedavg, fedavg) == 20
    assert budget.equal_rounds(20, {1: 200, 3: 600}, fedavg) == 10
    assert budget.equal_rounds(20, {1: 600, 3: 800}, fedavg) == 15  # 500 once, at the end
    assert budget.equal_rounds(20, {1: 9100, 3: 9300}, fedavg) == 1  # cannot do otherwise
    assert budget.equal_rounds(20, {1: 50, 3: 150}, fedavg) == 20  # never more rounds


def test_budgets_that_are_rejected(clients: Clients) -> None:
    with pytest.raises(InputError, match="unknown --budget 'step'; did you mean 'steps'"):
        compare(["ditto"], clients, budget="step", **QUICK)


def test_fewer_rounds_for_more_processor_time() -> None:
    fedavg = budget.Seconds(start=1.0, round=0.1, end=0.5)
    assert budget.timed_rounds(20, fedavg, fedavg) == 20
    assert budget.timed_rounds(20, replace(fedavg, round=0.2), fedavg) == 10
    assert budget.timed_rounds(20, replace(fedavg, round=0.2, end=1.0), fedavg) == 8  # 0.5 s once: (2 − 0.5) / 0.2
    assert budget.timed_rounds(20, replace(fedavg, start=3.5), fedavg) == 1  # cannot do otherwise
    assert budget.timed_rounds(20, replace(fedavg, round=0.109), fedavg) == 20  # within the error of the measurement
    assert budget.timed_rounds(20, replace(fedavg, round=0.05), fedavg) == 20  # never more rounds


def test_time_is_measured_once_and_kept(clients: Clients, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ditto takes twice, APFL three times the time of FedAvg, on a clock that only the test moves."""
    cost = {"ditto": 0.2, "apfl": 0.3}
    measured: list[str] = []

    def measure(plan: Any, one: candidates.Candidate, report: Any) -> dict[str, float]:
        return {"start": 0.0, "round": cost.get(one.name, 0.1), "end": 0.0}

    def in_turn(todo: list[jobs.Job], processes: int, report: Any) -> Any:
        measured.extend(job.name.partition(",")[0] for job in todo)
        assert processes == 1
        return [(job, job.work(lambda step: None)) for job in todo]

    monkeypatch.setattr(pilot, "_measure", measure)
    monkeypatch.setattr(pilot.jobs, "run_jobs", in_turn)
    out = tmp_path / "timed"
    own = QUICK | {"rounds": 6, "tune": False, "budget": "time", "out": out}
    found = compare(["ditto"], clients, **own)
    assert measured[: 3 * pilot.REPEATS] == ["fedavg", "local", "ditto"] * pilot.REPEATS
    assert {name: found.result(name, 0).config.rounds for name in found.methods} == {
        "local": 6,
        "fedavg": 6,
        "ditto": 3,
    }
    assert "For equal processor time, methods ran fewer than 6 rounds: ditto 3." in " ".join(found.notes)
    measured.clear()
    cost |= {"ditto": 0.6}
    more = compare(["ditto", "apfl"], clients, **own)  # only the new method is measured
    assert "local" not in [name for name in measured if name != "fedavg"][: pilot.REPEATS]
    assert [more.result(name, 0).config.rounds for name in ("ditto", "apfl")] == [3, 2]
    stored = json.loads((out / "budget.json").read_text(encoding="utf-8"))
    assert stored["ditto"]["rounds"] == 3 and stored["ditto"]["relative_to_fedavg"] == pytest.approx(2)
    (out / "budget.json").write_text("no JSON", encoding="utf-8")
    with pytest.raises(InputError, match=r"budget.json' is damaged"):
        compare(["ditto", "apfl"], clients, **own)


@pytest.mark.slow
def test_a_killed_comparison_says_its_rounds(clients: Clients, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("gradients", "time"):
        monkeypatch.setattr(
            pilot, "_measure", lambda plan, one, report: {"start": 0, "round": 1 + (one.name == "ditto"), "end": 0}
        )
        out = tmp_path / name
        found = compare(["ditto"], clients, budget=name, tune=False, out=out, **QUICK)
        (out / "compare.json").unlink()
        shutil.rmtree(out / "runs" / "local-0")
        killed = compare_unfinished(out)
        assert "methods ran fewer than 4 rounds: ditto 2." in found.metadata.notes[0]
        assert found.metadata.notes[0] in killed.metadata.notes and killed.metadata.config["rounds"] == 4
        assert "for 4 rounds (ditto 2), with all clients" in killed.description


DIVERGED = "the weights became absurdly large: use a smaller learning rate."


def diverging(names: tuple[str, ...], least: float) -> Any:
    """Replace `run` of the short runs: these methods diverge with learning rates from `least` on."""

    def short_run(method: Any, *others: Any, **settings: Any) -> Any:
        if method.name in names and method.lr >= least:
            raise TrainingError(DIVERGED)
        return run(method, *others, **settings)

    return short_run


@pytest.mark.slow
def test_short_runs_that_diverge_are_repeated_with_the_smallest_learning_rate(
    clients: Clients, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pilot, "run", diverging(("fedavg", "ditto"), 0.02))
    grids = {"fedavg": {"lr": (0.01, 0.1)}, "ditto": {"lr": (0.1, 0.01)}}
    own = QUICK | {"tune": False, "budget": "gradients", "grids": grids}
    found = compare(["ditto"], clients, **own)
    assert not any(entry.failed for entry in found.entries.values())
    assert {name: found.result(name, 0).config.rounds for name in found.methods} == {
        "local": 4,
        "fedavg": 4,
        "ditto": 2,
    }
    monkeypatch.setattr(pilot, "run", diverging(("fedavg",), 0.02))
    assert compare(["ditto"], clients, **own | {"grids": {}}).result("ditto", 0).config.rounds == 2  # of default grids
    monkeypatch.setattr(pilot, "run", diverging(("ditto",), 0.0))
    failed = compare(["ditto"], clients, **own).entries["ditto"]
    assert failed.failed == {
        0: "training failed in the short runs that measure its work, also with the smallest learning rates of its "
        f"grid: {DIVERGED}"
    }
    assert failed.tuned is None
    for budget_name in ("gradients", "time"):
        monkeypatch.setattr(pilot, "run", diverging(("fedavg",), 0.0))
        with pytest.raises(
            TrainingError, match=rf"^the budget '{budget_name}' is that of fedavg, .* --budget steps\.$"
        ):
            compare(["ditto"], clients, **own | {"budget": budget_name})


@pytest.mark.slow
def test_methods_are_measured_again_if_tuning_changes_their_work(
    clients: Clients, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With one inner step, pFedMe computes what FedAvg computes, a fifth of its default."""
    own = QUICK | {"rounds": 10, "tune": False, "grids": {"pfedme": {"inner_steps": (1,)}}}
    counted = compare(["pfedme"], clients, budget="gradients", **own)
    assert counted.result("pfedme", 0).config.rounds == 10
    work = {line["method"]: line["gradients"] for line in counted.table}
    assert work["pfedme"] == work["fedavg"]
    measured: list[str] = []

    def measure(plan: Any, one: candidates.Candidate, report: Any) -> dict[str, float]:
        measured.append(one.name)
        return {"start": 0.0, "round": 0.1 * getattr(one.method, "inner_steps", 1), "end": 0.0}

    monkeypatch.setattr(pilot, "_measure", measure)
    out = tmp_path / "timed"
    for _ in range(2):
        timed = compare(["pfedme"], clients, budget="time", out=out, **own)
        assert timed.result("pfedme", 0).config.rounds == 10
    assert measured == ["fedavg", "local", "pfedme"] * 3 + ["fedavg", "pfedme"] * 3  # and never again
    stored = json.loads((out / "budget.json").read_text(encoding="utf-8"))["pfedme"]
    assert (stored["rounds"], stored["tuned"]["rounds"]) == (2, 10)


def test_the_parts_of_a_short_run_are_measured(clients: Clients) -> None:
    plan = SimpleNamespace(
        config=RunSettings(method="compare"),
        clients=clients,
        seeds=[0],
        settings={"model": "logistic", "batch_size": 8},
    )
    for one in candidates.of(["persfl", "ucfl"]):
        found = pilot._measure(plan, one, lambda step: None)  # type: ignore[arg-type]
        assert found["round"] > 0 and found["start"] >= 0 and found["end"] > 0


@pytest.mark.slow
def test_steps_and_gradients_are_equal_as_the_budget_says(clients: Clients) -> None:
    chosen = ["ditto", methods.SelfFL(lr=0.1), "pfedme"]
    own = {
        name: compare(chosen, clients, budget=name, tune=False, **(QUICK | {"rounds": 10}))
        for name in ("steps", "gradients", "none")
    }
    steps = {name: {line["method"]: line["steps"] for line in one.table} for name, one in own.items()}
    work = {name: {line["method"]: line["gradients"] for line in one.table} for name, one in own.items()}
    assert steps["steps"]["selffl"] <= steps["steps"]["fedavg"] < steps["none"]["selffl"]
    assert (
        steps["steps"]["ditto"] == 2 * steps["steps"]["local"] and own["steps"].result("ditto", 0).config.rounds == 10
    )
    assert work["gradients"]["ditto"] == work["gradients"]["pfedme"] == work["gradients"]["fedavg"]
    assert own["gradients"].result("pfedme", 0).config.rounds == 2
    assert "methods ran fewer than 10 rounds: ditto 5, pfedme 2." in " ".join(own["gradients"].notes)
    said = own["steps"].best.sentence
    assert "the number of gradients is 2 times as large for ditto" in said and "5 times as large for pfedme" in said
    assert "pfedme" not in own["gradients"].best.sentence.partition("The work differs")[2]


def test_baselines_try_other_numbers_of_local_steps() -> None:
    local, fedavg, ditto = candidates.of(["ditto"])
    few, many = RunSettings(method="compare", batch_size=10), RunSettings(method="compare", local_steps=20)
    sizes = [81, 45, 0, 300]
    for one in (local, fedavg):
        assert candidates.other_local_steps(one, many, sizes, True) == {"local_steps": 10}  # within the budget
        assert candidates.other_local_steps(one, many, sizes, False) == {"local_steps": 100}
        assert candidates.other_local_steps(one, few, sizes, False) == {"local_epochs": 5}
        assert candidates.other_local_steps(one, replace(few, local_epochs=3), sizes, True) == {"local_epochs": 1}
        # an epoch of the smallest client that has data are 5 steps
        assert candidates.other_local_steps(one, few, sizes, True) == {"local_steps": 2}
        assert candidates.other_local_steps(one, few, [10, 80], True) == {}
    assert candidates.other_local_steps(ditto, many, sizes, True) == {}


# -- untuned


@pytest.mark.slow
def test_an_untuned_comparison_says_so_everywhere(clients: Clients, tmp_path: Path) -> None:
    found = compare(["ditto"], clients, tune=False, out=tmp_path / "c", **QUICK)
    written = json.loads((tmp_path / "c" / "compare.json").read_text())
    assert found.untuned and written["untuned"] and written["title"].startswith("Untuned comparison: 3 methods")
    assert found.best.sentence.startswith("Untuned: ") and "performs best" not in repr(found)
    with (tmp_path / "c" / "methods.csv").open() as file:
        *lines, constant = list(csv.DictReader(file))
    assert [line["tuned"] for line in lines] == ["False"] * 3
    assert (constant["method"], constant["tuned"]) == ("majority class", "")
    assert all(float(line["gradients"]) > 0 and float(line["steps"]) > 0 for line in lines)


@pytest.mark.slow
def test_without_validation_data_only_an_explicit_time_is_an_error(clients: Clients) -> None:
    nothing = ClientIndex(torch.zeros(0, dtype=torch.int64), torch.zeros(len(clients) + 1, dtype=torch.int64))
    blind = replace(clients, validation=nothing)
    assert compare(["ditto"], blind, **QUICK).untuned
    with pytest.raises(InputError, match=r"tuning needs validation data to choose by, .* use --no-tune"):
        compare(["ditto"], blind, tune="1m", **QUICK)


@pytest.mark.slow
def test_a_partly_tuned_comparison_names_the_untuned_methods(clients: Clients, tmp_path: Path) -> None:
    """The grid of one method is given, the others have their default hyper-parameters."""
    own = QUICK | {"tune": False, "grids": {"ditto": {"prox_weight": (0.1, 1)}}, "out": tmp_path / "c"}
    found = compare(["ditto"], clients, **own)
    again, same = compare(["ditto"], clients, **own), compare_runs([tmp_path / "c"])
    html = comparison_html(contents(read_document(tmp_path / "c"), {}))
    assert "A partly tuned comparison" in html and "Method (partly tuned)" in html and "<strong>Partly tuned:" in html
    (tmp_path / "c" / "compare.json").unlink()
    for one in (found, again, same, compare_unfinished(tmp_path / "c")):
        assert one.untuned_methods == ["local", "fedavg"] and one.tuning_state == "partly tuned"
        assert (
            one.page()["title"].startswith("Partly tuned comparison: ") and "3 partly tuned methods" in one.description
        )
        for verdict in (one.best, one.fairest):
            assert verdict.sentence.startswith("Partly tuned: ") and not verdict.conclusive
            assert "Local, fedavg are not tuned, and tuning may change the order." in verdict.sentence
    assert "2 points of a grid for ditto, compared after" in found.notes[0]
    assert found.notes[1] == "local, fedavg are not tuned and have given or default hyper-parameters."
    table = terminal.comparison_table(found)
    assert table.columns[0].header == "method (partly tuned)"
    more = compare(["ditto", "apfl"], clients, **own)  # nothing is left to tune
    assert more.untuned_methods == ["local", "fedavg", "apfl"]
    assert compare_runs([tmp_path / "c"]).untuned_methods == more.untuned_methods


@pytest.mark.slow
def test_methods_without_anything_to_tune_are_named(clients: Clients, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(candidates.GRIDS, "local", {"lr": [0.1, 0.3, 1.0]})
    monkeypatch.setitem(candidates.GRIDS, "fedavg", {"lr": [0.1, 0.3, 1.0]})
    found = compare([methods.FedAvg(lr=0.2), methods.Oracle()], clients, **QUICK)
    assert found.untuned_methods == ["fedavg"] and "Fedavg is not tuned" in found.best.sentence


# -- tuning


def last_stage(tuned: dict[str, Any]) -> list[float]:
    return [line["validation_accuracy"] for line in tuned["points"] if line.get("rounds", 4) == tuned["rounds"]]


@pytest.mark.slow
def test_methods_are_tuned_by_default_with_equally_many_points(clients: Clients) -> None:
    found = compare(["ditto"], clients, **QUICK)
    assert not found.untuned and "Untuned" not in found.best.sentence
    for entry in found.entries.values():
        assert entry.tuned is not None and len(entry.tuned["points"]) >= 12  # of every default grid
        chosen = [one for one in entry.tuned["points"] if entry.tuned["chosen"].items() <= one.items()]
        assert chosen[0]["validation_accuracy"] == max(last_stage(entry.tuned))
        assert entry.tuned["chosen"].items() <= entry.hyper.items()


@pytest.mark.slow
def test_the_best_points_are_trained_longer_and_with_more_seeds(
    clients: Clients, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(schedule, "MIN_ROUNDS", 1)
    grids = {"ditto": {"personal_lr": (0.001, 0.01, 0.1, 0.3, 0.9)}}
    settings = QUICK | {"rounds": 9, "seeds": 2}
    found = compare(["ditto"], clients, tune=False, grids=grids, out=tmp_path / "c", **settings)
    cells = json.loads((tmp_path / "c" / "tune" / "ditto" / "tuning.json").read_text())["cells"].values()
    trained: dict[tuple[int, int], dict[float, float]] = {(3, 0): {}, (9, 0): {}, (9, 1): {}}
    for cell in cells:
        own = trained[cell["options"]["rounds"], cell["seed"]]
        own[cell["hyper"]["personal_lr"]] = cell["validation_accuracy"]
    short, long, again = trained.values()
    assert len(short) == 5 and len(long) == 3 and set(long) == set(again)
    assert max(score for lr, score in short.items() if lr not in long) <= min(short[lr] for lr in long)
    tuned = found.entries["ditto"].tuned
    assert tuned is not None and [line["seeds"] for line in tuned["points"]] == [
        2 if lr in long else 1 for lr in grids["ditto"]["personal_lr"]
    ]
    means = {lr: (score + again[lr]) / 2 for lr, score in long.items()}
    assert means[tuned["chosen"]["personal_lr"]] == max(means.values())
    assert "after 3 and 9 rounds" in found.notes[0] and "the best of them with 2 seeds" in found.notes[0]


@pytest.mark.slow
def test_a_baseline_tries_other_local_steps_at_its_best_point(
    clients: Clients, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(candidates.GRIDS, "local", {"lr": [0.1], "momentum": [0.0, 0.9]})
    monkeypatch.setitem(candidates.GRIDS, "fedavg", {"lr": [0.1]})
    tuned = compare(["local"], clients, **(QUICK | {"local_steps": 8})).entries["local"].tuned
    assert tuned is not None
    tried = [(line["momentum"], line.get("local_steps")) for line in tuned["points"]]
    best = max(tuned["points"][:2], key=lambda line: line["validation_accuracy"])["momentum"]
    assert tried == [(0.0, None), (0.9, None), (best, 4)]


@pytest.mark.slow
def test_a_grid_is_widened_where_its_best_point_lies_on_the_edge(
    clients: Clients, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(candidates.GRIDS, "local", {"lr": [1e-6, 2e-6]})  # far too small
    monkeypatch.setitem(candidates.GRIDS, "fedavg", {"lr": [0.1]})
    found = compare(["local"], clients, **QUICK, local_steps=1)  # of which there is no half
    tuned = found.entries["local"].tuned
    assert tuned is not None and tuned["widened"] >= 1
    tried = [line["lr"] for line in tuned["points"]]
    assert len(tried) == 2 + tuned["widened"] and (min(tried) < 1e-6 or max(tried) > 2e-6)
    if tuned["edge"]:
        assert any("The best point of local lies on the edge of what was tried (lr = " in note for note in found.notes)


@pytest.mark.slow
def test_if_no_point_can_be_trained_learning_rates_are_lowered(
    clients: Clients, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(candidates.GRIDS, "ditto", {"lr": [1.0, 3.0], "prox_weight": [0.1]})
    for name in ("local", "fedavg"):
        monkeypatch.setitem(candidates.GRIDS, name, {"lr": [0.1]})
    monkeypatch.setattr(tune_api, "run", diverging(("ditto",), 0.2))
    found = compare(["ditto"], clients, **QUICK)
    tuned = found.entries["ditto"].tuned
    assert tuned is not None and tuned["lowered"] == 1 and not found.untuned
    tried = {line["lr"]: line["failed"] is None for line in tuned["points"]}
    assert {lr: trained for lr, trained in tried.items() if lr > 0.09} == {
        3.0: False,
        1.0: False,
        0.3: False,
        0.1: True,
    }
    assert any("No point of the grid of ditto could be trained, so that all learning" in note for note in found.notes)
    assert (
        "Learning rates of grids of which no point could be trained were divided: ditto (by 10)." in found.description
    )

    monkeypatch.setattr(tune_api, "run", diverging(("ditto",), 0.0))
    failed = compare(["ditto"], clients, **QUICK).entries["ditto"].failed
    assert set(failed.values()) == {f"no point of its grid could be trained: {DIVERGED}"}


@pytest.mark.slow
def test_without_time_nothing_is_tuned_and_the_reader_is_told(clients: Clients, tmp_path: Path) -> None:
    found = compare(["ditto"], clients, tune="0.001s", out=tmp_path / "c", **QUICK)
    assert found.untuned and all(entry.tuned is None for entry in found.entries.values())
    assert found.notes[0].startswith("Untuned: the time for tuning of 0.001 s ran out before all points were trained")
    again = compare(["ditto"], clients, tune="5m", out=tmp_path / "c", **QUICK)  # its runs are kept as they are
    assert again.untuned and again.notes[0] == found.notes[0]


@pytest.mark.slow
def test_an_interrupted_tuning_is_resumed(clients: Clients, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = compare(["ditto"], clients, out=tmp_path / "whole", **QUICK)
    train, calls = tuning.train_points, []

    def stops(*args: Any, **options: Any) -> Any:
        calls.append(args)
        if len(calls) == 2:
            raise jobs.Interrupted
        return train(*args, **options)

    monkeypatch.setattr(tuning, "train_points", stops)
    with pytest.raises(KeyboardInterrupt):
        compare(["ditto"], clients, out=tmp_path / "c", **QUICK)
    assert (tmp_path / "c" / "tune" / "local").exists() and not (tmp_path / "c" / "tuned.json").exists()
    monkeypatch.setattr(tuning, "train_points", train)
    found = compare(["ditto"], clients, out=tmp_path / "c", **QUICK)
    assert [one.hyper for one in found.entries.values()] == [one.hyper for one in expected.entries.values()]
    assert found.best.sentence == expected.best.sentence and found.notes == expected.notes
    monkeypatch.setattr(tuning, "train_points", None)  # a finished tuning is not repeated
    again = compare(["ditto"], clients, out=tmp_path / "c", **QUICK)
    assert again.notes == expected.notes and again.entries["ditto"].tuned == found.entries["ditto"].tuned


# -- the command line


def test_tune_without_a_time_keeps_working() -> None:
    assert with_tuning_time(["compare", "--tune", "ditto"]) == ["compare", "--tune", "10m", "ditto"]
    assert with_tuning_time(["compare", "ditto", "--tune"]) == ["compare", "ditto", "--tune", "10m"]
    assert with_tuning_time(["compare", "ditto", "--tune", "90s"]) == ["compare", "ditto", "--tune", "90s"]
    assert with_tuning_time(["compare", "ditto", "--tune", "10x"]) == ["compare", "ditto", "--tune", "10x"]
    assert with_tuning_time(["run", "--tune"]) == ["run", "--tune"]


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (["--tune", "5m", "--no-tune"], "give --tune 5m or --no-tune, not both"),
        (["--tune", "10x"], "--tune must be followed by a time, such as 90s, 10m or 1h, got '10x'"),
        (["--tune=soon"], "--tune must be followed by a time, such as 90s, 10m or 1h, got 'soon'"),
        (
            ["--lr", "0.1,0.2"],
            "--lr must be one value, got '0.1,0.2'; values to try when tuning: --grid METHOD.lr=0.1,0.2",
        ),
        (["--budget", "times"], "unknown --budget 'times'; did you mean 'time'"),
    ],
)
def test_flags_that_are_rejected(flags: list[str], sentence: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(["compare", "ditto", *flags])
    assert ended.value.code == 2 and sentence in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "hinted"),
    [([], False), (["--seeds", "2"], True), (["--seeds", "2", "--quiet"], False), (["--seeds", "5"], False)],
)
def test_few_seeds_are_told_at_once(
    flags: list[str], hinted: bool, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def stops(*args: Any, **options: Any) -> Any:
        raise InputError("nothing is trained.")

    monkeypatch.setattr(api, "compare_config", stops)
    with pytest.raises(SystemExit):
        cli.main(["compare", "ditto", *flags])
    printed = capsys.readouterr()
    assert ("With fewer than 5 seeds no method can be called best." in printed.err) == hinted
    assert "nothing is trained" in printed.err and not printed.out
