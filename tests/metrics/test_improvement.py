"""Test gains by hand on a few clients."""

import math

import numpy as np
import pytest
import torch

from bespokefl.core.errors import InputError
from bespokefl.metrics.improvement import (
    decreased_share,
    decreases,
    improved_share,
    improvements,
    mean_decrease,
    mean_improvement,
    median_decrease,
    median_improvement,
    quantum,
)

NAN = float("nan")


def test_the_gain_is_over_the_better_of_global_and_local() -> None:
    personal, common, local = [0.75, 0.5, 0.5, 0.25], [0.5, 0.75, 0.5, 0.0], [0.25, 0.25, 0.5, 0.5]
    assert quantum(personal, common, local).tolist() == [0.25, -0.25, 0.0, -0.25]
    assert quantum(personal, common).tolist() == [0.25, -0.25, 0.0, 0.25]  # Table 6.8
    assert quantum(personal, local=local).tolist() == [0.5, 0.25, 0.0, -0.25]
    for kind in (np.array, torch.tensor):
        assert quantum(kind(personal), kind(common), kind(local)).tolist() == [0.25, -0.25, 0.0, -0.25]


def test_of_losses_less_is_better() -> None:
    assert quantum([1.0, 2.0], [1.5, 3.0], [2.0, 1.0], higher_is_better=False).tolist() == [0.5, -1.0]


def test_seeds_are_rows() -> None:
    found = quantum([[0.5, 0.25], [0.75, 0.0]], [[0.25, 0.25], [0.25, 0.5]])
    assert found.tolist() == [[0.25, 0.0], [0.5, -0.5]]
    assert (improved_share(found), decreased_share(found)) == (50.0, 25.0)


def test_six_figures_by_hand() -> None:
    gains = [0.5, 0.125, 0.25, 0.0, -0.5, -0.25, -0.125, -1.0]
    assert improved_share(gains) == 100 * 3 / 8  # unchanged clients count as neither
    assert decreased_share(gains) == 100 * 4 / 8
    assert median_improvement(gains) == 0.25
    assert mean_improvement(gains) == pytest.approx(0.875 / 3)
    assert median_decrease(gains) == -(0.25 + 0.5) / 2
    assert mean_decrease(gains) == -1.875 / 4
    assert improvements(gains).tolist() == [0.5, 0.125, 0.25]
    assert decreases(gains).tolist() == [0.5, 0.25, 0.125, 1.0]


def test_a_client_without_data_is_left_out() -> None:
    gains = quantum([0.5, NAN, 0.25, 0.5], [0.25, 0.5, NAN, 0.75], [0.0] * 4)
    assert math.isnan(gains[1]) and math.isnan(gains[2])
    assert (improved_share(gains), decreased_share(gains)) == (50.0, 50.0)
    assert (mean_improvement(gains), mean_decrease(gains)) == (0.25, -0.25)


def test_without_clients_there_is_none() -> None:
    for figure in (median_improvement, mean_improvement):
        assert figure([0.0, -0.5]) is None
    for figure in (median_decrease, mean_decrease):
        assert figure([0.0, 0.5]) is None
    for figure in (improved_share, decreased_share, mean_improvement, mean_decrease):
        assert figure([]) is None and figure([NAN]) is None


def test_bad_input() -> None:
    with pytest.raises(
        InputError, match=r"personal and local must be of the same clients or examples, got the shapes \(2,\) and \(3"
    ):
        quantum([0.5, 0.5], [0.5, 0.5], [0.5, 0.5, 0.5])
    with pytest.raises(InputError, match="got neither global_ nor local"):
        quantum([0.5, 0.5])
