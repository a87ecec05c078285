"""Declarations of uploads: what they accept, and what an upload must look like."""

import math

import pytest
import torch

from bespokefl.core.rows import Layout, Rows
from bespokefl.core.uploads import Choice, Scalar, Weights

LAYOUT = Layout(("base.w", "head.w"), ((3,), (2,)), ("head.w",))
START = Rows.from_matrix(LAYOUT, torch.ones(1, 5))


def test_weights_are_the_models_columns_or_some_of_them() -> None:
    assert Weights().signature(START) == (LAYOUT, (torch.float32, torch.float32))
    assert Weights("head").signature(START) == (LAYOUT.only(["head.w"]), (torch.float32,))


def test_numbers_have_a_shape_and_a_dtype() -> None:
    assert Scalar().signature(START) == ((), torch.float64)
    assert Scalar(shape=(4,), dtype=None).signature(START) == ((4,), torch.float32)
    assert Choice(3).signature(START) == ((), torch.int64)


@pytest.mark.parametrize(
    ("scalar", "expected"),
    [
        (Scalar(), [True, True, True, True]),
        (Scalar(minimum=0), [False, True, True, True]),
        (Scalar(minimum=0, maximum=1), [False, True, True, False]),
    ],
)
def test_ranges(scalar: Scalar, expected: list[bool]) -> None:
    assert scalar.is_valid(torch.tensor([-0.1, 0.0, 1.0, 2.0])).tolist() == expected
    assert not scalar.is_valid(torch.tensor([math.nan])).any()


def test_choices_are_counted_from_zero() -> None:
    assert Choice(2).is_valid(torch.tensor([-1, 0, 1, 2])).tolist() == [False, True, True, False]


def test_numbers_that_cannot_be_negative_are_released_as_logarithms() -> None:
    assert Scalar(minimum=0).is_logarithmic and Scalar(minimum=1e-3).is_logarithmic
    assert not Scalar().is_logarithmic and not Scalar(minimum=-1).is_logarithmic
