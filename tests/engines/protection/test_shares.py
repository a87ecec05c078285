"""The largest share of one client, and what a client that lies about its examples gains."""

import pytest
import torch

from bespokefl.engines.protection.shares import limit_shares
from bespokefl.methods import FedAvg
from tests.federations import federation, run, same_bits


@pytest.mark.parametrize(
    ("examples", "most", "expected"),
    [
        ([10, 10, 20], 0.5, [10, 10, 20]),
        ([10, 10, 2**30], 0.5, [10, 10, 20]),
        ([10, 2**30, 10, 10], 0.4, [10, 20, 10, 10]),
        ([2**30, 5, 2**29, 5], 0.4, [20, 5, 20, 5]),
        ([2**30, 1, 5, 2**29], 0.25, [1, 1, 1, 1]),  # no other numbers have these shares
        ([7, 3], 0.1, [3, 3]),
        ([7], 0.1, [7]),
        ([7, 3], 1.0, [7, 3]),
    ],
)
def test_the_largest_numbers_are_lowered(examples: list[int], most: float, expected: list[float]) -> None:
    found = limit_shares(torch.tensor(examples), most)
    assert found.tolist() == pytest.approx(expected)


def test_no_share_is_larger_and_the_order_stays() -> None:
    generator = torch.Generator().manual_seed(0)
    for size in (5, 17, 40):
        examples = (torch.rand(size, generator=generator) ** 8 * 1e6).long() + 1
        for most in (0.03, 0.1, 0.3, 0.9):
            found = limit_shares(examples, most)
            assert float(found.max() / found.sum()) <= max(most, 1 / size) * (1 + 1e-9)
            assert bool((found <= examples).all()) and float(found.min()) == float(examples.min())


def test_a_run_with_a_limit() -> None:
    """Equal shares are the smallest possible limit; a limit that nobody reaches changes nothing."""
    data = federation()
    _, plain = run(FedAvg(), data)
    _, loose = run(FedAvg(), data, max_share=1.0)
    _, tight = run(FedAvg(), data, max_share=1e-3)
    _, equal = run(FedAvg(weights="equal"), data)
    assert same_bits(plain.server, loose.server) and same_bits(tight.server, equal.server)
    assert not same_bits(plain.server, tight.server)
