"""From a person's own table to personal models: classes, real values, text and series, through a whole run."""

import numpy as np
import pytest

import bespokefl as bf
from bespokefl.core.errors import InputError
from bespokefl.data import Clients, Dataset
from bespokefl.data.preprocessing.fit import prepare
from bespokefl.data.tables import table as tables

pytestmark = pytest.mark.slow  # `make check` is to stay under two minutes

RNG = np.random.default_rng(1)


def regression() -> Clients:
    x = RNG.normal(size=(240, 3)) * [1, 30, 500] + [0, 40, 2000]
    y = x @ [1.0, 1 / 30, 1 / 500] + RNG.normal(size=240) * 0.1
    y = (y - y.mean()) / y.std()
    columns = {"a": x[:, 0], "b": x[:, 1], "c": x[:, 2], "price": y, "client": np.repeat(np.arange(4), 60)}
    return prepare(tables.from_columns(columns, label="price").split("by_column"))[0]


@pytest.mark.parametrize("method", ["fedavg", "pfedvem"])
def test_regression(method: str) -> None:
    result = bf.run(method, regression(), model="mlp(hidden=(10,))", rounds=15, workers=1)
    assert result.summary()["personal"]["accuracy"] is None
    assert result.summary()["personal"]["loss"]["mean"] < 0.5  # the mean of all prices would have 1


def test_a_method_that_needs_classes_says_so() -> None:
    with pytest.raises(InputError, match="persfl needs classes and the loss cross_entropy"):
        bf.run("persfl", regression(), model="mlp(hidden=(10,))", rounds=2, workers=1)


@pytest.mark.parametrize("model", ["bag", "lstm"])
def test_text(model: str) -> None:
    fillers = [" ".join(RNG.choice(["a", "film", "of", "the", "day"], 4)) for _ in range(120)]
    documents = [f"{words} {'good' if i % 2 else 'bad'}" for i, words in enumerate(fillers)]
    columns = {"text": documents, "label": np.arange(120) % 2, "user": np.arange(120) // 40}
    clients, preparation = prepare(tables.from_columns(columns, client="user", text="text").split("by_column"))
    chosen = f"{model}(16, 16, tokens={preparation.tokens})"
    method = bf.methods.FedAvg(lr=0.5)
    result = bf.run(method, clients, model=chosen, rounds=25, workers=1)
    assert result.summary()["personal"]["accuracy"]["mean"] > 0.9


def test_series() -> None:
    time = np.arange(40) / 40
    waves = np.stack([np.sin(2 * np.pi * (2 + 6 * (i % 2)) * time + i) for i in range(120)])
    data = Dataset.from_arrays(np.stack([waves, waves * 9], axis=2), np.arange(120) % 2, np.arange(120) // 40)
    clients, _ = prepare(data.split("by_column"), scale="pooled")
    result = bf.run(bf.methods.FedAvg(lr=0.1), clients, model="cnn1d(width=8)", rounds=10, workers=1)
    assert result.summary()["personal"]["accuracy"]["mean"] > 0.9
