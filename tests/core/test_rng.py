"""Draws are functions of their key: nothing else changes them, and they change nothing else."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from bespokefl.core import rng

keys = st.lists(st.one_of(st.integers(-(2**63), 2**63), st.text(st.sampled_from("ab1:\x1f"), max_size=4)), max_size=4)


@given(keys, keys)
def test_keys_are_kept_apart(a: list[rng.Key], b: list[rng.Key]) -> None:
    assert (rng.digest(*a) == rng.digest(*b)) == (a == b)


@pytest.mark.parametrize(
    ("a", "b"),
    [
        (("a", "bc"), ("ab", "c")),
        ((1, 23), (12, 3)),
        ((1,), ("1",)),
        (("a\x1fstr:b",), ("a", "b")),
        (("a",), ("a", "")),
    ],
)
def test_likely_confusions(a: tuple[rng.Key, ...], b: tuple[rng.Key, ...]) -> None:
    assert rng.digest(*a) != rng.digest(*b)
    assert not np.array_equal(rng.generator(*a).random(4), rng.generator(*b).random(4))


def test_the_same_key_the_same_draws() -> None:
    assert np.array_equal(rng.generator(0, "x", 3).random(5), rng.generator(0, "x", 3).random(5))


@given(st.lists(keys, min_size=1, max_size=4))
def test_reusable_is_the_generator(several: list[list[rng.Key]]) -> None:
    source = rng.Reusable()
    for key in several:
        mine, own = source.at(*key), rng.generator(*key)
        # A draw of 32 bits leaves half a word behind; the next key must not see it.
        assert (
            mine.integers(2**31, size=3, dtype=np.int32).tolist()
            == own.integers(2**31, size=3, dtype=np.int32).tolist()
        )
        assert mine.permutation(9).tolist() == own.permutation(9).tolist()
        assert mine.standard_normal(3).tolist() == own.standard_normal(3).tolist()


class TestSample:
    @given(num=st.integers(1, 60), share=st.floats(0.001, 1.0))
    def test_uniform_size(self, num: int, share: float) -> None:
        drawn = rng.sample(num, share, 0, "cohort", 1)
        assert len(drawn) == max(int(share * num + 1e-9), 1)
        assert len(set(drawn.tolist())) == len(drawn)
        assert drawn.tolist() == sorted(drawn.tolist())
        assert drawn.min() >= 0 and drawn.max() < num

    @pytest.mark.parametrize(("num", "share", "size"), [(10, 0.3, 3), (100, 0.29, 29), (7, 0.5, 3), (5, 0.1, 1)])
    def test_sizes_by_hand(self, num: int, share: float, size: int) -> None:
        assert len(rng.sample(num, share, 0)) == size

    def test_rounds_differ(self) -> None:
        assert len({tuple(rng.sample(20, 0.3, 0, "cohort", r).tolist()) for r in range(10)}) > 5

    def test_uniform_is_uniform(self) -> None:
        counts = np.zeros(10)
        for r in range(2000):
            counts[rng.sample(10, 0.3, 0, "cohort", r)] += 1
        # Binomial(2000, 0.3): mean 600, standard deviation 20.5.
        assert np.abs(counts - 600).max() < 5 * 20.5

    @given(num=st.integers(2, 30), share=st.floats(0.1, 1.0), key=st.integers(0, 1000))
    def test_bernoulli_draws_at_least_two(self, num: int, share: float, key: int) -> None:
        drawn = rng.sample(num, share, key, sampling="bernoulli")
        assert 2 <= len(drawn) <= num
        assert drawn.tolist() == sorted(set(drawn.tolist()))

    def test_bernoulli_alone(self) -> None:
        assert rng.sample(1, 0.5, 0, sampling="bernoulli").tolist() == [0]

    def test_bernoulli_sizes_vary_about_the_mean(self) -> None:
        sizes = np.array([len(rng.sample(100, 0.3, r, sampling="bernoulli")) for r in range(400)])
        assert len(set(sizes.tolist())) > 5
        # Each size is Binomial(100, 0.3): standard deviation 4.6, of the mean of 400 of them 0.23.
        assert abs(sizes.mean() - 30) < 5 * 0.23


def test_torch_is_seeded_inside_and_untouched_outside() -> None:
    before = torch.get_rng_state()
    with rng.torch_seeded(0, "x"):
        first = torch.rand(4)
    with rng.torch_seeded(0, "x"):
        assert torch.equal(first, torch.rand(4))
    with rng.torch_seeded(0, "y"):
        assert not torch.equal(first, torch.rand(4))
    assert torch.equal(before, torch.get_rng_state())


def test_the_state_comes_back_after_an_error() -> None:
    before = torch.get_rng_state()
    with pytest.raises(ZeroDivisionError), rng.torch_seeded(0, "x"):
        torch.rand(1)
        raise ZeroDivisionError
    assert torch.equal(before, torch.get_rng_state())


def test_global_generators_neither_matter_nor_move() -> None:
    def draws() -> list[float]:
        with rng.torch_seeded(1):
            from_torch = torch.rand(3).tolist()
        return [
            *rng.generator(1).random(3),
            *rng.Reusable().at(1).random(3),
            *rng.sample(9, 0.5, 1),
            *from_torch,
        ]

    np.random.seed(0)  # noqa: NPY002
    torch.manual_seed(0)
    first = draws()
    np.random.seed(1)  # noqa: NPY002
    torch.manual_seed(1)
    legacy, own = np.random.get_state()[1].tolist(), torch.get_rng_state()  # noqa: NPY002
    assert draws() == first
    assert np.random.get_state()[1].tolist() == legacy  # noqa: NPY002
    assert torch.equal(torch.get_rng_state(), own)


def test_quantiles_stand_for_the_normal_distribution() -> None:
    """Mean, variance and symmetry are exact, other moments and the distribution function nearly so."""
    quantiles = torch.from_numpy(rng.normal_quantiles(np.float64))
    assert len(quantiles) == 2**16 and torch.equal(quantiles, quantiles.sort().values)
    torch.testing.assert_close(quantiles, -quantiles.flip(0), rtol=0, atol=1e-9)
    assert float(quantiles.square().mean()) == pytest.approx(1.0, abs=1e-12)
    assert float(quantiles.pow(4).mean()) == pytest.approx(3.0, abs=5e-3)
    steps = torch.arange(2**16, dtype=torch.float64) / 2**16
    gaps = [torch.special.ndtr(quantiles) - steps, torch.special.ndtr(quantiles) - steps - 2**-16]
    assert max(float(gap.abs().max()) for gap in gaps) < 2e-5
    assert 4.32 < float(quantiles[-1]) < 4.33
