"""The schedule of tuning: stages, edges of grids, and times."""

import pytest

from bespokefl.core.errors import InputError
from bespokefl.workflows.tune.duration import in_words, is_time, read_time
from bespokefl.workflows.tune.schedule import Stage, edges, num_kept, stages, with_lower_rates


def test_stages_end_with_all_rounds_and_are_not_too_short() -> None:
    assert [[one.rounds for one in stages(rounds, 1)] for rounds in (1, 12, 15, 20, 50, 100)] == [
        [1],
        [12],
        [5, 15],
        [7, 20],
        [6, 17, 50],
        [12, 34, 100],
    ]
    assert [num_kept(num) for num in (1, 2, 5, 12, 30)] == [1, 2, 3, 4, 10]


def test_the_last_stage_has_several_seeds() -> None:
    assert stages(15, 5) == [Stage(5, 1), Stage(15, 1), Stage(15, 3)]
    assert stages(3, 2) == [Stage(3, 1), Stage(3, 2)]


def test_edges_are_continued_by_the_ratio_of_the_last_two_values() -> None:
    tried = {"lr": [0.1, 0.3, 1.0], "clusters": [2, 3, 4], "momentum": [0.0, 0.9], "divisor": ["batch", "one"]}
    best = {"momentum": 0.9, "divisor": "one"}
    assert edges(best | {"lr": 1.0, "clusters": 4}, tried) == {"lr": 3.3, "clusters": 5}
    assert edges(best | {"lr": 0.1, "clusters": 2}, tried) == {"lr": 0.033, "clusters": 1}
    assert edges(best | {"lr": 0.3, "clusters": 3}, tried) == {}
    assert edges({"clusters": 1}, {"clusters": [1, 2]}) == {}  # there is nothing below
    assert edges({"lr": 1.0}, {"lr": [1.0]}) == {}


def test_only_learning_rates_of_clients_are_lowered() -> None:
    grid = {"lr": [0.3, 1.0], "inner_rate": [0.03], "server_lr": [0.5], "momentum": [0.0, 0.9], "optimizer": ["adam"]}
    assert with_lower_rates(grid, 1) == grid | {"lr": [0.03, 0.1], "inner_rate": [0.003]}
    assert with_lower_rates(grid, 3) == grid | {"lr": [0.0003, 0.001], "inner_rate": [0.00003]}


@pytest.mark.parametrize(("text", "seconds"), [("90s", 90), ("10m", 600), ("1.5h", 5400), (30, 30), ("2 min", 120)])
def test_times(text: str | float, seconds: float) -> None:
    assert read_time(text) == seconds and is_time(str(text))


@pytest.mark.parametrize("text", ["", "ditto", "-5s", "0", "10x", "--seeds"])
def test_what_is_no_time(text: str) -> None:
    assert not is_time(text)
    with pytest.raises(InputError, match="--tune must be followed by a time, such as 90s, 10m or 1h"):
        read_time(text)


def test_times_in_words() -> None:
    assert [in_words(seconds) for seconds in (12.34, 600, 7200)] == ["12.3 s", "10 min", "2 h"]
