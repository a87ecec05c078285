"""Is every client better off? The quantum of improvement of each, and what it comes to.

Divi et al. (PersFL), equations 5.2 to 5.6. Gains are one per client, (M,), or per seed and client, (S, M), which then
count as so many clients. They have the scale of what they were made of; the two shares are in percent, as printed.
"""

import numpy as np

from bespokefl.core.errors import InputError
from bespokefl.metrics.vectors import Array, Values, alike, known


def quantum(
    personal: Values, global_: Values | None = None, local: Values | None = None, *, higher_is_better: bool = True
) -> Array:
    """QoI_i = P_i − max(G_i, L_i) (5.2); of one of them alone where the other is not given (Table 6.8 has P − G).

    personal, global_, local    what the personal model, FedAvg's and Local's are worth to each client
    higher_is_better            False for losses: min(G_i, L_i) − P_i
    """
    given = {"global_": global_, "local": local}
    others = [(name, values) for name, values in given.items() if values is not None]
    if not others:
        raise InputError("an improvement is one over something, got neither global_ nor local; give one of them.")
    own, *rest = alike(("personal", personal), *others)
    sign = 1.0 if higher_is_better else -1.0
    gains: Array = sign * own - np.max([sign * one for one in rest], axis=0)
    return gains + 0.0  # no −0


def improved_share(gains: Values) -> float | None:
    """PUI, the percentage of clients that are better off (5.3); None without clients."""
    found = known(gains, "gains")
    return float(100 * (found > 0).mean()) if len(found) else None


def decreased_share(gains: Values) -> float | None:
    """PUD, the percentage of clients that are worse off (5.4); None without clients."""
    found = known(gains, "gains")
    return float(100 * (found < 0).mean()) if len(found) else None


def median_improvement(gains: Values) -> float | None:
    """MPI, the median gain of those that are better off; None if nobody is."""
    found = improvements(gains)
    return float(np.median(found)) if len(found) else None


def mean_improvement(gains: Values) -> float | None:
    """API, the mean gain of those that are better off (5.5); None if nobody is."""
    found = improvements(gains)
    return float(found.mean()) if len(found) else None


def median_decrease(gains: Values) -> float | None:
    """MPD, the median gain, below zero, of those that are worse off; None if nobody is."""
    found = decreases(gains)
    return float(-np.median(found)) if len(found) else None


def mean_decrease(gains: Values) -> float | None:
    """APD, the mean gain, below zero, of those that are worse off (5.6); None if nobody is."""
    found = decreases(gains)
    return float(-found.mean()) if len(found) else None


def improvements(gains: Values) -> Array:
    """U⁺: the gains of those that are better off."""
    found = known(gains, "gains")
    return found[found > 0]


def decreases(gains: Values) -> Array:
    """|U⁻|: how much they lose that are worse off."""
    found = known(gains, "gains")
    return -found[found < 0]
