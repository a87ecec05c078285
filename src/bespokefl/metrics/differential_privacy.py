"""What clipped and noised uploads tell of a client: (ε, δ), by the accountant library dp-accounting.

Whoever sees a client's uploads sees each by itself, so nothing is gained from others' uploads or from being drawn at
random. Neighbours are any two data sets of the client: its clipped uploads are at most 2 C apart, under noise of
deviation z C. So one upload is a Gaussian mechanism with noise multiplier z / 2, and T uploads, each of which may
depend on those before, are together as good as one with multiplier z / (2 √T).
"""

from importlib import import_module
from importlib.util import find_spec
from math import sqrt

from bespokefl.core.errors import InputError

DELTA = 1e-5


def check_accountant() -> None:
    """Refuse to promise what cannot be worked out at the end."""
    if find_spec("dp_accounting") is None:
        raise InputError(
            'noise needs dp-accounting, which is not installed, to tell (ε, δ): pip install "bespokefl[privacy]".'
        )


def epsilon(noise: float, uploads: int, delta: float = DELTA) -> float:
    """ε of so many uploads of one client."""
    if not uploads:
        return 0.0
    check_accountant()
    accounting = import_module("dp_accounting")  # here, because it takes seconds to import
    return float(accounting.get_epsilon_gaussian(noise / (2 * sqrt(uploads)), delta))
