"""Test what --seeds accepts."""

import pytest

from bespokefl.cli.options import numbers
from bespokefl.core.errors import InputError
from bespokefl.workflows.tune.shared_settings import check_seeds, seeds_text


@pytest.mark.parametrize(
    ("text", "seeds"),
    [
        ("5", [0, 1, 2, 3, 4]),
        ("1", [0]),
        ("0", [0]),
        ("0-9", list(range(10))),
        ("7-7", [7]),
        ("0,1,2", [0, 1, 2]),
        ("4,2", [4, 2]),
        ("0-2, 7", [0, 1, 2, 7]),
        ("-1,3", [-1, 3]),
    ],
)
def test_counts_ranges_and_lists(text: str, seeds: list[int]) -> None:
    assert numbers(text) == seeds
    assert numbers(seeds_text(seeds)) == seeds  # as the command of a comparison repeats them


def test_not_given() -> None:
    assert numbers(None) is None


@pytest.mark.parametrize("text", ["a", "", "1.5", "0,", "5-2", "1-2-3", "0,x", "0:5"])
def test_other_texts_are_rejected(text: str) -> None:
    with pytest.raises(
        InputError, match="--seeds must be a number of seeds, such as 5, or seeds, such as 0-9 or 0,1,2"
    ):
        numbers(text)


def test_too_many_and_repeated() -> None:
    with pytest.raises(InputError, match="--seeds 12345 are 12,345 seeds, more than 1,000; to run one seed"):
        numbers("12345")
    assert numbers("12345-12345") == [12345]
    with pytest.raises(InputError, match="--seeds 0-3,2 has seed 2 twice"):
        numbers("0-3,2")


def test_python() -> None:
    assert check_seeds(5) == [0, 1, 2, 3, 4] and check_seeds((3, 1)) == [3, 1] and check_seeds(range(2)) == [0, 1]
    for seeds in (0, -2, True, (), (1, 1), (0.5,), "5", 2.0, (True,)):
        with pytest.raises(InputError, match="seeds must be one or more different integers"):
            check_seeds(seeds)  # type: ignore[arg-type]
