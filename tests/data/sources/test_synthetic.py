"""Data that are drawn: as the model says, and the same for the same seed."""

import numpy as np
import pytest

from bespokefl.core.errors import InputError
from bespokefl.data.sources.synthetic import gaussian, generate, is_synthetic


def test_two_levels() -> None:
    """Between clients the variance is σ_0², within them σ_m²; the ranges are for many draws."""
    data = gaussian(clients=2000, mean=1.6, between=1.0, within=0.1, sizes=(10, 20))
    theta, z = data.columns["theta"], data.y.numpy()
    _, first, sizes = np.unique(data.client, return_index=True, return_counts=True)
    assert (sizes.min(), sizes.max()) == (10, 20)
    assert sizes.mean() == pytest.approx(15, abs=0.3)
    assert theta[first].mean() == pytest.approx(1.6, abs=0.1)
    assert theta[first].var() == pytest.approx(1.0, rel=0.1)
    assert (z - theta).var() == pytest.approx(0.1, rel=0.05)
    assert data.x.unique().tolist() == [1.0]
    assert data.classes is None


def test_the_paper_s_cases() -> None:
    case1, case2 = generate("gaussian"), generate("gaussian(between=1.0, sizes=(10, 200))")
    for data, low, high in ((case1, 10, 20), (case2, 10, 200)):
        clients = data.split("by_column")
        assert len(clients) == 20
        sizes = np.unique(data.client, return_counts=True)[1]
        assert low <= sizes.min() <= sizes.max() <= high
    assert case1.columns["theta"].std() < 0.1 < 0.5 < case2.columns["theta"].std()


def test_seed_and_name() -> None:
    first, again, other = gaussian(seed=1), gaussian(seed=1), gaussian(seed=2)
    assert first.fingerprint == again.fingerprint != other.fingerprint
    assert generate(first.name).fingerprint == first.fingerprint
    assert is_synthetic(first.name)
    assert not is_synthetic("digits")
    assert not is_synthetic("gaussian.npz")


def test_the_same_on_every_machine() -> None:
    """Golden: if it changes, so do the published synthetic experiments."""
    assert gaussian().split("by_column").hash.startswith("6b8b8a2598510239")


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("gaussian(clients=0)", "clients must be an integer >= 1, got 0"),
        ("gaussian(between=-1)", "between must be >= 0, got -1 (a variance)"),
        ("gaussian(within='a')", "within must be a finite number, got 'a'"),
        ("gaussian(sizes=5)", "sizes must be two integers, from and to, got 5"),
        ("gaussian(sizes=(20, 10))", "got (20, 10); swap them"),
        ("gaussian(sizes=(0, 10))", "sizes must be an integer >= 1, got 0"),
        ("gaussian(theta=1)", "unknown key of gaussian 'theta'"),
        ("gausian", "unknown kind of generated data 'gausian'; did you mean 'gaussian'?"),
    ],
)
def test_refused(text: str, sentence: str) -> None:
    with pytest.raises(InputError) as error:
        generate(text)
    assert sentence in str(error.value)
