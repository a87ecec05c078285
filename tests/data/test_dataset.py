"""Arrays become a data set with the right types, or a sentence says why not."""

import numpy as np
import pytest
import torch

from bespokefl.core.errors import InputError
from bespokefl.data import Dataset
from bespokefl.data import dataset as dataset_module

X = np.arange(12, dtype=np.float64).reshape(6, 2)
Y = np.array([0, 1, 2, 0, 1, 2])


class TestTypes:
    @pytest.mark.parametrize(
        "x", [X, X.astype(np.float16), X.astype(">f8"), X.astype(np.int64), X.tolist(), torch.tensor(X), X[:, ::-1]]
    )
    def test_numbers_become_float32(self, x: object) -> None:
        dataset = Dataset.from_arrays(x, Y)
        assert dataset.x.dtype == torch.float32
        assert dataset.x.tolist() == np.asarray(x, dtype=np.float64).tolist()
        assert dataset.shape == (2,)
        assert len(dataset) == 6

    def test_bfloat16_and_gradients_are_taken(self) -> None:
        x = torch.tensor(X, dtype=torch.bfloat16, requires_grad=True)
        assert Dataset.from_arrays(x, Y).x.tolist() == X.tolist()

    def test_bytes_are_pictures(self) -> None:
        x = np.array([[0], [51], [255]], dtype=np.uint8)
        assert Dataset.from_arrays(x, [0, 1, 0]).x.flatten().tolist() == pytest.approx([0, 0.2, 1])

    def test_tokens_stay_whole(self) -> None:
        x = np.array([[0], [51], [255]], dtype=np.uint8)
        dataset = Dataset.from_arrays(x, [0, 1, 0], tokens=True)
        assert dataset.x.dtype == torch.int64
        assert dataset.x.flatten().tolist() == [0, 51, 255]

    def test_read_only_arrays_are_taken(self) -> None:
        x = X.astype(np.float32)
        x.flags.writeable = False
        assert Dataset.from_arrays(x, Y).x.tolist() == X.tolist()


class TestLabels:
    @pytest.mark.parametrize(
        ("y", "codes", "names"),
        [
            (np.array([0, 1, 2, 0], dtype=np.uint8), [0, 1, 2, 0], ("0", "1", "2")),
            ([1, 2, 10, 1], [0, 1, 2, 0], ("1", "2", "10")),
            ([-1, 1, -1, 1], [0, 1, 0, 1], ("-1", "1")),
            (["b", "a", "b", "c"], [1, 0, 1, 2], ("a", "b", "c")),
            (np.array(["b", "a", "b", "c"], dtype=object), [1, 0, 1, 2], ("a", "b", "c")),
            (np.array([b"b", b"a", b"b", b"c"]), [1, 0, 1, 2], ("a", "b", "c")),
            ([False, True, True, False], [0, 1, 1, 0], ("False", "True")),
            (torch.tensor([[3], [5], [3], [5]]), [0, 1, 0, 1], ("3", "5")),
        ],
    )
    def test_classes(self, y: object, codes: list[int], names: tuple[str, ...]) -> None:
        dataset = Dataset.from_arrays(X[:4], y)
        assert dataset.y.dtype == torch.int64
        assert dataset.y.tolist() == codes
        assert dataset.classes == len(names)
        assert dataset.label_names == names

    def test_floats_are_regression(self) -> None:
        dataset = Dataset.from_arrays(X, Y / 2)
        assert dataset.classes is None
        assert dataset.y.dtype == torch.float32
        assert dataset.y.tolist() == [0, 0.5, 1, 0, 0.5, 1]

    def test_constant_targets_are_allowed_in_regression(self) -> None:
        assert Dataset.from_arrays(X, np.ones(6)).classes is None


def with_value(value: float, *index: int) -> np.ndarray:
    x = X.copy()
    x[index] = value
    return x


class TestRefused:
    @pytest.mark.parametrize(
        ("x", "y", "sentence"),
        [
            (with_value(np.nan, 3, 1), Y, "got 1 values that are not, the first in example 3 at [1] (nan)"),
            (with_value(np.inf, 2), Y, "got 2 values that are not, the first in example 2 at [0] (inf)"),
            (with_value(1e300, 4, 0), Y, "x must be finite (in float32), got 1 values that are not"),
            (X, [0.0, 1, 2, np.nan, -np.inf, 1], "y must be finite (in float32), got 2 values that are not, "
             "the first in example 3 (nan); remove or fill them"),
            (X[:5], Y, "x and y must have one entry per example each, got 5 and 6"),
            (X[:0], Y[:0], "x must hold at least one example, got none"),
            (3.0, Y, "x must hold at least one example, got none"),
            (X[:, 0], Y, "got shape (6,); use x.reshape(-1, 1) for one feature"),
            (X[:, :0], Y, "x must have at least one feature per example, got shape (6, 0)"),
            (X, np.ones(6, dtype=int), "y must have at least two classes, got only 1; there is nothing to learn"),
            (X, np.eye(6), "y must be one label per example, got shape (6, 6); use argmax for one-hot labels"),
            (X.astype(str), Y, "x must hold numbers, got str"),
            (X.astype(complex), Y, "x must hold numbers, got complex128"),
            ([[1, 2], [3]], [0, 1], "x must be an array whose rows have equal shapes, got rows that differ"),
            (X, ["a", None, "b", "a", "b", "a"], "y must hold only numbers or text"),
            (X, Y.astype(complex), "y must hold integers or text (classes) or floats (regression), got complex"),
            (torch.tensor(X).to_sparse(), Y, "x must be a dense tensor, got torch.sparse_coo; use to_dense()"),
        ],
    )  # fmt: skip
    def test_with_a_sentence(self, x: object, y: object, sentence: str) -> None:
        with pytest.raises(InputError) as error:
            Dataset.from_arrays(x, y)
        assert sentence in str(error.value)
        assert "\n" not in str(error.value)

    @pytest.mark.parametrize("x", [X, -X.astype(int)])
    def test_tokens_that_are_none(self, x: np.ndarray) -> None:
        with pytest.raises(InputError, match="tokens must be integers >= 0"):
            Dataset.from_arrays(x, Y, tokens=True)

    @pytest.mark.parametrize(
        ("client", "sentence"),
        [
            ([1, 2], "client must be one id for each of the 6 examples, got shape (2,)"),
            (np.arange(6.0), "client ids must be integers or text, got float64; convert them to text"),
        ],
    )
    def test_client_ids(self, client: object, sentence: str) -> None:
        with pytest.raises(InputError) as error:
            Dataset.from_arrays(X, Y, client)
        assert sentence in str(error.value)


class TestFingerprint:
    def test_depends_on_content_alone(self) -> None:
        first = Dataset.from_arrays(X, Y, ["a", "b", "b", "a", "a", "a"], name="one")
        wide = np.array(["a", "b", "b", "a", "a", "a"], dtype="<U40")
        second = Dataset.from_arrays(X.astype(np.float32).tolist(), Y.tolist(), wide, name="two")
        assert first.fingerprint == second.fingerprint

    def test_changes_with_every_part(self) -> None:
        ids = np.array([1, 2, 2, 1, 1, 1])
        variants = [
            Dataset.from_arrays(X, Y),
            Dataset.from_arrays(X + 1, Y),
            Dataset.from_arrays(X.reshape(6, 2, 1), Y),
            Dataset.from_arrays(X, Y[::-1]),
            Dataset.from_arrays(X, Y, ids),
            Dataset.from_arrays(X, Y, ids.astype(str)),
            Dataset.from_arrays(X, Y, ids[::-1]),
        ]
        assert len({one.fingerprint for one in variants}) == len(variants)

    def test_does_not_depend_on_how_many_ids_are_hashed_at_once(self, monkeypatch: pytest.MonkeyPatch) -> None:
        ids = ["a", "", "b", "", "c", "d"]
        whole = Dataset.from_arrays(X, Y, ids).fingerprint
        for some in (1, 2, 4, 5):
            monkeypatch.setattr(dataset_module, "HASHED_IDS", some)
            assert Dataset.from_arrays(X, Y, ids).fingerprint == whole


class TestTake:
    def test_everything_about_the_examples_goes_along(self) -> None:
        dataset = Dataset.from_arrays(X, Y, list("abcdef"), columns={"test": Y > 1}, classes=5)
        for places in ([1, 2, 3], [0, 5], [4]):
            some = dataset.take(np.array(places))
            assert some.x.tolist() == X[places].tolist()
            assert some.y.tolist() == Y[places].tolist()
            assert some.client.tolist() == [list("abcdef")[at] for at in places]
            assert some.columns["test"].tolist() == (Y > 1)[places].tolist()
            assert (some.classes, some.label_names) == (5, dataset.label_names)
            direct = Dataset.from_arrays(X[places], Y[places], some.client, classes=5)
            assert some.fingerprint == direct.fingerprint != dataset.fingerprint

    def test_neighbours_are_not_copied(self) -> None:
        dataset = Dataset.from_arrays(X.astype(np.float32), Y)
        assert dataset.take(np.arange(2, 5)).x.data_ptr() == dataset.x[2:].data_ptr()
        assert dataset.take(np.arange(6)) is dataset


def test_shown_in_one_line() -> None:
    assert repr(Dataset.from_arrays(X, Y)) == "Dataset(arrays: 6 examples of shape (2,), 3 classes)"
    assert repr(Dataset.from_arrays(X, Y / 2, name="z")) == "Dataset(z: 6 examples of shape (2,), regression)"
