"""(ε, δ) of noised uploads, against a single Gaussian release worked by hand and another accountant."""

import math

import dp_accounting
import pytest

from bespokefl.core.errors import InputError
from bespokefl.metrics import differential_privacy
from bespokefl.metrics.differential_privacy import epsilon


def normal(x: float) -> float:
    """Φ(x)."""
    return math.erfc(-x / math.sqrt(2)) / 2


def delta_of(eps: float, apart: float, sigma: float) -> float:
    """Return the smallest δ of x + N(0, σ²) for two values of x at this distance, by hand.

    The one output density is more than e^ε times the other where the noise is beyond a point; δ is how much more it
    has there: Φ(Δ/2σ − εσ/Δ) − e^ε Φ(−Δ/2σ − εσ/Δ).
    """
    middle, shift = apart / (2 * sigma), eps * sigma / apart
    return normal(middle - shift) - math.exp(eps) * normal(-middle - shift)


@pytest.mark.parametrize("noise", [0.7, 1.0, 2.0, 10.0])
@pytest.mark.parametrize("delta", [1e-5, 1e-3])
def test_one_upload_by_hand(noise: float, delta: float) -> None:
    clip = 3.0  # any: only the ratio counts
    eps = epsilon(noise, 1, delta)
    assert delta_of(eps, apart=2 * clip, sigma=noise * clip) == pytest.approx(delta, rel=1e-6)


def test_a_figure_to_remember() -> None:
    """z = 2: two data sets are one deviation apart. δ(4.3772) = Φ(.5 − 4.3772) − e^4.3772 Φ(−.5 − 4.3772)
    = 5.2896e-5 − 79.61 · 5.388e-7 = 1.0e-5."""
    assert epsilon(2.0, 1) == pytest.approx(4.3772, abs=1e-4)


@pytest.mark.parametrize(("noise", "uploads"), [(2.0, 1), (5.0, 4), (10.0, 50), (20.0, 7)])
def test_many_uploads_by_the_accountant_of_loss_distributions(noise: float, uploads: int) -> None:
    """It composes upload after upload, by convolution, and knows nothing of √T."""
    other = dp_accounting.pld.PLDAccountant(value_discretization_interval=1e-3)
    other.compose(dp_accounting.GaussianDpEvent(noise / 2), uploads)
    assert epsilon(noise, uploads) == pytest.approx(other.get_epsilon(differential_privacy.DELTA), rel=1e-3)


def test_epsilon_grows_with_uploads_and_is_zero_without() -> None:
    found = [epsilon(5.0, count) for count in (0, 1, 2, 50)]
    assert found[0] == 0 and found == sorted(set(found))
    assert epsilon(10.0, 1) < epsilon(5.0, 1)


def test_an_accountant_that_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(differential_privacy, "find_spec", lambda name: None)
    with pytest.raises(InputError, match=r'pip install "bespokefl\[privacy\]"'):
        epsilon(1.0, 1)
