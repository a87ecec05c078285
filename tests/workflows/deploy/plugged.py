"""A method that is not part of Bespoke, for a deployment: test_processes.py."""

from dataclasses import dataclass

from bespokefl.methods import Ditto


@dataclass(frozen=True, kw_only=True)
class Plugged(Ditto):
    """Ditto, with another default."""

    prox_weight: float = 0.5
