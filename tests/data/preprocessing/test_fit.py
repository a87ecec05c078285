"""What is learnt before training is learnt from training data alone, and fits examples that come later."""

import json
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from bespokefl.core.errors import InputError
from bespokefl.data import Clients, Dataset
from bespokefl.data.preprocessing.feature_sums import FeatureSums
from bespokefl.data.preprocessing.fit import prepare
from bespokefl.data.preprocessing.transform import Preparation
from bespokefl.data.tables import table as tables
from bespokefl.data.tables.features import Features

RNG = np.random.default_rng(0)
X = RNG.normal(size=(60, 3)) * [1, 10, 100] + [0, 5, 1000]
COLUMNS = {
    "a": X[:, 0],
    "b": X[:, 1],
    "c": X[:, 2],
    "flag": X[:, 0] > 0,
    "town": ["Rome", "Oslo", "Bonn"] * 20,
    "y": [0, 1] * 30,
    "client": ["p"] * 20 + ["q"] * 40,
}


def rows(clients: Clients, part: str, client: str | None = None) -> torch.Tensor:
    """Indices of a part, of all clients or one."""
    found = getattr(clients, part)
    if client is None:
        return found.indices
    at = clients.names.index(client)
    return found.indices[found.offsets[at] : found.offsets[at + 1]]


def table(**changes: object) -> tables.Table:
    return tables.from_columns(COLUMNS | changes, missing="mean")


class TestScale:
    def test_pooled(self) -> None:
        clients = table().split("by_column")
        prepared, _ = prepare(clients)
        train = prepared.x[rows(prepared, "train")]
        assert torch.allclose(train[:, :3].mean(0), torch.zeros(3), atol=1e-6)
        assert torch.allclose(train[:, :3].std(0, correction=0), torch.ones(3), atol=1e-5)
        raw = clients.x[rows(clients, "train"), :3].double()
        expected = (clients.x[:, :3].double() - raw.mean(0)) / raw.std(0, correction=0)
        assert torch.allclose(prepared.x[:, :3].double(), expected, atol=1e-5)
        assert torch.equal(prepared.x[:, 3:], clients.x[:, 3:])  # truth values and categories stay

    def test_own(self) -> None:
        prepared, _ = prepare(table().split("by_column"), scale="own")
        for name in ("p", "q"):
            train = prepared.x[rows(prepared, "train", name), :3]
            assert torch.allclose(train.mean(0), torch.zeros(3), atol=1e-6)
            assert torch.allclose(train.std(0, correction=0), torch.ones(3), atol=1e-5)

    def test_none(self) -> None:
        clients = table().split("by_column")
        prepared, preparation = prepare(clients, scale="none")
        assert torch.equal(prepared.x, clients.x)
        assert torch.equal(preparation.apply(clients.x), clients.x)

    @pytest.mark.parametrize("scale", ["pooled", "own"])
    def test_validation_and_test_data_teach_nothing(self, scale: str) -> None:
        clients = table().split("by_column")
        _, expected = prepare(clients, scale=scale)
        poisoned = clients.x.clone()
        poisoned[torch.cat([rows(clients, "validation"), rows(clients, "test")])] = 1e6
        changed = Clients(**{one: getattr(clients, one) for one in clients.__dataclass_fields__} | {"x": poisoned})
        assert prepare(changed, scale=scale)[1] == expected

    def test_only_some_clients_teach(self) -> None:
        clients = table().split("by_column")
        _, preparation = prepare(clients, learn_from=["p"])
        assert preparation.pooled is not None
        expected = clients.x[rows(clients, "train", "p"), 0].double().mean()
        assert math.isclose(preparation.pooled.mean[0], expected, rel_tol=1e-6)
        with pytest.raises(InputError, match="learn_from must name some of the clients, got z"):
            prepare(clients, learn_from=["z"])

    def test_a_constant_feature_becomes_zero(self) -> None:
        for value in (0.0, 1 / 3, 1e6 + 0.1):
            for scale in ("pooled", "own"):
                prepared, preparation = prepare(table(a=[value] * 60).split("by_column"), scale=scale)
                assert prepared.x[:, 0].unique().tolist() == [0]
                other = preparation.apply(np.full((1, 7), 5.0), client="p")
                assert other[0, 0] == 0

    def test_rounding_is_no_spread(self) -> None:
        """Sums of many equal values are rounded, and what is left of the variance is above 0 for some of them."""
        for value in RNG.random(50).astype(np.float32) * 1e5:
            sums = FeatureSums.of(np.full((3001, 1), value, dtype=np.float32), Features.of_arrays((1,)))
            assert sums.std.tolist() == [0]

    def test_a_small_spread_far_from_zero_is_kept(self) -> None:
        values = 1e6 + np.arange(60) % 2
        prepared, _ = prepare(table(a=values).split("by_column"))
        assert prepared.x[:, 0].abs().max() < 2
        assert len(prepared.x[:, 0].unique()) == 2

    def test_arrays_are_left_alone_unless_asked(self) -> None:
        pictures = RNG.random((12, 2, 4, 5)).astype(np.float32) + np.array([0, 7]).reshape(1, 2, 1, 1)
        clients = Dataset.from_arrays(pictures, [0, 1] * 6).split("iid", clients=2)
        assert prepare(clients)[0].x is clients.x
        prepared, preparation = prepare(clients, scale="pooled")
        channels = prepared.x[rows(prepared, "train")].transpose(0, 1).flatten(1)
        assert torch.allclose(channels.mean(1), torch.zeros(2), atol=1e-6)
        assert torch.allclose(channels.std(1, correction=0), torch.ones(2), atol=1e-5)
        assert torch.equal(preparation.apply(clients.x), prepared.x)

    def test_series_by_channel(self) -> None:
        series = (RNG.random((12, 9, 2)) + np.array([0, 7])).astype(np.float32)
        clients = Dataset.from_arrays(series, [0, 1] * 6).split("iid", clients=2)
        prepared, _ = prepare(clients, scale="pooled")
        channels = prepared.x[rows(prepared, "train")].flatten(0, 1)
        assert torch.allclose(channels.mean(0), torch.zeros(2), atol=1e-6)

    def test_examples_of_several_clients_are_copied_for_their_own_scales(self) -> None:
        shared = (np.array([[10.0]], dtype=np.float32), np.array([0]))
        first = (np.array([[0.0], [2.0]], dtype=np.float32), np.array([0, 1]))
        second = (np.array([[10.0], [30.0]], dtype=np.float32), np.array([0, 1]))
        clients = Clients.from_sets([first, second], test=[shared, shared], names=["p", "q"])
        prepared, _ = prepare(clients, scale="own")
        assert prepared.x[rows(prepared, "test", "p")].tolist() == [[9]]  # (10 − 1) / 1
        assert prepared.x[rows(prepared, "test", "q")].tolist() == [[-1]]  # (10 − 20) / 10
        assert prepared.x[rows(prepared, "train", "q")].tolist() == [[-1], [1]]
        assert [part.indices.tolist() for part in prepared.original_parts] == [
            part.indices.tolist() for part in clients.original_parts
        ]

    def test_a_client_with_one_example_has_no_scale_of_its_own(self) -> None:
        clients = Clients.from_arrays([[1.0], [2.0], [3.0]], [0, 1, 0], ["p", "p", "q"], fractions=(1, 0, 0))
        with pytest.raises(InputError, match="at least 2 training examples of every client, got fewer for q; use the"):
            prepare(clients, scale="own")

    @pytest.mark.parametrize("block", [1, 9, 70, 1 << 22])
    def test_each_clients_own_sums(self, monkeypatch: pytest.MonkeyPatch, block: int) -> None:
        """However the examples are cut into blocks: what a client would compute that has its own data only."""
        monkeypatch.setattr("bespokefl.data.preprocessing.feature_sums.BLOCK", block)
        clients = tables.from_columns(COLUMNS | {"a": [math.nan, *X[1:, 0]]}, missing="mean").split("by_column")
        _, preparation = prepare(clients, scale="own", missing="mean")
        assert preparation.own is not None
        for at, name in enumerate(clients.names):
            alone = FeatureSums.of(clients.x[rows(clients, "train", name)].numpy(), preparation.features)
            for one in ("count", "total", "squares"):
                assert np.allclose(getattr(preparation.own, one)[at], getattr(alone, one), rtol=1e-12)

    @given(arrays(np.float32, (20, 2), elements=st.floats(-1e3, 1e3, width=32)), st.integers(1, 19))
    def test_sums_add_up(self, x: np.ndarray, cut: int) -> None:
        """What clients tell, added, is what one would compute that has all the data."""
        features = Features.of_arrays((2,))
        added = FeatureSums.of(x[:cut], features) + FeatureSums.of(x[cut:], features)
        assert np.allclose(added.mean, x.astype(np.float64).mean(0))
        assert np.allclose(added.std, x.astype(np.float64).std(0), atol=1e-3)


class TestGaps:
    HOLES = COLUMNS | {"a": [math.nan, *X[1:, 0]], "town": [None, *COLUMNS["town"][1:]]}

    @pytest.mark.parametrize("scale", ["pooled", "own", "none"])
    def test_filled_by_training_means(self, scale: str) -> None:
        clients = tables.from_columns(self.HOLES, missing="mean").split("by_column")
        prepared, preparation = prepare(clients, scale=scale, missing="mean")
        train = clients.x[rows(clients, "train", "p" if scale == "own" else None)]
        expected = train.nanmean(0)
        assert torch.isfinite(prepared.x).all()
        assert torch.allclose(prepared.x[0, 4:], expected[4:], atol=1e-6)  # the shares of the towns
        assert math.isclose(prepared.x[0, 0], expected[0] if scale == "none" else 0, abs_tol=1e-6)
        assert torch.equal(preparation.apply(clients.x[:20], client="p"), prepared.x[:20])

    def test_refused(self) -> None:
        clients = tables.from_columns(self.HOLES, missing="mean").split("by_column")
        with pytest.raises(InputError, match="'a' lacks 1 values, the first in example 0"):
            prepare(clients)
        _, preparation = prepare(table().split("by_column"))
        with pytest.raises(InputError, match="'a' lacks 1 values, the first in example 0"):
            preparation.apply(clients.x)

    def test_a_column_without_values(self) -> None:
        empty = tables.from_columns(COLUMNS | {"a": [math.nan] * 60}, missing="mean").split("by_column")
        with pytest.raises(InputError, match="'a' has no value in any training example; drop this column"):
            prepare(empty, missing="mean")

    def test_a_client_without_values_gets_those_of_all(self) -> None:
        half = tables.from_columns(COLUMNS | {"a": [math.nan] * 20 + [1.0, 3.0] * 20}, missing="mean")
        prepared, preparation = prepare(half.split("by_column"), scale="own", missing="mean")
        assert torch.allclose(prepared.x[:20, 0], torch.zeros(20))
        assert preparation.pooled is not None


def test_a_category_that_training_never_saw_is_zero() -> None:
    clients = table().split("by_column")
    seen = clients.x.clone()
    train = rows(clients, "train")
    seen[train, 4] = 0
    clients = Clients(**{one: getattr(clients, one) for one in clients.__dataclass_fields__} | {"x": seen})
    prepared, preparation = prepare(clients, scale="none")
    assert seen[:, 4].max() == 1
    assert prepared.x[:, 4].max() == 0
    assert preparation.apply(torch.ones(1, 7))[0, 3:].tolist() == [1, 0, 1, 1]


class TestLater:
    @pytest.mark.parametrize("scale", ["pooled", "own", "none"])
    def test_json_and_the_same_numbers(self, scale: str) -> None:
        clients = tables.from_columns(TestGaps.HOLES, missing="mean").split("by_column")
        prepared, preparation = prepare(clients, scale=scale, missing="mean")
        again = Preparation.from_json(preparation.to_json())
        assert again == preparation
        for name in ("p", "q"):
            own = torch.cat([rows(clients, part, name) for part in ("train", "validation", "test")])
            assert torch.equal(again.apply(clients.x[own], client=name), prepared.x[own])

    def test_a_client_that_comes_later(self) -> None:
        clients = table().split("by_column")
        _, preparation = prepare(clients, scale="own")
        with pytest.raises(InputError, match="there are no statistics of client 'r', only of p, q; add them"):
            preparation.apply(clients.x, client="r")
        with pytest.raises(InputError, match="each client's own statistics; name the client"):
            preparation.apply(clients.x)
        later = preparation.with_client("r", clients.x[:10] * 2)
        found = later.apply(clients.x[:10] * 2, client="r")
        assert torch.allclose(found[:, :3].mean(0), torch.zeros(3), atol=1e-5)
        assert torch.equal(later.apply(clients.x, client="p"), preparation.apply(clients.x, client="p"))
        _, pooled = prepare(clients)
        assert pooled.with_client("r", clients.x[:10]) is pooled

    def test_refused(self) -> None:
        _, preparation = prepare(table().split("by_column"))
        with pytest.raises(InputError, match=r"x must have examples of shape \(7,\), as in training, got \(3,\)"):
            preparation.apply(torch.ones(2, 3))
        for damaged in ("", "{}", json.dumps({"features": 3})):
            with pytest.raises(InputError, match="the preparation of the data is damaged"):
                Preparation.from_json(damaged)
        with pytest.raises(InputError, match=r"unknown scale 'polled'; did you mean 'pooled'\?"):
            prepare(table().split("by_column"), scale="polled")
        with pytest.raises(InputError, match="vocabulary and length are for text"):
            prepare(table().split("by_column"), vocabulary=3)


class TestText:
    DOCUMENTS = ["Good good day", "bad  Day", "a good film at last", "bad bad", "day", ""] * 4

    def clients(self) -> Clients:
        return tables.from_columns({"text": self.DOCUMENTS, "y": [1, 0] * 12}, text="text").split("iid", clients=2)

    def test_vocabulary_of_the_training_documents(self) -> None:
        clients = self.clients()
        documents = [self.DOCUMENTS[at].lower().split() for at in clients.train.indices.tolist()]
        counts: dict[str, int] = {}
        for word in (word for document in documents for word in document):
            counts[word] = counts.get(word, 0) + 1
        prepared, preparation = prepare(clients, vocabulary=3, length=4)
        vocabulary = sorted(counts, key=lambda word: (-counts[word], word))[:3]
        assert preparation.features.columns[0].values == tuple(vocabulary)
        assert preparation.tokens == 5
        number = {word: at for at, word in enumerate(vocabulary, 2)}
        for document, found in zip(self.DOCUMENTS, prepared.x.tolist(), strict=True):
            expected = [number.get(word, 1) for word in document.lower().split()][:4]
            assert found == expected + [0] * (4 - len(expected))

    def test_later(self) -> None:
        prepared, preparation = prepare(self.clients())
        again = Preparation.from_json(preparation.to_json())
        assert again == preparation
        assert torch.equal(again.apply(self.DOCUMENTS), prepared.x)
        assert torch.equal(again.apply(np.array(self.DOCUMENTS)), prepared.x)
        assert torch.equal(again.apply(prepared.x), prepared.x)
        assert again.apply(["unheard"]).tolist() == [[1] + [0] * (prepared.shape[0] - 1)]
        assert again.apply([[10**6]])[0, 0] == 1

    def test_words_of_test_documents_are_unknown(self) -> None:
        columns = {"text": [f"word{i}" for i in range(20)], "y": [0, 1] * 10}
        prepared, _ = prepare(tables.from_columns(columns, text="text").split("iid", clients=1))
        assert prepared.x[rows(prepared, "test")].unique().tolist() == [1]
        assert prepared.x[rows(prepared, "train")].unique().tolist() == list(range(2, 14))

    def test_length_that_most_documents_fit_into(self) -> None:
        documents = ["w " * 3] * 96 + ["w " * 50] * 4
        clients = tables.from_columns({"text": documents, "y": [0, 1] * 50}, text="text").split("iid", clients=1)
        everything = Clients.from_sets([(clients.x, clients.y)], tokens=True)
        assert prepare(everything, vocabulary=100)[0].shape == (3,)
        assert prepare(everything)[0].shape == (50,)  # one's own numbers stay as they are
        assert clients.shape == (50,)

    def test_numbers_of_words(self) -> None:
        x = np.array([[2, 3], [4, 0], [2, 2], [3, 4], [2, 9]])
        clients = Clients.from_sets([(x[:4], [0, 1, 0, 1])], test=[(x[4:], [1])], tokens=True)
        untouched, all_numbers = prepare(clients)
        assert untouched.x.tolist() == x.tolist() and all_numbers.tokens == 10
        prepared, preparation = prepare(clients, vocabulary=100)
        assert preparation.tokens == 5
        assert prepared.x.tolist() == [[2, 3], [4, 0], [2, 2], [3, 4], [2, 1]]
        assert prepare(clients, vocabulary=1)[0].x.tolist() == [[2, 1], [1, 0], [2, 2], [1, 1], [2, 1]]

    def test_refused(self) -> None:
        with pytest.raises(InputError, match="words cannot be scaled"):
            prepare(self.clients(), scale="own")
        with pytest.raises(InputError, match="vocabulary must be at least 1 word, got 0"):
            prepare(self.clients(), vocabulary=0)
        with pytest.raises(InputError, match="length must be at least 1 word, got 0"):
            prepare(self.clients(), length=0)
