"""What each kind of split promises beyond what all promise, and the counts that papers published."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bespokefl.core.errors import InputError
from bespokefl.data import Dataset
from bespokefl.data.splits import PRESETS, parse
from tests.data.splits.examples import balanced, own, pictures

MNIST = (6903, 7877, 6990, 7141, 6824, 6313, 6876, 7293, 6825, 6958)  # both its parts


def bare(pools: tuple[int, ...], name: str = "bare", **columns: np.ndarray) -> Dataset:
    """Labels that matter and examples that do not."""
    labels = np.repeat(np.arange(len(pools)), pools)
    return Dataset.from_arrays(np.zeros((len(labels), 1), dtype=np.float32), labels, name=name, columns=columns)


def table(dataset: Dataset, split: str, clients: int | None = None, seed: int = 0) -> np.ndarray:
    """How many of each class each client has, whatever part they are in: clients × classes."""
    chosen = parse(split)
    num = clients or chosen.num_clients or 20
    owner, labels = chosen.assign(dataset, num, seed).owner, dataset.y.numpy()
    owned = owner >= 0
    classes = dataset.classes or 1
    return np.bincount(owner[owned] * classes + labels[owned], minlength=num * classes).reshape(num, classes)


def sentence(dataset: Dataset, split: str, clients: int | None = None) -> str:
    with pytest.raises(InputError) as error:
        dataset.split(split, clients=clients)
    assert "\n" not in str(error.value)
    return str(error.value)


class TestLogNormal:
    def test_fedprox_mnist_as_published(self) -> None:
        """Its paper, table 1: 1000 devices, 69,035 samples."""
        counts = table(bare(MNIST), "fedprox-mnist")
        assert counts.shape == (1000, 10)
        for client, row in enumerate(counts):
            held = {client % 10, (client + 1) % 10}
            assert set(np.flatnonzero(row)) == held
            assert all(row[label] >= 5 for label in held)
        # rounding down costs about half an example in each of 2000 draws
        assert abs(counts.sum() - 69_035) < 120

    def test_fedprox_mnist_s_sizes(self) -> None:
        """As spread as by its recipe. (The paper prints a standard deviation of 106: its recipe gives 130 to 230.)"""

        def recipe(seed: int) -> np.ndarray:
            draws = np.random.default_rng(seed).lognormal(0, 2, (10, 100, 2))
            sizes = np.full(1000, 10)
            for label, pool in enumerate(MNIST):
                for tenth in range(100):
                    for place in range(2):
                        share = draws[label, tenth, place] / draws[label].sum()
                        sizes[10 * tenth + (label - place) % 10] += int((pool - 1000) * share)
            return sizes

        ours = np.sort([table(bare(MNIST), "fedprox-mnist", seed=seed).sum(axis=1) for seed in range(12)])
        theirs = np.sort([recipe(seed) for seed in range(12)])
        for share in (0.1, 0.5, 0.9):
            at = int(1000 * share)
            assert np.median(ours[:, at]) == pytest.approx(np.median(theirs[:, at]), rel=0.1)
        assert np.median(ours.std(axis=1)) == pytest.approx(np.median(theirs.std(axis=1)), rel=0.2)

    @given(st.integers(2, 8), st.integers(1, 8), st.integers(1, 30), st.integers(1, 4), st.floats(0.1, 900))
    @settings(max_examples=60, deadline=None)
    def test_neighbouring_classes_and_the_least_of_each(
        self, classes: int, k: int, clients: int, least: int, sigma: float
    ) -> None:
        k = min(k, classes)
        counts = table(bare((200,) * classes), f"lognormal(k={k}, sigma={sigma}, least={least})", clients)
        for client, row in enumerate(counts):
            held = (client + np.arange(k)) % classes
            assert set(np.flatnonzero(row)) == set(held.tolist())
            assert row[held].min() >= least
        holders = (counts > 0).sum(axis=0)
        left = 200 - counts.sum(axis=0)
        assert all(0 <= one < max(many, 1) for one, many in zip(left[holders > 0], holders[holders > 0], strict=True))

    def test_mu_cancels_in_shares_and_counts_in_numbers(self) -> None:
        data = bare((20_000,) * 10)
        assert np.array_equal(table(data, "lognormal(2, mu=0)"), table(data, "lognormal(2, mu=7)"))
        sizes = table(data, "lognormal(k=5, mu=4, sigma=1, shares=False)", 200).sum(axis=1)
        assert 40 < np.median(sizes) < 75  # exp(4) + 5 = 59.6, rounded down to five equal parts
        rows = table(data, "lognormal(k=5, mu=4, sigma=1, shares=False)", 200)
        assert all(len(set(row[row > 0].tolist())) == 1 for row in rows)

    def test_the_class_that_falls_short_is_named(self) -> None:
        said = sentence(bare((500, 12, 500)), "lognormal(k=2)", clients=9)
        assert "needs 30 examples of class '1' for 9 clients, got 12 in 'bare'; use fewer clients" in said
        assert "k must be at most the number of classes, 3 in 'bare', got 4" in sentence(bare((9,) * 3), "lognormal(4)")


class TestPFedMe:
    def test_cifar10(self) -> None:
        """Ten of each class first; then, twice, at least 210 and at most 11 · share + 400, if the class has them."""
        counts = table(bare((6000,) * 10), "pfedme-cifar10")
        assert counts.shape == (20, 10)
        for client, row in enumerate(counts):
            held = (client + np.arange(3)) % 10
            assert set(np.flatnonzero(row)) == set(held.tolist())
            assert all(row[label] == 10 or row[label] >= 10 + 2 * 211 for label in held)
            assert all((row[label] - 10) % 2 == 0 for label in held)
        assert (counts[counts > 0] > 10).mean() > 0.5
        assert counts.sum(axis=0).max() < 6000

    def test_many_clients_get_half(self) -> None:
        counts = table(bare((60_000,) * 10), "pfedme(k=2)", 40)
        more = counts[counts > 10] - 10
        assert more.min() < 422  # twice the least
        assert more.min() >= 211


class TestFallah:
    @given(st.integers(1, 60), st.integers(2, 20), st.integers(2, 10), st.integers(0, 50))
    @settings(max_examples=60, deadline=None)
    def test_two_kinds_of_clients(self, clients: int, k: int, classes: int, seed: int) -> None:
        counts = table(bare((3000,) * classes), f"fallah(k={k})", clients, seed)
        half, even = classes // 2, clients // 2
        assert (counts[:even, :half] == k).all()
        assert (counts[:even, half:] == 0).all()
        for row in counts[even:]:
            assert sorted(row[:half][row[:half] > 0].tolist()) == [k // 2]
            assert sorted(row[half:][row[half:] > 0].tolist()) == [2 * k]
        for side in (counts[even:, :half], counts[even:, half:]):
            holders = (side > 0).sum(axis=0)
            assert holders.max() - holders.min() <= 1

    @pytest.mark.parametrize(("name", "pool", "k"), [("mnist", 5421, 196), ("cifar10", 5000, 68)])
    def test_ds_4_as_published(self, name: str, pool: int, k: int) -> None:
        """The official training sets serve 50 clients: MNIST's rarest class has 5421."""
        counts = table(bare((pool,) * 10, name), "ds-4")
        assert counts.shape == (50, 10)
        assert counts[0].tolist() == [k] * 5 + [0] * 5
        assert sorted(counts[49].tolist()) == [0] * 8 + [k // 2, 2 * k]

    def test_refused(self) -> None:
        assert "fallah knows k only for the papers' data (196 for mnist, 68 for cifar10), got 'bare'" in sentence(
            bare((9, 9)), "fallah"
        )
        assert "needs 80 examples of class '1' for 10 clients, got 9" in sentence(bare((9, 9)), "fallah(k=8)", 10)


class TestQuantity:
    @given(st.integers(2, 80), st.integers(1, 30), st.integers(0, 99), st.booleans())
    @settings(deadline=None)
    def test_all_examples_and_nobody_without(self, examples: int, clients: int, seed: int, equal: bool) -> None:
        data = bare((examples, examples))
        if clients > 2 * examples:
            assert "needs at least" in sentence(data, "quantity", clients)
            return
        sizes = table(data, f"quantity(equal={equal})", clients, seed).sum(axis=1)
        assert sizes.sum() == 2 * examples
        assert sizes.min() >= 1
        assert not equal or sizes.max() - sizes.min() <= 1

    def test_cuts_are_uniform(self) -> None:
        """The first of 20 pieces of [0, 1] is longer than t with probability (1 − t)^19."""
        firsts = np.array([table(bare((500, 500)), "quantity", 20, seed)[0].sum() for seed in range(400)]) / 1000
        for t in (0.02, 0.05, 0.1):
            assert abs((firsts > t).mean() - (1 - t) ** 19) < 0.08

    @pytest.mark.parametrize("clients", [50, 100, 200])
    def test_pfedvem_s_labels(self, clients: int) -> None:
        """Pairs of clients share a shuffled list of the ten labels, and have equally many of each of their five."""
        counts = table(bare((6000,) * 10), "quantity(k=5)", clients)
        assert counts.sum() == 60_000
        for first, second in zip(counts[::2], counts[1::2], strict=True):
            assert set(np.flatnonzero(first)) | set(np.flatnonzero(second)) == set(range(10))
            assert len(np.flatnonzero(first)) == len(np.flatnonzero(second)) == 5
            assert len(set(np.concatenate([first, second])[np.concatenate([first, second]) > 0].tolist())) == 1
        assert len({tuple(np.flatnonzero(row)) for row in counts}) > clients / 4
        sizes = counts.sum(axis=1)
        assert sizes.max() > 20 * sizes.min()

    @given(st.lists(st.integers(20, 90), min_size=6, max_size=6), st.sampled_from([1, 2, 3, 6]), st.integers(1, 20))
    @settings(deadline=None)
    def test_classes_of_different_sizes(self, pools: list[int], k: int, clients: int) -> None:
        counts = table(bare(tuple(pools)), f"quantity(k={k})", clients)
        assert ((counts > 0).sum(axis=1) == k).all()
        if clients % (6 // k) == 0:
            assert counts.sum() == sum(pools)

    def test_refused(self) -> None:
        said = sentence(bare((30,) * 10), "quantity(k=4)")
        assert "k must divide the number of classes, 10 in 'bare'" in said
        assert "use one of 1, 2, 5, 10" in said
        assert "needs an example of '1' for each of 10 clients, got 4" in sentence(bare((30, 4)), "quantity(k=1)", 20)


class TestSubclass:
    @given(st.integers(1, 20), st.integers(0, 99))
    @settings(deadline=None)
    def test_one_subclass_of_each_class(self, clients: int, seed: int) -> None:
        dataset = balanced(4, 60)
        found = dataset.split("subclass", clients=clients, seed=seed)
        seen = Counter()
        for client in range(clients):
            below = np.unique(dataset.columns["subclass"][own(found, client)])
            assert sorted(one[0] for one in below) == ["0", "1", "2", "3"]
            seen.update(below.tolist())
        assert max(seen.values()) - min(seen.values()) <= (1 if len(seen) == 8 else clients)

    def test_cifar100_s_superclasses(self) -> None:
        """20 superclasses of five subclasses of 500: five neighbouring clients use up one slice of everything."""
        below = np.repeat(np.arange(100), 500)
        x = np.zeros((len(below), 1), dtype=np.float32)
        dataset = Dataset.from_arrays(x, below // 5, columns={"subclass": below})
        owner = parse("subclass").assign(dataset, 100, 0).owner
        counts = np.bincount(owner * 100 + below, minlength=10_000).reshape(100, 100)
        assert (owner >= 0).all()
        assert ((counts > 0).reshape(100, 20, 5).sum(axis=2) == 1).all()
        assert all(len(set(row[row > 0].tolist())) == 1 for row in counts)
        assert ((counts > 0).reshape(20, 5, 100).sum(axis=1) == 1).all()

    def test_refused(self) -> None:
        assert "needs data with the column 'subclass' (the subclass of each example), but 'bare' has: none" in sentence(
            bare((9, 9)), "subclass"
        )
        crossed = bare((2, 2), subclass=np.array(["a", "b", "b", "c"]))
        assert "'b' is in two classes of 'bare'" in sentence(crossed, "subclass", 1)


class TestDomains:
    @given(st.integers(3, 30), st.integers(0, 99))
    @settings(deadline=None)
    def test_one_source_for_each_client(self, clients: int, seed: int) -> None:
        dataset = balanced(4, 60)
        found = dataset.split("domains", clients=clients, seed=seed)
        names = np.unique(dataset.columns["domain"])
        assert found.groups is not None
        for client, group in enumerate(found.groups):
            assert np.unique(dataset.columns["domain"][own(found, client)]).tolist() == [names[group]]
        many = list(Counter(found.groups).values())
        assert max(many) - min(many) <= 1
        assert len(np.unique(np.concatenate([own(found, client) for client in range(clients)]))) == len(dataset)

    def test_refused(self) -> None:
        assert "needs a client for each of the 3 sources in 'pictures', got 2" in sentence(balanced(2, 9), "domains", 2)
        few = bare((9, 9), domain=np.array([0] * 17 + [1]))
        assert "needs an example of '1' for each of its 2 clients, got 1" in sentence(few, "domains", 4)


class TestByColumn:
    def test_any_column(self) -> None:
        dataset = balanced(4, 60)
        found = dataset.split('by_column(column="domain")')
        assert found.names == ("cartoon", "photo", "sketch")
        assert (dataset.columns["domain"][own(found, 1)] == "photo").all()
        assert "'plant' (the client of each example), but 'pictures' has: domain, subclass, test" in sentence(
            dataset, "by_column(column='plant')"
        )


class TestPresets:
    @pytest.mark.parametrize(("name", "clients"), [(one.name, one.clients) for one in PRESETS.values()])
    def test_number_of_clients_is_the_paper_s_unless_another_is_given(self, name: str, clients: int) -> None:
        assert parse(name).num_clients == clients
        assert parse(f"{name} + rotation(groups=2)" if "rotation" not in name else name).num_clients == clients
        assert str(parse(name)) == name

    def test_they_are_what_they_stand_for(self) -> None:
        dataset = balanced(10, 40)
        assert len(dataset.split("ds-1")) == 10
        assert dataset.split("ds-1").hash == dataset.split("classes(k=4)", clients=10).hash
        assert dataset.split("ds-2", clients=5).hash == dataset.split("dirichlet(0.9)", clients=5).hash

    def test_persfl_s_splits(self) -> None:
        """DS-1: four classes, equal sizes. DS-2: all sizes differ. DS-3: two classes."""
        data = bare((6000,) * 10)
        first, second, third = (table(data, name) for name in ("ds-1", "ds-2", "ds-3"))
        assert ((first > 0).sum(axis=1) == 4).all()
        assert len(set(first.sum(axis=1).tolist())) == 1
        assert len(set(second.sum(axis=1).tolist())) == 10
        assert second.sum() == 60_000
        assert ((third > 0).sum(axis=1) == 2).all()

    def test_more_can_be_added(self) -> None:
        dataset = pictures(np.tile(np.arange(10), 100))
        found = dataset.split("pfedvem + sample(examples=400) + rotation(groups=2)", clients=10)
        assert found.split_name == "pfedvem + sample(examples=400) + rotation(groups=2)"
        assert len(found.train.indices) + len(found.validation.indices) == 400
        assert found.groups == (0,) * 5 + (1,) * 5
