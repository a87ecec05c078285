"""Predictions: what a client's own model says, in the labels that the data had."""

import csv
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from bespokefl.core.errors import InputError
from bespokefl.data.clients import Clients
from bespokefl.workflows.newcomers.personalize import personalize
from bespokefl.workflows.newcomers.predict import BATCH, answer, predict
from bespokefl.workflows.results.result import Result
from bespokefl.workflows.run.api import run

QUICK: dict[str, Any] = {"rounds": 2, "workers": 1, "model": "logistic"}


def federation() -> Clients:
    rng = np.random.default_rng(0)
    y = np.arange(90) % 3
    x = rng.normal(size=(90, 4)) + 3 * np.eye(4)[y]
    return Clients.from_arrays(x, np.array(["cat", "dog", "eel"])[y], np.array(["ada", "ben"])[np.arange(90) % 2])


@pytest.fixture(scope="module")
def result() -> Result:
    return run("ditto", federation(), **QUICK)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    rng = np.random.default_rng(1)
    np.savez(tmp_path / "x.npz", x=rng.normal(size=(BATCH + 5, 4)))
    return tmp_path / "x.npz"


def test_labels_and_probabilities_are_those_of_the_clients_model(result: Result, data: Path, tmp_path: Path) -> None:
    x = torch.from_numpy(np.load(data)["x"]).float()
    with torch.no_grad():
        outputs = result.model("ben")(x).double()
    found = predict(result.save(tmp_path / "run"), "ben", data)
    assert found.classes == ("cat", "dog", "eel") and len(found) == BATCH + 5
    assert found.labels == tuple(found.classes[at] for at in outputs.argmax(1).tolist())
    assert found.probabilities is not None
    expected = outputs.exp() / outputs.exp().sum(1, keepdim=True)
    np.testing.assert_allclose(found.probabilities, expected.numpy(), rtol=1e-5)
    assert predict(result, "ada", data).probabilities.tolist() != found.probabilities.tolist()  # type: ignore[union-attr]


def test_the_file(result: Result, data: Path, tmp_path: Path) -> None:
    found = predict(result, "ada", data)
    path = found.save(tmp_path / "new" / "predictions.csv")
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0]) == ["example", "label", "probability_cat", "probability_dog", "probability_eel"]
    assert [int(row["example"]) for row in rows] == list(range(len(found)))
    assert tuple(row["label"] for row in rows) == found.labels
    assert found.probabilities is not None
    assert [float(row["probability_eel"]) for row in rows] == found.probabilities[:, 2].tolist()
    with pytest.raises(InputError, match="exists already; use --overwrite"):
        found.save(path)
    found.save(path, overwrite=True)
    with pytest.raises(InputError, match="is a directory; give the name of a file"):
        found.save(tmp_path)
    assert {one.name for one in path.parent.iterdir()} == {"predictions.csv"}


def test_a_newcomers_model_predicts_as_well(result: Result, data: Path, tmp_path: Path) -> None:
    clients = federation()
    late = personalize(result, replace(clients, names=("cleo", "dan")))
    from_disk = predict(late.save(tmp_path / "late"), "dan", data)
    assert from_disk.labels == predict(late, "dan", data).labels
    held_back = run("ditto", clients, newcomers=0.5, **QUICK)
    assert held_back.newcomers is not None
    path = held_back.save(tmp_path / "run")
    for name in clients.names:
        assert predict(path, name, data).labels == predict(held_back, name, data).labels


def test_regression_has_values(data: Path, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(40, 4))
    result = run("ditto", Clients.from_arrays(x, x.sum(1), np.arange(40) % 2), precision="float64", **QUICK)
    found = predict(result, "1", data)
    with torch.no_grad():
        expected = result.model("1")(torch.from_numpy(np.load(data)["x"]).float().double())[:, 0]
    assert found.values is not None
    np.testing.assert_allclose(found.values, expected.numpy())
    with found.save(tmp_path / "p.csv").open(newline="") as file:
        assert [float(row["value"]) for row in csv.DictReader(file)] == found.values.tolist()


def test_more_outputs_than_labels_have_a_number() -> None:
    model = nn.Linear(2, 3)
    with torch.no_grad():
        model.weight.zero_()
        model.bias.copy_(torch.tensor([0.0, 1.0, 2.0]))
    found = answer(model, torch.zeros(1, 2), ["no", "yes"])
    assert (found.classes, found.labels) == (("no", "yes", "output 2"), ("output 2",))


@pytest.mark.parametrize(
    ("arrays", "sentence"),
    [
        ({"x": np.zeros((3, 5))}, "must have examples of shape (4,), as the run was trained with, got (5,)."),
        ({"x": np.zeros(4)}, "must have examples of shape (4,), as the run was trained with, got ()."),
        ({"x": np.zeros((0, 4))}, "x must hold at least one example, got none"),
        ({"x": np.full((1, 4), np.inf)}, "x must be finite"),
        ({"x": np.array([["a"] * 4])}, "x must hold numbers"),
        ({"z": np.zeros((3, 4))}, "must have an array x; save it with np.savez(path, x=...)."),
    ],
)
def test_data_that_do_not_fit_are_refused(
    result: Result, tmp_path: Path, arrays: dict[str, Any], sentence: str
) -> None:
    np.savez(tmp_path / "bad.npz", **arrays)
    with pytest.raises(InputError, match=re.escape(sentence)):
        predict(result, "ada", tmp_path / "bad.npz")


def test_what_is_no_npz_file_is_refused(result: Result, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no file"):
        predict(result, "ada", tmp_path / "none.npz")
    (tmp_path / "text.npz").write_text("x")
    with pytest.raises(InputError, match=r"cannot read .* as an \.npz file"):
        predict(result, "ada", tmp_path / "text.npz")
    np.save(tmp_path / "one.npy", np.zeros((3, 4)))
    with pytest.raises(InputError, match="got a single array"):
        predict(result, "ada", tmp_path / "one.npy")
    with pytest.raises(
        InputError, match=re.escape("there is no client 'bem'; there are ada, ben; did you mean 'ben'?")
    ):
        predict(result, "bem", tmp_path / "one.npy")
