"""Splits that are added to others: turned pictures, exchanged labels, the official test set, a sample."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bespokefl.core.errors import InputError
from bespokefl.data import Dataset, load
from bespokefl.data.splits import IID, Classes, Dirichlet, OfficialTest, PermutedLabels, Rotation, Sample, Transform
from tests.data.splits.examples import balanced, own, pictures, used


def sentence(dataset: Dataset, split: str, clients: int = 4) -> str:
    with pytest.raises(InputError) as error:
        dataset.split(split, clients=clients)
    assert "\n" not in str(error.value)
    return str(error.value)


class TestRotation:
    def test_groups_are_turned_one_quarter_more_each(self) -> None:
        dataset = balanced(4, 20)
        clients = dataset.split("rotation(groups=4)", clients=8)
        assert clients.groups == (0, 0, 1, 1, 2, 2, 3, 3)
        assert clients.transforms == tuple(Transform(turns=turns) for turns in clients.groups)
        upright = dataset.x[own(clients, 2, "train")[0]][0]  # [[a, b], [c, d]]
        turned = clients.x[clients.train.of(2)[0]][0]  # counter-clockwise: [[b, d], [a, c]]
        (a, b), (c, d) = upright.tolist()
        assert turned.tolist() == [[b, d], [a, c]]

    def test_who_owns_what_is_that_of_the_split_it_is_added_to(self) -> None:
        dataset = balanced(4, 20)
        plain, turned = (dataset.split(one, clients=8) for one in ("dirichlet(8)", "dirichlet(8) + rotation(groups=4)"))
        assert used(plain, "train", "test").tolist() == used(turned, "train", "test").tolist()
        assert plain.hash != turned.hash

    def test_pictures_only_and_square_ones(self) -> None:
        flat = Dataset.from_arrays(np.zeros((8, 4)), np.arange(8) % 2)
        oblong = Dataset.from_arrays(np.zeros((8, 1, 2, 3)), np.arange(8) % 2)
        assert "needs square images to rotate, got examples of shape (4,)" in sentence(flat, "rotation(groups=2)")
        assert "needs square images to rotate, got examples of shape (1, 2, 3)" in sentence(
            oblong, "rotation(groups=2)"
        )

    def test_more_groups_than_clients_or_turns(self) -> None:
        dataset = balanced(4, 20)
        assert "needs a client for each of the 4 groups, got 3" in sentence(dataset, "rotation(groups=4)", 3)
        assert "groups must be at most 4, one for each quarter turn, got 5" in sentence(dataset, "rotation(groups=5)")

    def test_the_data_stay_as_they_are(self) -> None:
        dataset = balanced(4, 20)
        before = dataset.x.clone(), dataset.y.clone()
        clients = dataset.split("rotation(groups=2) + permuted_labels(groups=4)", clients=4)
        assert dataset.x.equal(before[0])
        assert dataset.y.equal(before[1])
        assert clients.split("iid", clients=4).hash == dataset.split("iid", clients=4).hash


class TestPermutedLabels:
    @given(st.integers(2, 12), st.integers(1, 12), st.integers(0, 999))
    @settings(deadline=None)
    def test_no_two_groups_agree_on_a_label(self, classes: int, groups: int, seed: int) -> None:
        groups = min(groups, classes)
        clients = balanced(classes, 12).split(PermutedLabels(groups), clients=groups, seed=seed)
        if groups == 1 and clients.transforms is None:
            return
        assert clients.transforms is not None
        orders = np.array([one.labels for one in clients.transforms])
        assert (np.sort(orders, axis=1) == np.arange(classes)).all()
        assert all(len(np.unique(column)) == groups for column in orders.T)

    def test_groups_of_both_changes_together(self) -> None:
        clients = balanced(4, 20).split("iid + rotation(groups=2) + permuted_labels(groups=3)", clients=6)
        assert clients.groups == (0, 1, 2, 3, 4, 5)  # turned at the half, and each half relabelled in thirds

    def test_refused(self) -> None:
        assert "got 2 classes in 'pictures'; use groups=2 or less" in sentence(
            balanced(2, 20), "permuted_labels(groups=3)"
        )
        numbers = Dataset.from_arrays(np.zeros((20, 2)), np.linspace(0, 1, 20))
        assert "needs data with classes" in sentence(numbers, "permuted_labels(groups=2)")


class TestOfficialTest:
    def test_a_client_s_labels_and_no_others(self) -> None:
        dataset = pictures(np.tile(np.arange(6), 60))
        clients = dataset.split("classes(k=2) + official_test", clients=6)
        official = dataset.columns["test"]
        for client in range(6):
            labels = np.unique(dataset.y.numpy()[own(clients, client, "train", "validation")])
            expected = np.flatnonzero(official & np.isin(dataset.y.numpy(), labels))
            assert sorted(own(clients, client, "test")) == expected.tolist()

    def test_subclasses_ids_and_sources(self) -> None:
        dataset = pictures(np.tile(np.arange(2), 150))
        official = dataset.columns["test"]
        for split, key in (("subclass", "subclass"), ("by_column", None), ("domains", "domain")):
            alike = dataset.client if key is None else dataset.columns[key]
            clients = dataset.split(f"{split} + official_test", clients=6)
            for client in range(len(clients)):
                mine = np.unique(alike[own(clients, client, "train", "validation")])
                tested = own(clients, client, "test")
                assert set(alike[tested]) <= set(mine)
                assert len(tested) == (official & np.isin(alike, mine)).sum()

    def test_own_examples_are_for_training_and_validation(self) -> None:
        dataset = balanced(4, 100)
        clients = dataset.split("iid + official_test", clients=4)  # 80 of each client's own, 3 : 1
        assert clients.train.sizes.tolist() == [60] * 4
        assert clients.validation.sizes.tolist() == [20] * 4
        assert clients.test.sizes.tolist() == [80] * 4
        everything = dataset.split("iid + official_test", clients=4, fractions=(1, 0, 0))
        assert everything.train.sizes.tolist() == [80] * 4
        assert everything.test.sizes.tolist() == [80] * 4

    def test_shared_examples_are_stored_once_for_each_transform(self) -> None:
        dataset = balanced(4, 100)
        clients = dataset.split("iid + rotation(groups=2) + official_test", clients=8)
        assert len(clients.x) == 320 + 2 * 80

    def test_refused(self) -> None:
        assert "got no such column in 'digits'; leave official_test out" in sentence(load("digits"), "official_test")
        for marks, many in ((np.ones(8, dtype=bool), "all"), (np.zeros(8, dtype=bool), "none")):
            whole = Dataset.from_arrays(np.zeros((8, 1)), np.arange(8) % 2, columns={"test": marks})
            assert f"but {many} in 'arrays' are test" in sentence(whole, "official_test")
        words = Dataset.from_arrays(np.zeros((8, 1)), np.arange(8) % 2, columns={"test": np.arange(8)})
        assert "True in a column 'test'" in sentence(words, "official_test")


class TestSample:
    def test_as_many_as_asked_for(self) -> None:
        dataset = balanced(4, 100)
        assert len(used(dataset.split("sample(examples=50)", clients=5), "train", "validation", "test")) == 50
        clients = dataset.split("sample(examples=50, balanced=True) + official_test", clients=5)
        labels = dataset.y.numpy()[used(clients, "train", "validation")]
        assert np.bincount(labels).tolist() == [12] * 4

    def test_refused(self) -> None:
        dataset = pictures(np.repeat([0, 1], [100, 3]))
        assert "needs that many examples, got 82 in 'pictures'" in sentence(
            dataset, "official_test + sample(examples=90)"
        )
        assert "needs 5 examples of each class, got 3 of class '1'" in sentence(dataset, "sample(10, balanced=True)")
        assert "at least one example for each of 2 classes" in sentence(dataset, "sample(1, balanced=True)")


class TestTogether:
    def test_in_python(self) -> None:
        made = Dirichlet(8) + Rotation(4) + OfficialTest()
        assert str(made) == "dirichlet(alpha=8.0) + rotation(groups=4) + official_test"
        assert str(Sample(9) + (IID() + Rotation(2))) == "sample(examples=9) + iid + rotation(groups=2)"
        with pytest.raises(TypeError):
            IID() + 3  # type: ignore[operator]

    def test_a_change_alone_is_added_to_iid(self) -> None:
        dataset = balanced(4, 20)
        assert dataset.split(Rotation(2), clients=4).hash == dataset.split(IID() + Rotation(2), clients=4).hash

    def test_refused(self) -> None:
        with pytest.raises(InputError, match=r"only one split can assign the examples, got iid and classes\(k=2\)"):
            IID() + Classes(2)
        with pytest.raises(InputError, match="each split can be added once, got rotation twice"):
            Rotation(2) + IID() + Rotation(3)


def test_transforms_one_after_the_other() -> None:
    first, second = Transform(3, (1, 2, 0)), Transform(2, (2, 1, 0))
    both = first.then(second)
    assert both == Transform(1, (1, 0, 2))  # 0 -> 1 -> 1, 1 -> 2 -> 0, 2 -> 0 -> 2
    assert Transform().then(first) == first.then(Transform()) == first


def test_two_changes_are_crossed() -> None:
    """Every combination of label order and turn occurs, so that the two can be told apart."""
    clients = load("digits").split("iid + permuted_labels(groups=4) + rotation(groups=2)", clients=20)
    assert clients.transforms is not None
    seen = {(one.labels, one.turns) for one in clients.transforms}
    assert len(seen) == 8 and len(set(clients.groups or ())) == 8
