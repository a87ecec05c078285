"""The studies: their federations are what they say, and their claims hold, on digits and on clothes."""

import gzip
import json
from pathlib import Path

import numpy as np
import pytest

from bespokefl.data.dataset import Dataset
from bespokefl.experiments.reproduce import digits, reproduce, selffl_synthetic
from bespokefl.theory import two_level

FASHION = Path("/usr/share/datasets/fashion-mnist")  # Debian's package dataset-fashion-mnist


def test_the_synthetic_federation_is_the_two_level_model() -> None:
    """Its data give each client the loss (θ − z)² / (2σ²) with σ² = .1 / N: gradient (θ − z) / σ² at θ."""
    one = selffl_synthetic.federation(selffl_synthetic.CASES[1], 0)
    for m in range(selffl_synthetic.CLIENTS):
        own = one.data.train.of(m)
        x, y = one.data.x[own, 0].numpy(), one.data.y[own].numpy()
        theta = 0.7
        gradient = np.mean(x * (x * theta - y))
        assert np.isclose(gradient, (theta - one.measured[m]) / one.variance[m], rtol=1e-4)
        assert np.isclose(one.variance[m], 0.1 / len(own))


@pytest.mark.slow
def test_self_fl_reaches_its_theory_and_claims_are_checked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A part of the study: with all active and known variances, personal errors are near the FL-optimum's."""
    case = selffl_synthetic.CASES[0]
    members = [selffl_synthetic.federation(case, repeat) for repeat in range(20)]
    found = selffl_synthetic.errors(selffl_synthetic.methods(case, 1.0)["Self-FL"], members, 1.0, 60)
    oracle = [
        float(np.abs(two_level.fl_optimum(one.measured, case.between, one.variance) - one.truth).mean())
        for one in members
    ]
    assert np.mean(found["personal"]) < 1.1 * np.mean(oracle)


def test_a_study_goes_on_where_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def counted(name: str, rate: float, epochs: int, clients: object) -> dict[str, list[float]]:
        calls.append(name)
        if len(calls) == 5:
            raise KeyboardInterrupt
        return {"validation": [0.5, 0.6], "test": [0.5, 0.6]}

    monkeypatch.setattr(digits, "accuracies", counted)
    with pytest.raises(KeyboardInterrupt):
        reproduce("digits", out=tmp_path, part=True)
    done = len(json.loads((tmp_path / "part.json").read_text()))
    assert done == 4
    reproduce("digits", out=tmp_path, part=True)
    assert len(calls) - 5 == len(json.loads((tmp_path / "part.json").read_text())) - done


def test_a_claim_can_fail() -> None:
    cells = {
        f"{scenario.name}/{name}/lr=1": {"validation": [0.5] * 5, "test": [0.9 - 0.01 * seed for seed in range(5)]}
        for scenario in digits.SCENARIOS
        for name in scenario.methods
    }
    assert all(holds for _, holds in digits.claims(cells))
    cells["classes/ucfl/lr=1"]["test"] = [0.5] * 5
    failed = [sentence for sentence, holds in digits.claims(cells) if not holds]
    assert len(failed) == 1 and "ucfl" in failed[0]


@pytest.mark.slow
def test_personalization_pays_on_digits(tmp_path: Path) -> None:
    """Twenty clients, five seeds, rates chosen on validation; slack of two standard errors, fixed beforehand.

    One claim does not hold, and docs/where-it-pays.md says so: with 54 examples a client, UCFL's survey cannot tell
    clients apart that name the digits differently. Should that change, the page has to.
    """
    reproduce("digits", out=tmp_path)
    cells = json.loads((tmp_path / "cells.json").read_text())
    failed = [sentence.split(" by ")[0] for sentence, holds in digits.claims(cells) if not holds]
    assert failed == ["permuted: ucfl is above local"]


def _read(name: str, offset: int) -> np.ndarray:
    return np.frombuffer(gzip.decompress((FASHION / name).read_bytes()), dtype=np.uint8, offset=offset)


@pytest.mark.slow
def test_personalization_pays_on_fashion_mnist() -> None:
    """Fifty clients with three kinds of clothes each, 6,000 pictures, two seeds: all four are above FedAvg."""
    if not FASHION.exists():
        pytest.skip("needs Fashion-MNIST: install Debian's package dataset-fashion-mnist")
    x = _read("train-images-idx3-ubyte.gz", 16).reshape(-1, 1, 28, 28)[:6000]
    y = _read("train-labels-idx1-ubyte.gz", 8)[:6000].astype(np.int64)
    data = Dataset.from_arrays(x, y, name="fashion-mnist")
    scenario = digits.SCENARIOS[0]
    clients = [scenario.clients(data, 50, seed) for seed in range(2)]
    cells = {
        f"{scenario.name}/{name}/lr=0.1": digits.accuracies(name, 0.1, 1, clients, rounds=15)
        for name in scenario.methods
    }
    assert [sentence for sentence, holds in digits.claims(cells, [scenario]) if not holds] == []
