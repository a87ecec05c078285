"""The metric of a comparison and of a tuning: what decides, the majority class beside it, and curves from round 0."""

import csv
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from bespokefl import cli, report
from bespokefl.core.errors import InputError
from bespokefl.data.clients import Clients
from bespokefl.workflows.compare.api import compare
from bespokefl.workflows.compare.existing_runs import compare_runs
from bespokefl.workflows.compare.plan import often_enough
from bespokefl.workflows.compare.result import Comparison
from bespokefl.workflows.results.result import load_run
from bespokefl.workflows.run.settings import RunSettings
from bespokefl.workflows.tune.api import tune

pytestmark = pytest.mark.slow  # they train several methods each

QUICK: dict[str, Any] = {"workers": 1, "batch_size": 16, "model": "logistic"}


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


def unbalanced(num: int = 6, size: int = 100) -> Clients:
    """Two classes, of which the second is rare; features that tell something about the label."""
    rng = np.random.default_rng(0)
    client, y = np.arange(size * num) % num, (rng.random(size * num) < 0.15).astype(np.int64)
    return Clients.from_arrays(rng.normal(size=(size * num, 3)) + y[:, None], y, client)


@pytest.fixture(scope="module")
def clients() -> Clients:
    return unbalanced()


@pytest.fixture(scope="module")
def found(clients: Clients, tmp_path_factory: pytest.TempPathFactory) -> Comparison:
    place = tmp_path_factory.mktemp("comparison") / "c"
    return compare(["ditto"], clients, seeds=(0, 1), metric="auc", rounds=12, out=place, **QUICK)


def test_the_metric_is_compared_and_shown_first(found: Comparison, clients: Clients) -> None:
    assert found.score == "auc" and found.higher_is_better
    own = np.stack([found.result("ditto", seed).personal["auc"] for seed in (0, 1)])
    np.testing.assert_array_equal(found.known_scores("ditto"), own)
    figures = found.figures["ditto"]
    assert figures is not None and figures["auc"]["mean"] == pytest.approx(np.nanmean(own))
    assert figures["auc"]["interval"] is not None and {"accuracy", "brier", "ece"} <= figures.keys()
    ranked = sorted(found.methods, key=lambda name: -np.nanmean(found.known_scores(name)))
    assert found.ranking == ranked and "mean AUC" in repr(found)


def test_a_metric_that_is_better_when_low_is_ranked_from_below(found: Comparison) -> None:
    again = compare_runs([found.path or ""], metric="brier")
    assert again.score == "brier" and not again.higher_is_better
    assert again.ranking == sorted(again.methods, key=lambda name: np.nanmean(again.known_scores(name)))


def test_scores_below_zero_are_compared() -> None:
    """R² of a poor model is negative; measures of fairness are then undefined."""
    rng = np.random.default_rng(0)
    client, y = np.arange(120) % 4, 10 + rng.normal(size=120)
    poor = compare(
        ["ditto"], Clients.from_arrays(rng.normal(size=(120, 2)), y, client), seeds=(0,), metric="r2", tune=False,
        rounds=1, **QUICK,
    )  # fmt: skip
    figures = poor.figures["ditto"]
    assert figures is not None and figures["r2"]["mean"] < 0 and figures["fairness"]["score"] is None
    assert "mean R²" in repr(poor)


def test_runs_of_a_comparison_keep_how_they_were_tuned(found: Comparison) -> None:
    again = compare_runs([found.path or ""], metric="brier")
    assert again.metadata.budget == "steps" and not again.untuned
    assert all(line["tuned"] for line in again.table[:-1])
    for name, entry in found.entries.items():
        assert again.entries[name].tuned == json.loads(json.dumps(entry.tuned))
    for sentence in ("were chosen by validation AUC from", "of at most 10 min", "(budget steps)", "test Brier score"):
        assert sentence in again.description


def test_a_verdict_names_a_majority_class_that_is_not_beaten(clients: Clients, found: Comparison) -> None:
    """Features without a relation to the label: the best model is a constant one, which accuracy hides."""
    rng = np.random.default_rng(1)
    noise = Clients.from_arrays(rng.normal(size=(len(clients.y), 3)), clients.y.numpy(), np.arange(len(clients.y)) % 6)
    own = QUICK | {"seeds": (0, 1), "rounds": 3, "tune": False}
    known, limit = compare(["ditto"], noise, **own), "not significantly better than that of the majority class ("
    for verdict in (known.best, known.fairest):
        assert limit in verdict.sentence and "--metric balanced_accuracy or auc" in verdict.sentence
    assert limit not in found.best.sentence


def test_the_majority_class_is_the_same_in_every_run_and_in_every_table(found: Comparison, clients: Clients) -> None:
    assert found.constant is not None
    for entry in found.entries.values():
        for run in entry.runs.values():
            assert run.constant is not None
            np.testing.assert_array_equal(run.constant["accuracy"], found.constant["accuracy"])
    tests = [clients.y[clients.test.of(k)] for k in range(len(clients))]
    np.testing.assert_allclose(found.constant["accuracy"], [float((one == 0).double().mean()) for one in tests])
    assert re.search(r"majority class: mean AUC 0\.5", repr(found))
    stored = json.loads((found.path / "compare.json").read_text())["constant"]  # type: ignore[operator]
    assert stored["name"] == "majority class" and stored["figures"]["auc"]["mean"] == 0.5
    with (found.path / "clients.csv").open() as file:  # type: ignore[operator]
        line = next(csv.DictReader(file))
    assert float(line["constant_accuracy"]) == found.constant["accuracy"][0]


def test_the_page_draws_the_majority_class_and_curves_from_round_0(found: Comparison, tmp_path: Path) -> None:
    assert found.path is not None
    text = report.write(found.path, tmp_path / "page.html").read_text(encoding="utf-8")
    numbers = json.loads(re.findall(r'<script[^>]*id="?numbers"?[^>]*>(.*?)</script>', text, re.DOTALL)[0])
    assert numbers["score"] == "auc" and numbers["title"] == "AUC"
    assert numbers["followed"] == {"score": "auc", "title": "AUC", "percent": False}
    other = compare_runs(
        [found.path], metric="brier", out=tmp_path / "brier"
    ).path  # of which the runs know the end only
    text_of_other = report.write(other, tmp_path / "other.html").read_text(encoding="utf-8")  # type: ignore[arg-type]
    assert '"followed":{"score":"accuracy","title":"accuracy","percent":true}' in text_of_other
    last = numbers["methods"][-1]
    assert last["name"] == "majority class" and last["constant"] and len(numbers["methods"]) - 1 in numbers["shown"]
    assert set(last["scores"]) <= {0.5, None} and last["curve"]["round"] == [0, 12]
    for one in numbers["methods"][:-1]:
        assert one["curve"]["round"][0] == 0 and len(one["curve"]["round"]) >= 12
        assert one["curve"]["bytes"][0] == 0
    assert {"auc", "global_auc"} <= {*found.rounds_frame().columns} and "auc" in found.client_rounds_frame()
    starts = {tuple(one["curve"]["mean"][:1]) for one in numbers["methods"][:-1]}
    assert len(starts) == 1  # all methods start from the same weights
    assert text.count("majority class") >= 3  # in the ranking, the legend and the table of clients


@pytest.mark.parametrize("rounds", [1, 11, 12, 20, 22, 33, 50, 100, 500])
def test_a_curve_has_ten_points_between_the_first_and_the_last(rounds: int) -> None:
    every = often_enough(RunSettings(method="ditto", rounds=rounds))
    between = [number for number in range(1, rounds) if number % every == 0]
    assert len(between) >= min(10, rounds - 1) and 1 <= every <= RunSettings.eval_every
    assert often_enough(RunSettings(method="ditto", rounds=rounds, eval_every=7)) == 7


def test_a_method_with_fewer_rounds_has_as_many_points(clients: Clients) -> None:
    small = {"rounds": 22, "model": "logistic", "local_steps": 1, "budget": "gradients", "seeds": 1, "tune": False}
    found = compare(["ditto"], clients, workers=1, **small)
    for name, rounds in (("fedavg", 22), ("ditto", 11)):
        evaluated = [one["round"] for one in found.result(name, 0).client_scores]
        assert evaluated[0] == 0 and evaluated[-1] == rounds and len(evaluated) >= 12


def test_tuning_chooses_by_the_metric_on_validation_data(clients: Clients, tmp_path: Path) -> None:
    grid = {"lr": (1e-4, 0.05, 0.5)}
    by = {
        metric: tune("local", clients, grid=grid, metric=metric, rounds=2, out=tmp_path / str(metric), **QUICK)
        for metric in (None, "log_loss", "balanced_accuracy")
    }
    for metric, sign in (("log_loss", -1), ("balanced_accuracy", 1)):
        found = by[metric]
        values = [line[f"validation_{metric}"] for line in found.table]
        assert found.by == f"validation_{metric}" and found.chosen == int(np.argmax(sign * np.array(values)))
        assert f"validation_{metric}" in (tmp_path / metric / "grid.csv").read_text().splitlines()[0]
    assert by[None].by == "validation_accuracy"
    accuracies = [[line["validation_accuracy"] for line in one.table] for one in by.values()]
    assert accuracies[0] == accuracies[1] == accuracies[2]
    again = tune("local", clients, grid=grid, metric="auc", rounds=2, out=tmp_path / "log_loss", **QUICK)
    assert again.by == "validation_auc"  # all metrics are stored, so that nothing is trained again


def test_points_stored_without_the_metric_are_trained_again(clients: Clients, tmp_path: Path) -> None:
    given: dict[str, Any] = {"grid": {"lr": (0.05, 0.5)}, "rounds": 1, "out": tmp_path / "t", **QUICK}
    whole = tune("local", clients, metric="auc", **given)
    content = json.loads((tmp_path / "t" / "tuning.json").read_text())
    for cell in content["cells"].values():
        for name in [name for name in cell if name.startswith("validation_") and name[11:] not in ("accuracy", "loss")]:
            del cell[name]
    (tmp_path / "t" / "tuning.json").write_text(json.dumps(content))
    again = tune("local", clients, metric="auc", **given)
    assert [line["validation_auc"] for line in again.table] == [line["validation_auc"] for line in whole.table]


def test_comparisons_are_tuned_by_their_metric(clients: Clients) -> None:
    made = compare(
        ["local"], clients, seeds=(0,), grids={"local": {"lr": (1e-4, 0.5)}}, metric="auc", rounds=1, **QUICK
    )
    tuned = made.entries["local"].tuned
    assert tuned is not None and tuned["by"] == "validation_auc"


def test_unknown_and_unfit_metrics_are_one_sentence(clients: Clients, capsys: pytest.CaptureFixture[str]) -> None:
    for call in (
        lambda: compare(["ditto"], clients, metric="aucc"),
        lambda: tune("ditto", clients, grid={"lr": (1.0,)}, metric="aucc"),
    ):
        with pytest.raises(InputError, match="unknown metric 'aucc'; did you mean 'auc'"):
            call()
    with pytest.raises(InputError, match="'r2' is not defined for these models"):
        compare(["ditto"], clients, metric="r2")
    with pytest.raises(SystemExit) as ended:
        cli.main(["compare", "ditto", "--metric", "speed", "--clients", "4"])
    assert ended.value.code == 2 and "unknown metric 'speed'" in capsys.readouterr().err


def test_runs_and_comparisons_of_earlier_versions_are_read(found: Comparison, tmp_path: Path) -> None:
    """They have neither constant predictors, nor round 0, nor the new metrics."""
    paths = []
    for name in ("local", "ditto"):
        path = found.result(name, 0).save(tmp_path / name)
        about = json.loads((path / "result.json").read_text())
        for key in ("constant", "initial"):
            del about[key]
        (path / "result.json").write_text(json.dumps(about))
        with (path / "clients.csv").open() as file:
            rows = list(csv.DictReader(file))
        kept = [key for key in rows[0] if not key.startswith("constant") and "auc" not in key]
        with (path / "clients.csv").open("w") as file:
            writer = csv.DictWriter(file, kept, extrasaction="ignore")
            writer.writeheader()
            writer.writerows(rows)
        paths.append(path)
    assert load_run(paths[0]).constant is None
    old = compare_runs(paths, out=tmp_path / "both")
    assert old.score == "accuracy" and old.constant is None and "majority" not in repr(old)
    assert old.page()["constant"] is None
    assert "majority" not in report.write(tmp_path / "both").read_text(encoding="utf-8")
    report.write(paths[0])
    with pytest.raises(InputError, match="'auc' is not defined for these models"):
        compare_runs(paths, metric="auc")
