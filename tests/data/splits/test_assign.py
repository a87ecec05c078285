"""What every split promises: no example twice, what was asked for, the same for the same seed, and an end."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bespokefl.core.errors import InputError
from bespokefl.data import Clients, Dataset, load
from bespokefl.data.splits import IID, ByColumn, Classes, Dirichlet, Split


def labelled(labels: np.ndarray, client: np.ndarray | None = None) -> Dataset:
    return Dataset.from_arrays(np.arange(len(labels), dtype=np.float32)[:, None], labels, client)


def balanced(classes: int, each: int) -> Dataset:
    return labelled(np.tile(np.arange(classes), each))


def all_used(clients: Clients) -> np.ndarray:
    return np.concatenate([part.indices.numpy() for part in (clients.train, clients.validation, clients.test)])


def examples_of(clients: Clients, client: int) -> np.ndarray:
    parts = (clients.train, clients.validation, clients.test)
    return np.concatenate([part.of(client).numpy() for part in parts])


@st.composite
def label_arrays(draw: st.DrawFn) -> np.ndarray:
    """Labels of two to seven classes, of very different sizes, in mixed order."""
    pools = draw(st.lists(st.integers(1, 60), min_size=2, max_size=7))
    labels = np.repeat(np.arange(len(pools)), pools)
    return np.random.default_rng(draw(st.integers(0, 99))).permutation(labels)


splits = st.one_of(
    st.just(IID()),
    st.builds(Dirichlet, st.floats(0.01, 100), st.integers(1, 4)),
    st.builds(Classes, st.integers(1, 8)),
    st.just(ByColumn()),
)


@given(label_arrays(), splits, st.integers(1, 40), st.integers(0, 10_000))
@settings(max_examples=200)
def test_no_example_twice_and_nobody_idle(labels: np.ndarray, split: Split, num: int, seed: int) -> None:
    dataset = labelled(labels, client=np.arange(len(labels)) % num)
    try:
        clients = dataset.split(split, clients=num, seed=seed)
    except InputError as error:
        assert not isinstance(split, IID | ByColumn) or num > len(labels), error
        return
    used = all_used(clients)
    assert len(used) == len(np.unique(used))
    assert used.min() >= 0
    assert used.max() < len(labels)
    assert int(clients.sizes.min()) >= 1
    assert len(clients) == len(set(clients.names)) == (len(np.unique(dataset.client)) if split == ByColumn() else num)
    if not isinstance(split, Classes):
        assert len(used) == len(labels)  # the others leave nothing out
    again = labelled(labels, client=np.arange(len(labels)) % num).split(split, clients=num, seed=seed)
    assert again.hash == clients.hash


@pytest.mark.parametrize("split", ["iid", "dirichlet(1)", "classes(2)", "by_column"])
def test_another_seed_is_another_split(split: str) -> None:
    dataset = labelled(np.arange(200) % 4, client=np.arange(200) % 5)
    hashes = {dataset.split(split, clients=5, seed=seed).hash for seed in range(10)}
    assert len(hashes) == 10


@given(st.integers(1, 300), st.integers(1, 50))
def test_iid_sizes_differ_by_one_at_most(num_examples: int, num: int) -> None:
    dataset = labelled(np.arange(num_examples + 1) % 2)
    if num > len(dataset):
        with pytest.raises(InputError, match=f"iid needs at least {num} examples"):
            dataset.split("iid", clients=num)
        return
    sizes = np.bincount(IID().assign(dataset, num, 0).owner, minlength=num)
    assert sizes.sum() == len(dataset)
    assert sizes.max() - sizes.min() <= 1


def test_generated_clients_have_padded_numbers() -> None:
    dataset = balanced(2, 60)
    assert dataset.split("iid", clients=20).names[:2] == ("00", "01")
    assert dataset.split("iid", clients=10).names[-1] == "9"
    assert dataset.split("iid", clients=101).names[0] == "000"


class TestDirichlet:
    @given(st.floats(0.05, 50), st.integers(1, 12), st.integers(1, 6), st.integers(0, 999))
    def test_everyone_has_the_least(self, alpha: float, num: int, least: int, seed: int) -> None:
        dataset = balanced(5, 40)
        try:
            owner = Dirichlet(alpha, least).assign(dataset, num, seed).owner
        except InputError as error:
            assert f"at least {least} examples" in str(error)
            assert alpha < 1
            return
        assert np.bincount(owner, minlength=num).min() >= least

    def test_small_alpha_is_skewed_and_large_alpha_even(self) -> None:
        def largest_share(alpha: float) -> float:
            """The mean, over classes, of the share that the largest holder of the class has."""
            owner = Dirichlet(alpha, min_examples=1).assign(dataset, 5, 0).owner
            labels = dataset.y.numpy()
            return float(np.mean([np.bincount(owner[labels == label]).max() / 200 for label in range(20)]))

        dataset = balanced(20, 200)
        assert largest_share(0.05) > 0.8
        assert 0.3 < largest_share(1.0) < 0.7
        assert largest_share(1e6) == pytest.approx(1 / 5, abs=0.01)

    def test_shares_have_the_variance_of_the_distribution(self) -> None:
        """Var p = (1/K)(1 − 1/K) / (Kα + 1) for Dir(α, …, α) over K clients."""
        classes, each, num, alpha = 400, 100, 4, 0.7
        dataset = balanced(classes, each)
        owner, labels = Dirichlet(alpha).assign(dataset, num, 3).owner, dataset.y.numpy()
        counts = np.array([np.bincount(owner[labels == label], minlength=num) for label in range(classes)])
        expected = (1 / num) * (1 - 1 / num) / (num * alpha + 1)
        assert (counts / each).var() == pytest.approx(expected, rel=0.1)

    @pytest.mark.parametrize("alpha", [1e-300, 1e-12, 1e12, 1e300, 1.7e308])
    def test_extreme_alpha_gives_a_split_or_a_sentence(self, alpha: float) -> None:
        dataset = balanced(50, 8)
        try:
            owner = Dirichlet(alpha).assign(dataset, 2, 0).owner
        except InputError:
            assert alpha < 1
            return
        sizes = np.bincount(owner, minlength=2)
        assert sizes.sum() == 400
        if alpha > 1:
            assert sizes.tolist() == pytest.approx([200, 200], abs=50)

    def test_a_client_that_falls_short_is_named(self) -> None:
        with pytest.raises(InputError) as error:
            balanced(2, 40).split("dirichlet(alpha=0.01)", clients=20)
        assert "dirichlet(alpha=0.01) must give every client at least 3 examples" in str(error.value)
        assert "in each of 100 draws" in str(error.value)
        assert "client '" in str(error.value)
        assert "use fewer clients, a larger alpha or a smaller min_examples" in str(error.value)

    def test_too_few_examples_are_seen_before_drawing(self) -> None:
        with pytest.raises(InputError, match=r"needs at least 300 examples \(3 for each of 100 clients\), got 80"):
            balanced(2, 40).split("dirichlet(alpha=1)", clients=100)


class TestClasses:
    @given(label_arrays(), st.integers(1, 7), st.integers(1, 40), st.integers(0, 999))
    @settings(max_examples=200)
    def test_k_classes_and_equal_totals(self, labels: np.ndarray, k: int, num: int, seed: int) -> None:
        pools = np.bincount(labels)
        possible = k <= len(pools) and np.minimum(pools, num).sum() >= num * k
        dataset = labelled(labels)
        if not possible:
            with pytest.raises(InputError):
                dataset.split(Classes(k), clients=num, seed=seed)
            return
        clients = dataset.split(Classes(k), clients=num, seed=seed)
        owned = [examples_of(clients, client) for client in range(num)]
        assert len({len(one) for one in owned}) == 1
        assert {len(np.unique(labels[one])) for one in owned} == {k}

    @given(st.integers(2, 12), st.integers(1, 12), st.integers(1, 60), st.integers(0, 99))
    def test_classes_are_held_equally_often(self, classes: int, k: int, num: int, seed: int) -> None:
        k = min(k, classes)
        dataset = balanced(classes, 60)
        owner, labels = Classes(k).assign(dataset, num, seed).owner, dataset.y.numpy()
        holders = [len(np.unique(owner[(labels == label) & (owner >= 0)])) for label in range(classes)]
        assert sum(holders) == num * k
        assert max(holders) - min(holders) <= 1

    @pytest.mark.parametrize(("k", "num"), [(1, 20), (2, 20), (4, 10), (5, 50), (10, 100)])
    def test_most_of_the_data_are_used(self, k: int, num: int) -> None:
        owner = Classes(k).assign(load("digits"), num, 0).owner
        assert (owner >= 0).mean() > 0.85

    def test_counts_per_class_are_random(self) -> None:
        dataset = balanced(10, 200)
        owner, labels = Classes(4).assign(dataset, 10, 0).owner, dataset.y.numpy()
        shares = [np.bincount(labels[owner == client]) / (owner == client).sum() for client in range(10)]
        positive = np.concatenate([one[one > 0] for one in shares])
        assert positive.std() > 0.1  # uniform shares of four classes have 0.19, equal ones 0

    def test_classes_of_clients_are_random(self) -> None:
        dataset = balanced(10, 60)
        labels = dataset.y.numpy()

        def first_client(seed: int) -> tuple[int, ...]:
            owner = Classes(2).assign(dataset, 20, seed).owner
            return tuple(np.unique(labels[owner == 0]).tolist())

        assert len({first_client(seed) for seed in range(30)}) > 15

    def test_a_rare_class_does_not_stop_the_others(self) -> None:
        """Two examples of one class can serve two clients; the other classes serve the rest."""
        labels = np.repeat([0, 1, 2], [2, 300, 300])
        owner = Classes(2).assign(labelled(labels), 20, 0).owner
        holders = [len(np.unique(owner[(labels == label) & (owner >= 0)])) for label in range(3)]
        assert holders[0] == 2
        assert np.bincount(owner[owner >= 0]).min() >= 20

    def test_more_classes_than_there_are(self) -> None:
        with pytest.raises(InputError, match=r"k must be at most the number of classes, 10 in 'digits', got 11"):
            load("digits").split("classes(k=11)", clients=5)

    def test_the_class_that_runs_out_is_named(self) -> None:
        labels = np.repeat(["cat", "dog"], [100, 7])
        with pytest.raises(InputError) as error:
            labelled(labels).split("classes(k=2)", clients=10)
        assert "class 'dog' runs out after 7 clients" in str(error.value)
        assert "use fewer clients or a smaller k" in str(error.value)


class TestByColumn:
    @given(st.lists(st.integers(-5, 30), min_size=2, max_size=80))
    def test_each_id_is_a_client_with_its_examples(self, ids: list[int]) -> None:
        client = np.array(ids)
        clients = labelled(np.arange(len(ids)) % 2, client).split("by_column", clients=999)
        assert clients.names == tuple(str(one) for one in sorted(set(ids)))
        for position, name in enumerate(clients.names):
            assert sorted(examples_of(clients, position)) == np.flatnonzero(client == int(name)).tolist()

    def test_numbers_are_in_the_order_of_numbers_and_text_of_text(self) -> None:
        labels = np.arange(4) % 2
        assert labelled(labels, np.array([10, 9, 10, 9])).split("by_column").names == ("9", "10")
        assert labelled(labels, np.array(["10", "9", "b", "b"])).split("by_column").names == ("10", "9", "b")

    def test_data_without_ids(self) -> None:
        with pytest.raises(InputError, match=r"by_column needs data that name the client .* got none in 'digits'"):
            load("digits").split("by_column")


@pytest.mark.parametrize("split", ["dirichlet(alpha=1)", "classes(k=2)"])
def test_regression_has_no_classes_to_split_by(split: str) -> None:
    dataset = Dataset.from_arrays(np.zeros((50, 2)), np.linspace(0, 1, 50))
    with pytest.raises(InputError, match="needs data with classes, got real-valued targets"):
        dataset.split(split, clients=5)
    assert len(dataset.split("iid", clients=5)) == 5


def test_cards_are_dealt_in_random_order() -> None:
    owner = IID().assign(balanced(2, 50), 10, 0).owner
    assert any(second != (first + 1) % 10 for first, second in pairwise(owner))
