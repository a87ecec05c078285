"""Comparing: every run is the run it says, on the same clients and draws; what follows from them; going on."""

import csv
import json
import logging
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from functools import partial, wraps
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import bespokefl as bf
from bespokefl import cli, methods
from bespokefl.core.client_index import ClientIndex
from bespokefl.core.errors import InputError, TrainingError
from bespokefl.core.method import Phase
from bespokefl.data.clients import Clients
from bespokefl.engines.federation import Draw, Federation
from bespokefl.engines.outcome import Progress
from bespokefl.workflows.compare import api as module
from bespokefl.workflows.compare import candidates
from bespokefl.workflows.compare.document import history, method_records, rounded
from bespokefl.workflows.compare.existing_runs import compare_runs
from bespokefl.workflows.compare.plan import ComparisonPlan
from bespokefl.workflows.compare.result import Comparison
from bespokefl.workflows.run import jobs
from bespokefl.workflows.run.api import run
from bespokefl.workflows.run.settings import RunSettings
from bespokefl.workflows.tune.api import tune
from tests.processes import LONGEST, wait_for, working_in

compare = partial(module.compare, tune=False)  # most tests are about something else

pytestmark = pytest.mark.slow  # they train several methods each

QUICK: dict[str, Any] = {"rounds": 2, "workers": 1, "batch_size": 16, "model": "logistic", "eval_every": 1}
SEEDS = (0, 1)
SHELL = ["--no-tune", "--rounds", "2", "--workers", "1", "--clients", "5", "--model", "logistic", "--seeds", "0"]


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


def federation(num: int = 7, seed: int = 0) -> Clients:
    rng = np.random.default_rng(seed)
    client, y = np.arange(40 * num) % num, rng.integers(0, 3, 40 * num)
    x = rng.normal(size=(40 * num, 4)) + 1.5 * np.eye(4)[(y + client % 2) % 4]
    return Clients.from_arrays(x, y, client)


def regression() -> Clients:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(160, 3))
    client = np.arange(160) % 4
    return Clients.from_arrays(x, x.sum(1) + 2.0 * client, client)


@pytest.fixture(scope="module")
def clients() -> Clients:
    return federation()


@pytest.fixture(scope="module")
def found(clients: Clients, tmp_path_factory: pytest.TempPathFactory) -> Comparison:
    place = tmp_path_factory.mktemp("comparison") / "c"
    return compare(["ucfl", methods.Ditto(prox_weight=0.5)], clients, seeds=SEEDS, out=place, **QUICK)


def page(comparison: Comparison) -> dict[str, Any]:
    """What is written, without what it took."""
    text = json.dumps(rounded(comparison.page()))
    return json.loads(re.sub(r'("seconds": )(\[[^]]*\]|[-\d.e]+)', r"\g<1>null", text), object_pairs_hook=_placeless)


def _placeless(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    return {key: value for key, value in pairs if key != "folder"}


# -- what is run


def test_local_and_fedavg_always_take_part_and_order_is_canonical(found: Comparison) -> None:
    assert found.methods == ["local", "fedavg", "ditto", "ucfl"] and found.seeds == [0, 1]


def test_every_run_is_the_run_it_says(clients: Clients, found: Comparison) -> None:
    for name, method in (("ditto", methods.Ditto(prox_weight=0.5)), ("local", methods.Local())):
        for seed in SEEDS:
            alone = run(method, clients, seed=seed, **QUICK)
            ours = found.result(name, seed)
            assert ours.hyper == alone.hyper and ours.about["seed"] == seed
            for measure in ("accuracy", "loss", "f1", "validation_loss"):
                assert ours.personal[measure].tolist() == alone.personal[measure].tolist()


def test_draws_and_starts_are_the_same_for_all_methods(clients: Clients, monkeypatch: pytest.MonkeyPatch) -> None:
    cohorts: dict[tuple[str, int], list[list[int]]] = {}
    starts: dict[int, list[torch.Tensor]] = {}
    draw, init = Federation.draw, Federation.__init__

    def watched(self: Federation, number: int, phase: Phase) -> Draw:
        found = draw(self, number, phase)
        if phase.name == "train":
            cohorts.setdefault((self.method.name, self.settings.seed), []).append(list(found.round.reporting))
        return found

    def started(self: Federation, method: Any, start: Any, data: Any, settings: Any, *rest: Any, **more: Any) -> None:
        starts.setdefault(settings.seed, []).append(start.matrix().clone())
        init(self, method, start, data, settings, *rest, **more)

    monkeypatch.setattr(Federation, "draw", watched)
    monkeypatch.setattr(Federation, "__init__", started)
    names = ["fedprox", "ditto", "selffl", "persfl", "pfedme", "fedrep", "cfl"]
    compare(names, clients, seeds=SEEDS, **(QUICK | {"participation": 0.5, "rounds": 3}))
    for seed in SEEDS:
        drawn = [cohorts[name, seed] for name in ("local", "fedavg", *names)]
        assert all(one == drawn[0] for one in drawn)
        assert len(drawn[0]) == 3 and {len(one) for one in drawn[0]} == {3}
        assert len(starts[seed]) == 9 and all(torch.equal(one, starts[seed][0]) for one in starts[seed])
    assert cohorts["local", 0] != cohorts["local", 1] and not torch.equal(starts[0][0], starts[1][0])


def test_the_order_of_methods_and_seeds_means_nothing(clients: Clients, found: Comparison) -> None:
    other = compare(["fedavg", methods.Ditto(prox_weight=0.5), "ucfl"], clients, seeds=(1, 0), **QUICK)
    assert page(other) == page(found)


def test_processes_change_nothing(clients: Clients, found: Comparison) -> None:
    steps: list[jobs.Step] = []
    settings = QUICK | {"workers": 2}
    other = compare(["ucfl", methods.Ditto(prox_weight=0.5)], clients, seeds=SEEDS, progress=steps.append, **settings)
    assert page(other) == page(found)
    assert steps[-1].done == steps[-1].total == 8


def test_large_federations_are_run_one_at_a_time(clients: Clients, monkeypatch: pytest.MonkeyPatch) -> None:
    config = RunSettings(method="compare", workers=3)
    plan = ComparisonPlan(candidates.of(["ditto"]), clients, [0], config, {}, "logistic", None)  # type: ignore[arg-type]
    assert plan.parallel() == (3, 1)
    monkeypatch.setattr(jobs, "MAX_PARAMETERS", 7 * (4 * 3 + 3) - 1)
    assert plan.parallel() == (1, 3)


def test_models_are_there_without_a_folder(clients: Clients) -> None:
    other = compare(["fedprox"], clients, seeds=[3], **QUICK)
    result = other.result("fedprox", 3)
    with torch.no_grad():
        right = result.model("0")(clients.x[clients.test.of(0)]).argmax(1) == clients.y[clients.test.of(0)]
    assert float(right.double().mean()) == result.personal["accuracy"][0]
    assert other.path is None


# -- what follows


def test_figures_by_hand(clients: Clients, found: Comparison) -> None:
    scores = {name: np.stack([found.result(name, s).personal["accuracy"] for s in SEEDS]) for name in found.methods}
    sizes = clients.train.sizes.numpy()
    for name, table in scores.items():
        one = found.figures[name]
        assert one is not None
        own = one["accuracy"]
        means = table.mean(1)
        assert own["mean"] == pytest.approx(means.mean())
        assert own["sem"] == pytest.approx(abs(means[0] - means[1]) / 2)  # √((a − b)²/2) / √2
        assert own["std"] == pytest.approx(np.mean([np.std(row, ddof=1) for row in table]))
        assert own["worst"] == own["worst_decile"] == pytest.approx(table.min(1).mean())  # a tenth of 7 is one
        assert own["weighted_mean"] == pytest.approx((table @ sizes / sizes.sum()).mean())
        assert own["interval"][0] <= own["mean"] <= own["interval"][1]
        sent = [found.result(name, s).communication for s in SEEDS]
        assert one["up_bytes"] == sent[0]["up_bytes"] == sent[1]["up_bytes"]
        assert one["model_time"]["wired"] == pytest.approx(sent[0]["model_time"]["wired"])
    order = sorted(found.methods, key=lambda name: -scores[name].mean())
    assert [found.figures[name]["rank"] for name in order] == [1, 2, 3, 4]  # type: ignore[index]
    assert found.ranking == order and found.figures[order[0]]["best"]  # type: ignore[index]


def test_gains_are_over_the_better_of_local_and_fedavg(found: Comparison) -> None:
    assert list(found.gains) == ["ditto", "ucfl"]
    for name, gains in found.gains.items():
        for at, seed in enumerate(SEEDS):
            own, local, common = (found.result(one, seed).personal["accuracy"] for one in (name, "local", "fedavg"))
            assert gains[at] == pytest.approx(own - np.maximum(local, common))
        figures = found.figures[name]
        assert figures is not None
        assert figures["gain"]["improved_share"] == pytest.approx(100 * (gains > 0).mean())
        assert figures["gain"]["decreased_share"] == pytest.approx(100 * (gains < 0).mean())
        mean = gains.mean(0)
        positive = mean[mean > 0]
        if len(positive):
            jain = positive.sum() ** 2 / (len(positive) * (positive**2).sum())
            assert figures["fairness"]["improved"]["jain"] == pytest.approx(jain)
    assert found.figures["local"]["gain"] is None  # type: ignore[index]


def test_verdicts_are_those_of_the_metrics(found: Comparison) -> None:
    scores = {name: found.scores(name) for name in found.methods}
    place = bf.metrics.significance.standing(scores)  # type: ignore[arg-type]
    assert [name for name, one in found.figures.items() if one and one["best"]] == [place.best]
    assert {name for name, one in found.figures.items() if one and one["tie"]} == set(place.ties)
    others = {name: one["relation"] for name, one in found.figures.items() if one and name != place.best}
    assert others == place.relations
    expected = bf.metrics.verdict.best_performing(scores, found.gains, percent=True)  # type: ignore[arg-type]
    assert replace(found.best, sentence="") == replace(expected, sentence="")  # the sentence has reservations
    mean = found.figures[found.best.method]["accuracy"]["mean"]  # type: ignore[index]
    assert f"({100 * mean:.1f} %, 95 % interval" in found.best.sentence  # in the unit of the table and the page
    assert "2 seeds are too few" in found.best.sentence and "performs best" not in found.best.sentence
    expected = bf.metrics.verdict.fairest(found.gains, scores, percent=True)  # type: ignore[arg-type]
    assert replace(found.fairest, sentence="") == replace(expected, sentence="")
    limited = f"Untuned: {expected.sentence} The methods are untuned, and tuning may change the order."
    assert found.fairest.sentence.startswith(limited)
    assert found.fairest.sentence.removeprefix(limited)[:31] in ("", " The best mean is not significa")
    assert found.best.sentence in repr(found) and found.fairest.sentence in repr(found)


def test_ditto_is_not_best_where_local_has_the_higher_mean() -> None:
    """Six clients after three rounds: ditto at 48.8 was called best beside local's 55.1."""
    six = bf.load("digits").split("dirichlet(alpha=0.4)", clients=6, seed=0)
    other = compare(["ditto"], six, seeds=1, rounds=3, workers=1)
    means = {name: one["accuracy"]["mean"] for name, one in other.figures.items() if one}
    assert means["local"] > means["ditto"] + 0.03
    assert other.best.method == "local" and not other.best.conclusive
    assert "performs best" not in other.best.sentence
    assert "too few clients or seeds to tell it from ditto" in other.best.sentence
    assert "One seed says nothing about other seeds" in other.best.sentence


def test_what_is_written(clients: Clients, found: Comparison) -> None:
    assert found.path is not None
    written = json.loads((found.path / "compare.json").read_text())
    assert written["finished"] and written["data"]["split_hash"] == clients.hash and written["command"] is None
    assert written["clients"]["names"] == list(clients.names)
    assert [one["name"] for one in written["methods"]] == found.methods
    ditto = written["methods"][2]
    assert (
        ditto["hyper"]["prox_weight"] == 0.5
        and "@" in ditto["citation"]
        and ditto["runs"][1]["folder"] == "runs/ditto-1"
    )
    history, rounds = ditto["runs"][0]["history"], found.result("ditto", 0).rounds
    assert history["round"] == [0, 1, 2]
    assert history["up_bytes"] == [0, rounds[0]["up_bytes"], rounds[0]["up_bytes"] + rounds[1]["up_bytes"]]
    assert history["accuracy"][1:] == pytest.approx([line["personal"]["test_accuracy"] for line in rounds])
    assert history["accuracy"][0] == pytest.approx(found.result("ditto", 0).about["initial"]["test_accuracy"])
    details = written["methods"][3]["runs"][0]["details"]
    assert written["methods"][3]["runs"][1]["details"] is None
    assert details["rounds"]["collaboration"]["round"] == [1]
    assert np.sum(details["rounds"]["collaboration"]["values"][0], 1) == pytest.approx(np.ones(7))
    assert len(details["clients"]["variance"]["values"][0]) == 7
    with (found.path / "clients.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 4 * 2 * 7
    row = next(one for one in rows if (one["method"], one["seed"], one["client"]) == ("ditto", "1", "3"))
    assert float(row["personal_accuracy"]) == found.result("ditto", 1).personal["accuracy"][3]
    assert float(row["gain"]) == pytest.approx(found.gains["ditto"][1, 3])
    assert not next(one for one in rows if one["method"] == "local")["gain"]


def test_one_seed_has_no_standard_error_and_says_so(clients: Clients) -> None:
    other = compare(["ditto"], clients, seeds=[0], **QUICK)
    assert all(one and one["accuracy"]["sem"] is None for one in other.figures.values())
    assert any(note.startswith("One seed: there is no standard error") for note in other.notes)


def test_regression_is_compared_by_loss_and_methods_for_classes_are_left_out() -> None:
    other = compare(["persfl", "ditto"], regression(), seeds=[0], **QUICK)
    assert other.methods == ["local", "fedavg", "ditto"] and other.score == "loss" and not other.higher_is_better
    losses = {name: float(other.result(name, 0).personal["loss"].mean()) for name in other.methods}
    assert other.ranking == sorted(losses, key=lambda name: losses[name])
    own, local, common = (other.result(name, 0).personal["loss"] for name in ("ditto", "local", "fedavg"))
    assert other.gains["ditto"][0] == pytest.approx(np.minimum(local, common) - own)
    assert any(note.startswith("persfl is left out: persfl needs classes") for note in other.notes)
    assert other.page()["left_out"][0]["method"] == "persfl"


def test_methods_that_need_groups(clients: Clients) -> None:
    other = compare(["oracle"], clients, seeds=[0], **QUICK)
    assert other.methods == ["local", "fedavg"]
    assert any("oracle is left out: it needs a split that knows the clients' true groups" in one for one in other.notes)
    assert "nothing else was run" in other.fairest.sentence
    knowing = replace(clients, groups=(0, 1, 0, 1, 0, 1, 0))
    other = compare(["oracle"], knowing, seeds=[0], **QUICK)
    assert other.methods == ["local", "fedavg", "oracle"]
    assert other.page()["clients"]["groups"] == (0, 1, 0, 1, 0, 1, 0)
    assert {row["client"]: row["group"] for row in other.clients}["1"] == 1


def test_clients_without_test_data_are_left_out(clients: Clients) -> None:
    nothing = ClientIndex(torch.zeros(0, dtype=torch.int64), torch.zeros(8, dtype=torch.int64))
    other = compare(["ditto"], replace(clients, test=nothing), seeds=[0], **QUICK)
    assert other.standing is None and "no client has test data" in other.best.sentence
    json.dumps(rounded(other.page()), allow_nan=False)


def test_a_method_that_fails_is_reported_and_the_others_go_on(
    clients: Clients, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    trained = []

    @wraps(run)
    def failing(method: Any, *given: Any, **settings: Any) -> Any:
        trained.append(method.name)
        if method.name == "ditto" and settings["seed"] == 1:
            raise TrainingError("the weights became non-finite in round 2 for clients 3: use a smaller learning rate.")
        return run(method, *given, **settings)

    monkeypatch.setattr(module, "run", failing)
    for again in (False, True):
        trained.clear()
        caplog.clear()
        other = compare(["ditto", "fedprox"], clients, seeds=SEEDS, out=tmp_path / "c", **QUICK)
        (warning,) = (one.getMessage() for one in caplog.records if one.levelno >= logging.WARNING)
        assert warning.startswith("ditto failed with seed 1: the weights became")
        assert other.figures["ditto"] is None and other.figures["fedprox"] is not None
        assert other.ranking[-1] == "ditto" and "ditto: failed" in repr(other)
        assert "The methods are untuned, and" in other.best.sentence
        assert list(other.gains) == ["fedprox"] and other.seeds == [0, 1]
        assert any(note.startswith("ditto failed with seed 1: the weights became") for note in other.notes)
        written = json.loads((tmp_path / "c" / "compare.json").read_text())
        assert written["finished"] and [one["failed"] is None for one in written["methods"][3]["runs"]] == [True, False]
        assert trained == ([] if again else ["local", "fedavg", "fedprox", "ditto"] * 2)  # it fails once


@pytest.mark.parametrize("deaths", [1, 2])
def test_a_run_whose_process_is_killed_is_done_once_more(
    deaths: int, clients: Clients, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It goes on from its checkpoint, and ends as if nothing had happened."""
    settings = QUICK | {"rounds": 4, "checkpoint_every": "1", "workers": 2}
    expected = compare(["ditto"], clients, seeds=[0], **settings)
    marks = tmp_path / "marks"
    marks.mkdir()

    @wraps(run)
    def deadly(method: Any, *given: Any, **settings: Any) -> Any:
        report = settings.pop("progress")

        def die(now: Progress) -> None:
            report(now)
            begun = len(list(marks.iterdir()))
            if method.name == "ditto" and now.done >= 2 and begun < deaths:  # it may go on after round 2
                (marks / str(begun)).touch()
                os.kill(os.getpid(), signal.SIGKILL)

        return run(method, *given, progress=die, **settings)

    monkeypatch.setattr(module, "run", deadly)
    found = compare(["ditto"], clients, seeds=[0], out=tmp_path / "c", **settings)
    told = [one.getMessage() for one in caplog.records if one.levelno >= logging.WARNING]
    assert told[0] == "ditto, seed 0: its process died (exit code -9); it is run again"
    assert any(one.startswith("resuming after round") for one in told)
    if deaths == 1:
        assert found.figures["ditto"]["accuracy"] == expected.figures["ditto"]["accuracy"]  # type: ignore[index]
    else:
        assert found.figures["ditto"] is None and "ditto: failed" in repr(found)
        assert told[-1].startswith("ditto failed with seed 0: its process died twice (exit code -9)")


def test_a_baseline_that_fails_leaves_no_gains(clients: Clients, monkeypatch: pytest.MonkeyPatch) -> None:
    @wraps(run)
    def failing(method: Any, *given: Any, **settings: Any) -> Any:
        if method.name != "ditto":
            raise TrainingError("diverged.")
        return run(method, *given, **settings)

    monkeypatch.setattr(module, "run", failing)
    other = compare(["ditto"], clients, seeds=[0], **QUICK)
    assert other.gains == {} and "not both were run" in other.fairest.sentence
    with pytest.raises(TrainingError, match="no method could be trained; the first error: diverged"):
        compare(["fedprox"], clients, seeds=[0], **QUICK)


def test_notes_say_whose_they_are(found: Comparison, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in found.methods:
        for seed in SEEDS:
            own = ["All say so."] + ["Only this one."] * (name == "ucfl" and seed == 1)
            monkeypatch.setitem(found.result(name, seed).about, "notes", own)
    assert found.notes[1:] == ["All say so.", "ucfl with seed 1: Only this one."]  # the first says that it is untuned


# -- going on


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tuple[str, int]]]:
    trained: list[tuple[str, int]] = []

    @wraps(run)
    def counting(method: Any, *given: Any, **settings: Any) -> Any:
        trained.append((method.name, settings["seed"]))
        return run(method, *given, **settings)

    monkeypatch.setattr(module, "run", counting)
    yield trained


def test_what_is_there_is_not_trained_again(
    clients: Clients, found: Comparison, tmp_path: Path, counted: list[tuple[str, int]]
) -> None:
    assert found.path is not None
    place = shutil.copytree(found.path, tmp_path / "c")
    shutil.rmtree(place / "runs" / "ditto-1")
    (place / "compare.json").unlink()
    given: Any = ["ucfl", methods.Ditto(prox_weight=0.5)]
    other = compare(given, clients, seeds=SEEDS, out=place, **QUICK)
    assert counted == [("ditto", 1)] and page(other) == page(found)
    assert (place / "compare.json").exists()
    counted.clear()
    compare([*given, "fedprox"], clients, seeds=(0, 1, 2), out=place, **QUICK)  # more of both is fine
    more = ["local", "fedavg", "fedprox", "ditto", "ucfl"]
    assert counted == [("fedprox", 0), ("fedprox", 1), *((name, 2) for name in more)]


def test_an_interrupted_comparison_goes_on(
    clients: Clients, found: Comparison, tmp_path: Path, counted: list[tuple[str, int]]
) -> None:
    def stop(step: jobs.Step) -> None:
        if step.done >= 4.5:  # in the middle of seed 1's first run
            raise KeyboardInterrupt

    given: Any = ["ucfl", methods.Ditto(prox_weight=0.5)]
    first = compare(given, clients, seeds=SEEDS, out=tmp_path / "c", progress=stop, **QUICK)
    assert first.interrupted and first.seeds == [0] and not first.page()["finished"]
    assert any(note.startswith("Not finished: local with seed 1, fedavg with seed 1") for note in first.notes)
    assert counted == [*((name, 0) for name in found.methods), ("local", 1)]
    counted.clear()
    other = compare(given, clients, seeds=SEEDS, out=tmp_path / "c", **QUICK)
    assert counted == [(name, 1) for name in found.methods]
    assert page(other) == page(found)


def test_ctrl_c_ends_the_run_in_hand_after_its_round(
    clients: Clients, tmp_path: Path, counted: list[tuple[str, int]]
) -> None:
    def stop(step: jobs.Step) -> None:
        if step.done == 1.25:
            os.kill(os.getpid(), signal.SIGINT)

    settings = QUICK | {"rounds": 4}
    first = compare(["ditto"], clients, seeds=[0], out=tmp_path / "c", progress=stop, **settings)
    assert counted == [("local", 0), ("fedavg", 0)] and first.interrupted
    assert [name for name, entry in first.entries.items() if entry.runs] == ["local"]
    other = compare(["ditto"], clients, seeds=[0], out=tmp_path / "c", **settings)
    assert counted[2:] == [("fedavg", 0), ("ditto", 0)]
    assert page(other) == page(compare(["ditto"], clients, seeds=[0], **settings))


def test_nothing_finished_is_an_interrupt(clients: Clients, tmp_path: Path) -> None:
    def stop(step: jobs.Step) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        compare(["ditto"], clients, out=tmp_path / "c", progress=stop, **QUICK)
    assert not compare(["ditto"], clients, seeds=[0], out=tmp_path / "c", **QUICK).interrupted


HELD_MODEL = """
import time
from pathlib import Path
from torch import nn


class Held(nn.Linear):
    def forward(self, x):
        while Path("hold").exists() and list(Path("c/runs").glob("[!.]*/result.json")):
            time.sleep(0.01)
        return super().forward(x.flatten(-3))


def net():
    return Held(64, 10)
"""


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_a_process_that_is_stopped(how: signal.Signals, tmp_path: Path) -> None:
    """Ctrl-C, or a kill: what was finished is there, nothing goes on in the background, the same command goes on.

    When one run is finished, the others wait until the signal is sent.
    """
    (tmp_path / "held.py").write_text(HELD_MODEL)
    (tmp_path / "hold").touch()
    command = [
        sys.executable,
        "-m",
        "bespokefl.cli",
        "compare",
        "ditto",
        "--rounds",
        "10",
        "--eval-every",
        "0",
        "--no-tune",
    ]
    command += ["--workers", "2", "--clients", "5", "--model", "held:net", "--seeds", "0,1", "--out", "c"]
    environment = os.environ | {"PYTHONPATH": f"{tmp_path}:{Path(bf.__file__).parent.parent}"}
    going: Any = {
        "cwd": tmp_path,
        "env": environment,
        "text": True,
        "stderr": subprocess.PIPE,
        "stdout": subprocess.PIPE,
    }
    process = subprocess.Popen(
        command, **going, preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler)
    )
    wait_for(lambda: list(tmp_path.glob("c/runs/[!.]*/result.json")) or process.poll() is not None)
    process.send_signal(how)
    if how == signal.SIGINT:
        (tmp_path / "hold").unlink()  # so that the current round ends
    _, said = process.communicate(timeout=LONGEST)
    (tmp_path / "hold").unlink(missing_ok=True)
    done = {path.parent.name: path.read_text() for path in tmp_path.glob("c/runs/[!.]*/result.json")}
    assert done and len(done) < 6
    if how == signal.SIGINT:
        assert process.returncode == 130, said
        assert "To resume: bespoke compare ditto --seeds 0,1" in said and "--out c" in said
    wait_for(lambda: not working_in(tmp_path))
    assert {path.parent.name for path in tmp_path.glob("c/runs/[!.]*/result.json")} == set(done)  # nobody goes on alone
    ended = subprocess.run(
        command, **{key: one for key, one in going.items() if key not in ("stderr", "stdout")}, capture_output=True
    )
    assert ended.returncode == 0, ended.stderr
    for name, text in done.items():
        if not json.loads(text)["interrupted"]:
            assert (tmp_path / "c" / "runs" / name / "result.json").read_text() == text
    written = json.loads((tmp_path / "c" / "compare.json").read_text())
    assert written["finished"] and written["seeds"] == [0, 1]


def test_another_split_or_config_is_refused_with_hashes(clients: Clients, found: Comparison) -> None:
    assert found.path is not None
    given: Any = {"seeds": SEEDS, "out": found.path}
    other = federation(seed=1)
    told = f"holds a comparison of split {clients.hash[:12]}, and this one is of split {other.hash[:12]}; use another"
    with pytest.raises(InputError, match=told):
        compare(["ditto"], other, **given, **QUICK)
    with pytest.raises(InputError, match=r"with rounds = 2 \(config \w{12}\), and this one has rounds = 3 \(config"):
        compare(["ditto"], clients, **given, **(QUICK | {"rounds": 3}))
    with pytest.raises(
        InputError, match=r"'.*runs/ditto-0' was run with prox_weight = 0.5, and now it is 1.0; use another"
    ):
        compare(["ditto"], clients, **given, **QUICK)
    with pytest.raises(InputError, match="model = <"):
        compare(["ucfl"], clients, **given, **(QUICK | {"model": torch.nn.Sequential(torch.nn.Linear(4, 3))}))


def test_overwrite_replaces_everything_of_its_own(clients: Clients, tmp_path: Path) -> None:
    place = tmp_path / "c"
    compare(["ditto"], clients, seeds=[0, 1], out=place, **QUICK)
    (place / "runs" / "mine").mkdir()
    (place / "runs" / "mine" / "notes.txt").touch()
    compare([methods.Ditto(prox_weight=3.0)], clients, seeds=[0], out=place, overwrite=True, **QUICK)
    assert sorted(one.name for one in (place / "runs").iterdir()) == ["ditto-0", "fedavg-0", "local-0", "mine"]
    stranger = tmp_path / "stranger"
    stranger.mkdir()
    (stranger / "thesis.tex").touch()
    for overwrite in (False, True):
        with pytest.raises(InputError, match="holds something that is not a comparison and is left unchanged"):
            compare(["ditto"], clients, out=stranger, overwrite=overwrite, **QUICK)


# -- tuning


GRIDS: Any = {"ditto": {"prox_weight": (0.1, 5.0)}, "fedavg": {"lr": (0.001, 0.3)}}


def test_tuned_methods_are_run_with_what_tuning_chooses(clients: Clients, tmp_path: Path) -> None:
    other = compare(["ditto"], clients, seeds=SEEDS, grids=GRIDS, out=tmp_path / "c", **QUICK)
    for name, grid in GRIDS.items():
        alone = tune(name, clients, grid=grid, seeds=SEEDS, **QUICK)
        assert other.entries[name].tuned is not None and other.entries[name].tuned["chosen"] == alone.best
        assert all(other.result(name, seed).hyper | alone.best == other.result(name, seed).hyper for seed in SEEDS)
        assert [p["validation_accuracy"] for p in other.entries[name].tuned["points"]] == [
            line["validation_accuracy"] for line in alone.table
        ]
    assert other.entries["local"].tuned is None and other.result("local", 0).hyper["lr"] == 0.05
    assert (tmp_path / "c" / "tune" / "ditto" / "grid.csv").exists()
    parallel = compare(["ditto"], clients, seeds=SEEDS, grids=GRIDS, **(QUICK | {"workers": 2}))
    assert [entry.hyper for entry in parallel.entries.values()] == [entry.hyper for entry in other.entries.values()]


def test_poisoned_test_labels_change_no_choice(clients: Clients) -> None:
    poisoned = replace(clients, y=clients.y.clone())
    poisoned.y[clients.test.indices] = (poisoned.y[clients.test.indices] + 1) % 3
    one, other = (compare(["persfl"], data, seeds=[0], tune=True, **QUICK) for data in (clients, poisoned))
    for name in one.methods:
        assert one.entries[name].hyper == other.entries[name].hyper
        before, after = one.entries[name].tuned, other.entries[name].tuned
        assert before is not None and after is not None and before["chosen"] == after["chosen"]
        own, theirs = one.result(name, 0), other.result(name, 0)
        assert own.personal["validation_loss"].tolist() == theirs.personal["validation_loss"].tolist()
        assert own.personal["accuracy"].tolist() != theirs.personal["accuracy"].tolist()  # they would be seen


def test_default_grids_fit_their_methods() -> None:
    assert set(candidates.GRIDS) <= set(methods.REGISTRY)
    for one in candidates.of(list(methods.REGISTRY)):
        grid = candidates.grid_of(one, True, {})
        assert len(candidates.points(one, grid)) == candidates.num_points(grid) == 12
    fixed = candidates.of([methods.FedProx(prox_weight=0.7)])[-1]
    assert list(candidates.grid_of(fixed, True, {})) == ["lr"]
    assert candidates.grid_of(fixed, False, {}) == {}


def test_a_tuning_that_cannot_be_done(clients: Clients) -> None:
    with pytest.raises(InputError, match="unknown hyper-parameter of ditto 'pul'"):
        compare(["ditto"], clients, grids={"ditto": {"pul": (1, 2)}}, **QUICK)
    with pytest.raises(InputError, match="'ucfl', which is not compared; compared are local, fedavg, ditto"):
        compare(["ditto"], clients, grids={"ucfl": {"lr": (1, 2)}}, **QUICK)
    with pytest.raises(InputError, match="prox_weight of ditto has both a fixed value and values in the grid"):
        compare([methods.Ditto(prox_weight=3.0)], clients, grids={"ditto": {"prox_weight": (1, 2)}}, **QUICK)
    nothing = ClientIndex(torch.zeros(0, dtype=torch.int64), torch.zeros(8, dtype=torch.int64))
    with pytest.raises(InputError, match="tuning needs validation data"):
        compare(["ditto"], replace(clients, validation=nothing), tune=True, **QUICK)


# -- what is given


def test_two_of_a_kind_are_told_apart(clients: Clients, tmp_path: Path) -> None:
    given = [methods.Ditto(prox_weight=0.1), methods.Ditto(prox_weight=2.0, lr=0.1)]
    other = compare(given, clients, seeds=[0], out=tmp_path / "c", **QUICK)
    assert other.methods[2:] == ["ditto (lr=0.05, prox_weight=0.1)", "ditto (lr=0.1, prox_weight=2.0)"]
    assert (tmp_path / "c" / "runs" / "ditto-lr=0.1,-prox_weight=2.0-0" / "result.json").exists()
    with pytest.raises(InputError, match="ditto is given twice with equal settings"):
        compare(["ditto", methods.Ditto()], clients, **QUICK)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"seed": 1}, "a comparison does not take seed"),
        ({"newcomers": 0.2}, "a comparison does not take newcomers"),
        ({"seeds": [0, 0]}, "seeds must be one or more different integers"),
        ({"seeds": []}, "seeds must be one or more different integers"),
        ({"roundz": 1}, "unknown setting 'roundz'; did you mean 'rounds'"),
        ({"methods": []}, "a comparison needs methods, got none"),
        ({"methods": "ditto"}, "methods must be a list"),
        ({"methods": ["dito"]}, "unknown method 'dito'; did you mean 'ditto'"),
        ({"clients": 3}, "clients must be Clients"),
        ({"device": "nowhere"}, "cannot compute on the device 'nowhere'"),
        ({"model": "mpl"}, "unknown model 'mpl'"),
    ],
)
def test_mistakes_are_told_before_anything_is_trained(
    given: dict[str, Any], told: str, clients: Clients, tmp_path: Path, counted: list[Any]
) -> None:
    values = {"methods": ["ditto"], "clients": clients, "out": tmp_path / "c", **QUICK} | given
    with pytest.raises(InputError, match=told):
        compare(values.pop("methods"), values.pop("clients"), **values)
    assert not counted


# -- runs that are there


def test_runs_that_are_there_are_compared_alike(found: Comparison, tmp_path: Path) -> None:
    assert found.path is not None
    folders = sorted((found.path / "runs").iterdir(), reverse=True)
    other = compare_runs(folders, out=tmp_path / "c")
    assert other.methods == found.methods and other.figures == found.figures
    assert other.best.method == found.best.method and other.fairest == found.fairest
    assert json.loads((tmp_path / "c" / "compare.json").read_text())["methods"][0]["runs"][0]["folder"] == str(
        found.path / "runs" / "local-0"
    )
    assert compare_runs([found.path]).figures == found.figures  # all of a comparison
    assert compare_runs([found.result("ditto", 0), found.result("ucfl", 0)]).methods == ["ditto", "ucfl"]
    with pytest.raises(InputError, match="already holds a comparison"):
        compare_runs(folders, out=tmp_path / "c")
    assert compare_runs(folders[:4], out=tmp_path / "c", overwrite=True).path == tmp_path / "c"


def test_runs_know_whether_they_were_tuned(found: Comparison, tmp_path: Path) -> None:
    assert found.untuned and compare_runs([found.path or ""]).untuned  # QUICK does not tune
    single = [found.result(name, 0).save(tmp_path / name) for name in ("local", "fedavg")]
    unknown = compare_runs(single)
    with pytest.warns(FutureWarning, match="Comparison.facts is now Comparison.metadata"):
        assert unknown.facts is unknown.metadata
    assert unknown.metadata.tuning is not None and unknown.metadata.tuning["tuned"] is None and not unknown.untuned
    assert "Hyper-parameters are of unknown origin, perhaps not tuned: local, fedavg." in unknown.notes
    assert "unknown whether the methods were tuned" in unknown.best.sentence
    mixed = compare_runs([*single, *(found.result("ditto", seed).path or "" for seed in SEEDS)])
    assert mixed.untuned_methods == ["ditto"]
    local = found.result("local", 1).path or ""  # in the same method as a run of unknown origin, not tuned
    twice = compare_runs([*single, local, *(found.result("ditto", seed).path or "" for seed in SEEDS)])
    assert twice.untuned_methods == ["local", "ditto"]
    assert "Hyper-parameters are not tuned: local, ditto; of unknown origin, perhaps not tuned: fedavg." in twice.notes
    assert "Local, ditto are not tuned, and tuning may change the order. It is unknown whether fedavg was tuned" in (
        twice.best.sentence
    )


def test_runs_of_different_splits_are_refused_with_both_hashes(clients: Clients, tmp_path: Path) -> None:
    other = federation(seed=1)
    run("local", clients, **QUICK).save(tmp_path / "a")
    run("local", other, **QUICK).save(tmp_path / "b")
    told = rf"got '.*/a' of split {clients.hash[:12]} and '.*/b' of split {other.hash[:12]}\."
    with pytest.raises(InputError, match=told):
        compare_runs([tmp_path / "a", tmp_path / "b"])


def test_runs_that_cannot_be_compared(clients: Clients, found: Comparison, tmp_path: Path) -> None:
    local = found.result("local", 0)
    with pytest.raises(InputError, match="two runs are of local with seed 0"):
        compare_runs([local, local])
    with pytest.raises(InputError, match="needs at least two, got 1"):
        compare_runs([local])
    with pytest.raises(InputError, match="is not the directory of a run"):
        compare_runs([local, tmp_path])
    held = run("local", clients, newcomers=0.3, **QUICK)
    with pytest.raises(InputError, match="held back different newcomers"):
        compare_runs([local, held])


def test_runs_that_differ_in_more_than_the_method_say_so(clients: Clients, found: Comparison) -> None:
    longer = run("ditto", clients, **(QUICK | {"rounds": 3}))
    other = compare_runs([longer, found.result("local", 0), found.result("local", 1)])
    assert "The methods differ in more than the method: rounds (3, 2)." in other.notes
    assert other.seeds == [0] and any("seeds that all methods have: 0" in note for note in other.notes)
    assert "not both were run" in other.fairest.sentence
    twice = compare_runs([longer, run("ditto", clients, **QUICK)])
    assert twice.methods == ["ditto (rounds=2)", "ditto (rounds=3)"]
    strangers = compare_runs([run("ditto", clients, seed=5, **QUICK), found.result("local", 0)])
    assert strangers.seeds == [] and strangers.standing is None and "no seed" in strangers.best.sentence
    assert all(strangers.figures.values())


def test_an_unfinished_run_is_said_to_be_so(clients: Clients, found: Comparison) -> None:
    def stop(progress: Any) -> None:
        if progress.done == 1:
            os.kill(os.getpid(), signal.SIGINT)

    stopped = run("ditto", clients, progress=stop, **(QUICK | {"rounds": 5}))
    assert stopped.interrupted
    other = compare_runs([stopped, found.result("local", 0)])
    assert any(re.match(r"ditto is unfinished with seed 0: \d of 5 rounds\.", note) for note in other.notes)
    assert not other.page()["finished"]


# -- long runs


def test_long_histories_are_thinned(found: Comparison) -> None:
    result = found.result("ditto", 0)
    long = [{**result.rounds[0], "round": at + 1, "up_bytes": 1, "alpha": at} for at in range(1000)]
    for at, line in enumerate(long):
        if (at + 1) % 5:
            line = long[at] = {key: value for key, value in line.items() if key not in ("personal", "global")}
    kept = bf.Result(
        config=result.config,
        about=result.about,
        names=result.names,
        sizes=result.sizes,
        personal=result.personal,
        global_=None,
        rounds=long,
        client_rounds=[],
        weights=result.weights,
    )
    columns = history(kept)
    assert columns["round"] == list(range(0, 1001, 5)) and columns["up_bytes"] == columns["round"]
    assert None not in columns["accuracy"]
    notes = method_records(kept)
    assert notes is not None
    alpha = notes["rounds"]["alpha"]
    assert len(alpha["round"]) == 60 and alpha["round"][0] == 1 and alpha["round"][-1] == 1000
    assert alpha["values"] == [at - 1 for at in alpha["round"]]


# -- the command


def call(*words: str) -> int:
    with pytest.raises(SystemExit) as ended:
        cli.main(["compare", *words])
    return int(ended.value.code or 0)


def test_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    assert (
        call("persfl-gd", *SHELL, "--set", "fedavg.lr=0.2", "--set", "lr=0.1", "--set", "persfl-gd.distil-epochs=2")
        == 0
    )
    shown = capsys.readouterr().out
    assert "One seed: there is no standard error" in shown and "Written to runs/compare" in shown
    rows = [line.split() for line in shown.splitlines()]
    table = {row[0]: row for row in reversed(rows) if row and row[0] in ("local", "fedavg", "persfl-gd")}
    assert len(table) == 3 and sum("*" in row for row in table.values()) == 1
    written = json.loads(Path("runs/compare/compare.json").read_text())
    hyper = {one["name"]: one["hyper"] for one in written["methods"]}
    assert hyper["local"]["lr"] == 0.1 and hyper["fedavg"]["lr"] == 0.2
    assert hyper["persfl-gd"]["lr"] == 0.1 and hyper["persfl-gd"]["distil_epochs"] == 2
    assert Path("runs/compare/report.html").exists()
    figures = written["methods"][2]["figures"]
    assert table["persfl-gd"][1] == f"{100 * figures['accuracy']['mean']:.2f}" and "test accuracy, %" in shown

    assert call("runs/compare/runs/local-0", "runs/compare/runs/fedavg-0", "--out", "c", "--quiet") == 0
    assert capsys.readouterr().out == "c\n"
    again = written["command"].split()[2:]  # what it says to have been does the same
    assert call(*again, "--workers", "1", "--quiet") == 0
    other = json.loads(Path("runs/compare-2/compare.json").read_text())
    assert [one["figures"]["accuracy"] for one in other["methods"]] == [
        one["figures"]["accuracy"] for one in written["methods"]
    ]


def test_a_run_of_the_command_can_be_repeated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From its folder alone, with data from a file and a seed that is not the split's."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    np.savez("mine.npz", x=rng.normal(size=(120, 4)), y=rng.integers(0, 2, 120), client=np.arange(120) % 4)
    words = ["--data", "mine.npz", "--rounds", "2", "--workers", "1", "--model", "logistic", "--seeds", "4-4"]
    assert call("ditto", *words, "--out", "c", "--quiet") == 0
    with pytest.raises(SystemExit) as ended:
        cli.main(["run", "--config", "c/runs/ditto-4/config.toml", "--out", "again", "--quiet"])
    assert not ended.value.code
    one, other = bf.load_run("c/runs/ditto-4"), bf.load_run("again")
    assert one.personal["loss"].tolist() == other.personal["loss"].tolist()
    assert one.about["split_hash"] == other.about["split_hash"]


def test_texts_and_regression_from_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    said, rng = ("good", "bad", "fine", "poor"), np.random.default_rng(0)
    lines = [f"s{at % 3},{' '.join(rng.choice(said, 4))},{'ab'[at % 2]},{rng.normal():.3f}" for at in range(60)]
    Path("own.csv").write_text("\n".join(["site,text,label,level", *lines]) + "\n")
    common = ["--data", "own.csv", "--client", "site", "--rounds", "1", "--seeds", "0", "--workers", "2", "--quiet"]
    words = ["--text", "text", "--label", "label", "--drop", "level", "--model", "lstm(4, 4)", "--vocabulary", "5"]
    assert call("ditto", *common, *words, "--out", "texts") == 0
    numbers = ["--label", "level", "--drop", "text", "--model", "mlp(hidden=(3,))", "--missing", "mean"]
    assert call("ditto", *common, *numbers, "--out", "numbers") == 0
    for name, score in (("texts", "accuracy"), ("numbers", "loss")):
        written = json.loads(Path(name, "compare.json").read_text())
        assert written["score"] == score and all(one["figures"] for one in written["methods"])


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["ditto", "--model", "mpl"], "unknown model 'mpl'"),
        (["ditto", "ditto"], "ditto is named twice"),
        (["ditto", "."], "give methods or directories of runs, not both"),
        (["."], "is not the directory of a run"),
        (["ditto", "--set", "ucfl.lr=1"], "--set has ucfl.lr, but 'ucfl' is not compared"),
        (
            ["ditto", "--set", "prox_weigth=1"],
            "unknown hyper-parameter of the methods compared 'prox_weigth'; did you mean 'prox_weight'?",
        ),
        (
            ["ditto", "--set", "ditto.prox_weigth=1"],
            "unknown hyper-parameter of ditto 'prox_weigth'; did you mean 'prox_weight'?",
        ),
        (["ditto", "--grid", "prox_weight=1,2"], "--grid must be followed by method.key=value,value"),
        (["ditto", "--grid", "ditto.rounds=1,2"], "unknown hyper-parameter of ditto 'rounds'"),
        (
            ["ditto", "--seeds", "a"],
            "--seeds must be a number of seeds, such as 5, or seeds, such as 0-9 or 0,1,2, got 'a'.",
        ),
        ([], "Missing argument 'METHODS'"),
    ],
)
def test_mistakes_are_one_sentence(
    words: list[str], told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert call(*words) == 2
    said = capsys.readouterr().err
    assert said.startswith("error: ") and told in said and said.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_hyper_parameters_in_a_config_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("c.toml").write_text(
        'rounds = 2\nclients = 5\nmodel = "logistic"\nworkers = 1\n[set]\nditto.prox_weight = 0.3\nlr = 0.2\n'
    )
    assert call("ditto", "--config", "c.toml", "--seeds", "0", "--out", "c", "--quiet") == 0
    written = json.loads(Path("c/compare.json").read_text())["methods"][2]["hyper"]
    assert (written["prox_weight"], written["lr"]) == (0.3, 0.2)
