"""Test a comparison as data frames, and its methods paragraph."""

from typing import Any

import numpy as np
import pytest

import bespokefl as bf
from bespokefl.core.errors import InputError
from bespokefl.workflows.compare import candidates, pilot
from bespokefl.workflows.compare.result import Comparison
from bespokefl.workflows.results import frames
from bespokefl.workflows.tune import schedule


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Comparison:
    clients = bf.load("digits").split("iid", clients=3, seed=0)
    out = tmp_path_factory.mktemp("all") / "c"
    return bf.compare(["ditto"], clients, seeds=2, model="logistic", rounds=3, workers=1, tune=False, out=out)


def small() -> bf.Clients:
    rng = np.random.default_rng(1)
    client, y = np.arange(120) % 4, rng.integers(0, 3, 120)
    return bf.Clients.from_arrays(rng.normal(size=(120, 4)) + 1.5 * np.eye(4)[y], y, client)


def test_frames_are_tidy(found: Comparison) -> None:
    clients = found.clients_frame()
    assert len(clients) == 3 * 2 * 3 and {"method", "seed", "client", "personal_accuracy", "gain"} <= {*clients.columns}
    rounds = found.rounds_frame()
    assert len(rounds) == 3 * 2 * 4  # methods × seeds × rounds 0 to 3
    assert not rounds.duplicated(["method", "seed", "round"]).any()
    methods = found.methods_frame()
    assert [*methods["method"]] == [*found.ranking, "majority class"]
    assert methods["accuracy"].iloc[0] == found.figures[found.ranking[0]]["accuracy"]["mean"]  # type: ignore[index]


def test_clients_over_rounds_start_at_zero_and_end_with_the_scores(found: Comparison) -> None:
    every = found.client_rounds_frame()
    assert len(every) == 3 * 2 * 4 * 3
    start = every[every["round"] == 0].groupby(["seed", "client"])["accuracy"].nunique()
    assert (start == 1).all()  # all methods start with the same weights
    means = every.groupby(["method", "seed", "round"])["accuracy"].mean().to_numpy()
    expected = found.rounds_frame().sort_values(["method", "seed", "round"])["accuracy"].to_numpy()
    assert means == pytest.approx(expected, abs=1e-5)
    run = found.result("ditto", 1)
    last = every[(every["method"] == "ditto") & (every["seed"] == 1) & (every["round"] == 3)]
    assert last["accuracy"].to_numpy() == pytest.approx(run.personal["accuracy"], abs=1e-5)
    assert len(run.client_rounds_frame()) == 12 and len(run.clients_frame()) == 3 and len(run.rounds_frame()) == 4


def test_runs_of_earlier_versions_have_no_scores_over_rounds(found: Comparison) -> None:
    (found.path / "runs" / "ditto-0" / "client_scores.jsonl").unlink()  # type: ignore[operator]
    assert bf.load_run(found.path / "runs" / "ditto-0").client_rounds_frame().empty  # type: ignore[operator]


def test_without_pandas(found: Comparison, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frames, "find_spec", lambda name: None)
    with pytest.raises(InputError, match=r"need pandas, which is not installed; pip install .bespokefl\[pandas\]"):
        found.clients_frame()


def test_methods_paragraph(found: Comparison) -> None:
    text = found.description
    for part in (
        "We compared 3 untuned methods (local, fedavg and ditto) on digits, split by iid",
        "3 clients with",
        "for 3 rounds, with all clients in each round, 1 local epoch with batches of 10 examples, with 2 seeds (0, 1)",
        "All methods had at most the same number of local steps per client and round (budget steps)",
        "The work differs: compared with most methods, the number of gradients is 2 times as large for ditto.",
        "The methods were not tuned",
        "We report test accuracy",
        "linear mixed model with seeds and clients as random effects (two-sided, level 0.05, Holm's correction",
        "The software was Bespoke",
    ):
        assert part in text, part
    assert found.page()["description"] == text


def test_methods_paragraph_of_a_tuned_and_unfinished_comparison(found: Comparison) -> None:
    from dataclasses import replace

    points = [{"lr": value} for value in (0.1, 1.0, 10.0)]
    tuned = {"by": "validation_accuracy", "chosen": {"lr": 10.0}, "points": points, "edge": ["lr"], "widened": 2}
    tuning = {"tuned": True, "seconds": 30.0, "limit": 60.0, "sentences": []}
    metadata = replace(found.metadata, tuning=tuning, interrupted=True, planned=9, budget="none")
    text = Comparison([replace(one, tuned=tuned) for one in found.entries.values()], metadata).description
    for part in (
        "The comparison is unfinished: 6 of 9 runs are complete.",
        "chosen by validation accuracy from 3 points of a grid, in 30 s of at most 60 s",
        "ditto (2 times)",
        "The best point still lies on an edge of what was tried for local (lr), fedavg (lr) and ditto (lr).",
        "The work was not equalized",
    ):
        assert part in text, part
    assert "untuned" not in text


@pytest.mark.slow
def test_methods_paragraph_of_a_tuning(monkeypatch: pytest.MonkeyPatch) -> None:
    """Local and FedAvg try half the local steps, which is no widening, and choose for themselves."""
    monkeypatch.setattr(schedule, "MIN_ROUNDS", 1)
    for name in ("local", "fedavg", "ditto"):
        monkeypatch.setitem(candidates.GRIDS, name, {"lr": [0.05, 0.1, 0.2, 0.3]})
    monkeypatch.setattr(schedule, "edges", lambda best, tried: {"lr": 0.4} if 0.4 not in tried["lr"] else {})
    clients = small()
    settings: dict[str, Any] = {"model": "logistic", "rounds": 4, "workers": 1, "local_epochs": 2, "seeds": 2}
    found = bf.compare(["ditto"], clients, **settings)
    text = found.description
    for part in (
        "Points were compared after 2 and 4 rounds, the best third going on from one stage to the next (successive "
        "halving), and the best of them by their mean over 2 seeds.",
        "another number of local steps was tried for local (local epochs 1) and fedavg (local epochs 1).",
        "Grids were widened where the best point lay on an edge: local (once), fedavg (once) and ditto (once).",
        "for 4 rounds, with all clients",
    ):
        assert part in text, part
    fewer = [name for name in found.methods if found.result(name, 0).config.local_epochs == 1]
    own = ", ".join(f"{name} 1" for name in fewer).replace(", ", " and ")
    assert f"2 local epochs{own and f' ({own})'} with batches" in text
    monkeypatch.setattr(schedule, "edges", lambda best, tried: {})
    assert "widened" not in bf.compare(["local"], clients, **settings | {"rounds": 1, "seeds": 1}).description


@pytest.mark.slow
@pytest.mark.parametrize("budget", ["gradients", "time"])
def test_methods_paragraph_of_equal_totals(budget: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def measure(plan: Any, one: candidates.Candidate, *others: Any) -> dict[str, float]:
        return {"start": 0.0, "round": 0.2 if one.name == "ditto" else 0.1, "end": 0.0}

    monkeypatch.setattr(pilot, "_measure", measure)
    clients = small()
    settings: dict[str, Any] = {"model": "logistic", "rounds": 4, "workers": 1, "seeds": 1, "tune": False}
    text = bf.compare(["ditto"], clients, budget=budget, **settings).description
    assert "for 4 rounds (ditto 2), with all clients" in text
    what = "the total number of gradients" if budget == "gradients" else "the processor time"
    assert f"All methods had at most {what} of FedAvg" in text and f"(budget {budget})" in text
