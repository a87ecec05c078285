"""The quantum of improvement: how much better off each client is with a method than without it.

Divi et al. (PersFL), equations 5.2 to 5.6. `gains` are one per client, (M,), or per seed and client, (S, M), where each
entry counts as a client. They are on the scale of the scores; the two shares are in percent, as in the thesis. Clients
without a gain (NaN) are left out.
"""

import numpy as np

from bespokefl.core.errors import InputError
from bespokefl.metrics.client_values import Array, Values, drop_missing, same_shape


def quantum(
    personal: Values, global_: Values | None = None, local: Values | None = None, *, higher_is_better: bool = True
) -> Array:
    """Return the gain of each client, QoI_i = P_i − max(G_i, L_i) (5.2).

    Parameters
    ----------
    personal, global_, local : array-like of shape (M,) or (S, M)
        The clients' scores with the personal model, with FedAvg and with Local. One of the last two may be left out:
        the gain is then over the other one (Table 6.8 has P − G).
    higher_is_better : bool
        False for losses, where the gain is min(G_i, L_i) − P_i.

    Examples
    --------
    >>> quantum([0.9, 0.8], global_=[0.7, 0.9], local=[0.8, 0.6]).round(2).tolist()
    [0.1, -0.1]
    """
    given = {"global_": global_, "local": local}
    others = [(name, values) for name, values in given.items() if values is not None]
    if not others:
        raise InputError("an improvement needs a reference, got neither global_ nor local; pass one of them.")
    own, *rest = same_shape(("personal", personal), *others)
    sign = 1.0 if higher_is_better else -1.0
    gains: Array = sign * own - np.max([sign * one for one in rest], axis=0)
    return gains + 0.0  # no −0


def improved_share(gains: Values) -> float | None:
    """Return PUI, the percentage of clients that are better off (5.3); None without clients."""
    present = drop_missing(gains, "gains")
    return float(100 * (present > 0).mean()) if len(present) else None


def decreased_share(gains: Values) -> float | None:
    """Return PUD, the percentage of clients that are worse off (5.4); None without clients."""
    present = drop_missing(gains, "gains")
    return float(100 * (present < 0).mean()) if len(present) else None


def median_improvement(gains: Values) -> float | None:
    """Return MPI, the median gain of the clients that are better off; None if there are none."""
    found = improvements(gains)
    return float(np.median(found)) if len(found) else None


def mean_improvement(gains: Values) -> float | None:
    """Return API, the mean gain of the clients that are better off (5.5); None if there are none."""
    found = improvements(gains)
    return float(found.mean()) if len(found) else None


def median_decrease(gains: Values) -> float | None:
    """Return MPD, the median (negative) gain of the clients that are worse off; None if there are none."""
    found = decreases(gains)
    return float(-np.median(found)) if len(found) else None


def mean_decrease(gains: Values) -> float | None:
    """Return APD, the mean (negative) gain of the clients that are worse off (5.6); None if there are none."""
    found = decreases(gains)
    return float(-found.mean()) if len(found) else None


def improvements(gains: Values) -> Array:
    """Return U⁺, the gains above zero."""
    present = drop_missing(gains, "gains")
    return present[present > 0]


def decreases(gains: Values) -> Array:
    """Return `|U⁻|`, the absolute values of the gains below zero."""
    present = drop_missing(gains, "gains")
    return -present[present < 0]
