"""The privacy loss of clipped and noised uploads, as (ε, δ), computed with dp-accounting.

The guarantee is local: an observer who sees every upload of a client gains nothing from the uploads of others or from
random participation. Neighbouring data sets are any two data sets of the client, whose clipped uploads are at most 2C
apart, under noise of standard deviation zC. One upload is therefore a Gaussian mechanism with noise multiplier z / 2,
and T uploads, each of which may depend on earlier ones, compose to one with multiplier z / (2 √T).
"""

from importlib import import_module
from importlib.util import find_spec
from math import sqrt

from bespokefl.core.errors import InputError

DELTA = 1e-5


def check_accountant() -> None:
    """Raise an InputError if dp-accounting is not installed, so that a run fails before it trains."""
    if find_spec("dp_accounting") is None:
        raise InputError(
            'noise needs dp-accounting to compute (ε, δ), and it is not installed; pip install "bespokefl[privacy]".'
        )


def epsilon(noise: float, uploads: int, delta: float = DELTA) -> float:
    """Return the ε at `delta` of a client that makes T `uploads`.

    `noise` is the multiplier z, the standard deviation of the noise divided by the clipping norm.
    """
    if not uploads:
        return 0.0
    check_accountant()
    accounting = import_module("dp_accounting")  # imported here because it takes seconds
    return float(accounting.get_epsilon_gaussian(noise / (2 * sqrt(uploads)), delta))
