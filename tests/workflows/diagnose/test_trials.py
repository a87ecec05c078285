"""Trials: what is held out, gains with their intervals, and the verdicts that follow."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

import bespokefl as bf
from bespokefl.core.client_index import ClientIndex
from bespokefl.engines.client import Data
from bespokefl.report import diagnosis as page
from bespokefl.workflows.diagnose import recommendation, trials
from bespokefl.workflows.diagnose.recommendation import CLOSE, STAY, Recommendation
from bespokefl.workflows.diagnose.result import Client
from bespokefl.workflows.diagnose.trials import TrialResult, Trials

BY_RULE = Recommendation("persfl", {}, ("Because.",), ("ditto",))


def data_of(train: list[list[int]], validation: list[list[int]], test: list[list[int]]) -> Data:
    parts = (ClientIndex.of_lists([np.array(own) for own in one]) for one in (train, validation, test))
    return Data(torch.zeros(40, 2), torch.zeros(40), tuple(f"c{i}" for i in range(len(train))), *parts)


def test_every_example_but_the_test_data_is_held_out_once() -> None:
    data = data_of([[0, 1, 2, 3, 4, 5], [10, 11]], [[6, 7], [12]], [[8, 9], [13]])
    parts = list(trials.held_out(data, seed=0))
    held = [one.validation.of(0).tolist() for one in parts]
    assert sorted(at for own in held for at in own) == list(range(8))
    for one, out in zip(parts, held, strict=True):
        assert sorted(one.train.of(0).tolist() + out) == list(range(8))
        assert one.test.sizes.tolist() == [0, 0]
        # the second client has too few examples: it trains and is not judged
        assert (sorted(one.train.of(1).tolist()), one.validation.of(1).tolist()) == ([10, 11, 12], [])


def test_gains_by_hand() -> None:
    local = np.zeros((2, 3))
    ours = np.array([[0.1, 0.3, np.nan], [0.3, 0.1, np.nan]])
    sizes = np.array([[10, 10, 0], [10, 30, 0]])
    found = trials.gains(ours, local, sizes)
    d = [0.2, (10 * 0.3 + 30 * 0.1) / 40]
    assert found.mean == pytest.approx(np.mean(d))
    v = (10 * 0.01 + 10 * 0.01 + 10 * 0.15**2 + 30 * 0.05**2) / 2
    between = max(np.var(d, ddof=1) - np.mean([v / 20, v / 40]), 0)
    assert between == 0  # so that the best guess is the same for both
    np.testing.assert_allclose(found.predicted[:2], np.mean(d))
    assert np.isnan(found.predicted[2])
    half = 12.7062 * np.std(d, ddof=1) / np.sqrt(2)  # Student's t with one degree of freedom
    assert found.high == pytest.approx(np.mean(d) + half, rel=1e-4)


def test_clear_differences_between_clients_are_kept() -> None:
    local, sizes = np.zeros((3, 4)), np.full((3, 4), 1000)
    ours = np.array([[0.2, -0.2, 0.1, 0.0]] * 3) + np.array([[0.001], [0.0], [-0.001]])
    found = trials.gains(ours, local, sizes)
    np.testing.assert_allclose(found.predicted, [0.2, -0.2, 0.1, 0.0], atol=1e-3)
    assert found.client_low[0] > 0 > found.client_high[1]


def test_intervals_cover_planted_gains() -> None:
    rng = np.random.default_rng(0)
    covered, clients = [], []
    for _ in range(300):
        truth = 0.03 + 0.04 * rng.standard_normal(20)
        sizes = np.full((3, 20), 15)
        ours = truth + np.sqrt(0.2 / sizes) * rng.standard_normal((3, 20))
        found = trials.gains(ours, np.zeros((3, 20)), sizes)
        assert found.low is not None and found.high is not None
        covered.append(found.low <= 0.03 <= found.high)
        clients.append((found.client_low <= truth) & (truth <= found.client_high))
    assert 0.92 < np.mean(covered) < 0.98
    assert 0.9 < np.mean(clients) < 0.99


def trials_of(gain: float, low: float | None, high: float | None, metric: str = "accuracy") -> Trials:
    local = TrialResult("local", {}, 0.1, 0.8, None, None, None)
    best = TrialResult("fedavg", {}, 0.3, 0.8 + gain, gain, low, high)
    other = TrialResult("ucfl", {"streams": 2}, 0.3, 0.8 + gain - 0.1, gain - 0.1, None, None)
    failed = TrialResult("fedavg-ft", {}, None, None, None, None, None)
    return Trials(metric, 20, (local, best, failed, other), {}, [gain], [low], [high])


@pytest.mark.parametrize(
    ("figures", "method", "verdict"),
    [
        ((0.05, 0.02, 0.08), "fedavg", "one common model"),
        ((-0.05, -0.08, -0.02), "local", STAY),
        ((-0.01, -0.03, 0.01), "local", CLOSE),
        ((0.005, -0.03, 0.04), "local", CLOSE),  # ahead by less than a point: Local needs nobody else
        ((0.03, -0.01, 0.07), "fedavg", CLOSE),
        ((0.03, None, None), "fedavg", CLOSE),
    ],
)
def test_verdicts(figures: tuple[float, float | None, float | None], method: str, verdict: str) -> None:
    found = recommendation._by_trials(trials_of(*figures), BY_RULE)
    assert (found.method, found.verdict) == (method, verdict)
    assert method not in found.alternatives and "persfl" in found.alternatives
    assert ("within noise" in " ".join(found.reasons)) == (verdict == CLOSE)


@pytest.mark.parametrize(
    ("low", "high", "in_groups", "advice"),
    [
        (0.01, 0.03, False, "with everybody"),
        (0.01, 0.03, True, "with its group"),
        (-0.03, -0.01, True, STAY),
        (-0.01, 0.01, True, CLOSE),
        (None, None, False, "with everybody"),  # no trials: by the variance ratio
    ],
)
def test_advice_to_a_client(low: float | None, high: float | None, in_groups: bool, advice: str) -> None:
    one = Client("a", 10, 1.0, 2.0, 1.0, 3.0, 0, [])
    middle = None if low is None or high is None else (low + high) / 2
    assert replace(one, predicted=middle, low=low, high=high, in_groups=in_groups).advice == advice


def test_losses_gain_when_they_fall() -> None:
    scores = {"local": np.full((3, 4), 2.0), "fedavg": np.full((3, 4), 1.5)}
    rates = dict.fromkeys(scores, 0.1)
    found = trials._summary({name: {} for name in scores}, scores, rates, np.full((3, 4), 5), "loss", 20)
    assert found.rival.gain == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("scores", "expected"),
    [({}, 0.1), ({0.1: 1.0}, 0.3), ({0.1: 1.0, 0.3: 2.0}, 1.0), ({0.1: 1.0, 0.3: -np.inf}, 0.03)],
)
def test_rates_are_searched_in_the_better_direction(scores: dict[float, float], expected: float) -> None:
    assert trials._next_rate(scores) == expected


@pytest.mark.slow
def test_trials_end_to_end() -> None:
    clients = bf.load("digits").split("classes(k=2)", clients=4, seed=1)
    steps: list[Any] = []
    found = bf.diagnose(
        clients, model="logistic", steps=2, trial_rounds=2, seed=1, workers=1, progress=lambda now: steps.append(now)
    )
    assert found.trials is not None
    assert [one.method for one in found.trials.candidates][:3] == ["local", "fedavg", "fedavg-ft"]
    assert steps[-1].done == steps[-1].total == len(steps)
    known = found.document()
    assert known["trials"]["candidates"][0]["method"] == "local"
    assert known["recommendation"]["verdict"] is not None
    assert "Predicted gain" in page.html(known)


def test_diagnoses_of_earlier_versions_are_shown() -> None:
    clients = bf.load("digits").split("iid", clients=4, seed=1)
    known = bf.diagnose(clients, model="logistic", steps=2, trial_rounds=0, workers=1).document()
    del known["trials"], known["recommendation"]["verdict"], known["about"]["trial_rounds"], known["about"]["metric"]
    for one in known["clients"]:
        for name in ("predicted", "low", "high", "in_groups"):
            del one[name]
    assert "no gain in accuracy is predicted" in page.html(known)
