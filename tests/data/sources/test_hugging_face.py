"""A Hugging Face data set is taken by what it looks like, so that the library is not needed."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from bespokefl.core.errors import InputError
from bespokefl.data.sources.hugging_face import from_dataset


class StandIn:
    """As `datasets.Dataset` is: named columns, and features that know the names of classes."""

    def __init__(self, columns: dict[str, Any], classes: dict[str, list[str]] | None = None) -> None:
        self.columns = columns
        self.column_names = list(columns)
        self.features = {name: SimpleNamespace() for name in columns}
        for name, names in (classes or {}).items():
            self.features[name] = SimpleNamespace(names=names)

    def __getitem__(self, name: str) -> Any:
        return iter(self.columns[name])  # newer versions give no list


class Picture:
    """As PIL's are: an array with a mode."""

    mode = "RGB"

    def __init__(self, value: int) -> None:
        self.value = value

    def __array__(self, dtype: object = None, copy: object = None) -> np.ndarray:
        return np.full((4, 5, 3), self.value, dtype=np.uint8) + np.arange(3, dtype=np.uint8)


def test_a_table_with_named_classes() -> None:
    columns = {"age": [1, 2, 3], "town": ["u", "v", "u"], "label": [2, 0, 2], "who": ["p", "q", "q"], "id": [7, 8, 9]}
    data = StandIn(columns, {"label": ["none", "some", "much"]})
    table = from_dataset(data, features=["age", "town"], client="who")
    assert table.features.names == ("age", "town=u", "town=v")
    assert table.label_names == ("none", "much")  # "some" does not occur
    assert table.y.tolist() == [1, 0, 1]
    assert table.client is not None
    assert table.client.tolist() == ["p", "q", "q"]


def test_pictures() -> None:
    table = from_dataset(StandIn({"image": [Picture(value) for value in (0, 50)], "label": [0, 1]}))
    assert table.shape == (3, 4, 5)
    assert np.allclose(table.x[1, :, 0, 0] * 255, [50, 51, 52])


def test_text_and_numbers_of_words() -> None:
    table = from_dataset(StandIn({"text": ["A film", "a b c"], "id": [1, 2], "label": [0, 1]}), text="text")
    assert table.features.columns[0].values == ("a", "film", "b", "c")
    assert table.x.tolist() == [[2, 3, 0], [2, 4, 5]]
    table = from_dataset(StandIn({"input_ids": [[5, 6], [7, 8, 9]], "label": [0, 1]}), text="input_ids")
    assert table.x.tolist() == [[5, 6, 0], [7, 8, 9]]
    assert table.features.kind == "tokens"


def test_regression() -> None:
    assert from_dataset(StandIn({"a": [1, 2], "price": [0.5, 1.5]}), label="price").classes is None


@pytest.mark.parametrize(
    ("data", "options", "sentence"),
    [
        (StandIn({"a": [1, 2], "label": [0, 1]}), {"label": "labl"}, "unknown column of the data set 'labl'; did you"),
        (StandIn({"a": [1, 2], "label": [0, 1]}), {"features": "b"}, "unknown column of the data set 'b'"),
        (StandIn({"a": [1, 2], "label": [-1, 1]}, {"label": ["n", "p"]}), {}, "must be known for every row, got -1"),
        (StandIn({"a": [[[1]], [[1], [2]]], "label": [0, 1]}), {}, "column 'a' must hold arrays of one shape"),
        (StandIn({"a": [object(), object()], "label": [0, 1]}), {}, "column 'a' must hold numbers, texts, images"),
        ({"train": None}, {}, "expected one split of a data set, got train; choose one"),
        (3, {}, "expected a Hugging Face data set, with column_names, got int"),
    ],
)
def test_refused(data: object, options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InputError) as error:
        from_dataset(data, **options)
    assert sentence in str(error.value)
