"""Estimate a mean over seeds and clients with an error that counts both as random and neither twice.

The value of client c with seed s (a score, or the difference of two methods' scores) is modelled as

    d_sc = δ + a_c + b_s + e_sc

with independent, normal effects of the client, a_c, of the seed, b_s, and of both together, e_sc: a linear mixed model
with two crossed factors. All values of one seed share b_s and all values of one client share a_c, its data and its test
examples, so S × M values are not S × M independent repeats. With mean squares of a two-way analysis of variance,

    Var(mean) = (MS_seed + MS_client − MS_rest) / (S M)

and Satterthwaite's degrees of freedom give a t-test and its interval (the quasi-F test of Clark, 1973). Variances that
come out below zero count as zero. δ is the mean over other seeds and other clients of the same kind.

With one seed there is no b_s to estimate, and δ is the mean over clients with that seed only.
"""

from dataclasses import dataclass

import numpy as np

from bespokefl.core.errors import InputError
from bespokefl.metrics.client_values import Array, Values, to_table

Interval = tuple[float, float]


@dataclass(frozen=True)
class Estimate:
    """A mean over seeds and clients, its confidence interval and the test that it is zero."""

    mean: float
    interval: Interval
    p_value: float  # two-sided
    num_seeds: int
    num_clients: int


def estimate(values: Values, *, level: float = 0.05, bounds: Interval | None = None) -> Estimate | None:
    """Estimate the mean of one value per client, (M,), or per seed and client, (S, M).

    Parameters
    ----------
    values : array-like of shape (M,) or (S, M)
        Clients that lack a value (NaN) with some seed are left out.
    level : float
        Of the test; the interval has the confidence level 1 − `level`.
    bounds : pair of float, optional
        The range of possible values; the interval is cut to it.

    Returns
    -------
    Estimate or None
        None for fewer than two values. If all values are equal but not zero, the variance cannot be estimated and the
        p-value is that of a sign test over clients or seeds, whichever are more.

    Examples
    --------
    >>> found = estimate([[0.02, 0.04, 0.03], [0.01, 0.05, 0.03]])
    >>> round(found.mean, 3), found.num_seeds, found.num_clients
    (0.03, 2, 3)
    """
    from scipy.stats import t as student  # imported here because it is slow

    if not 0 < level < 1:
        raise InputError(f"level must be between 0 and 1, got {level} (of significance).")
    table = np.atleast_2d(to_table(values))
    table = table[:, ~np.isnan(table).any(0)]
    num_seeds, num_clients = table.shape
    if table.size < 2:
        return None
    mean, error, degrees = (float(one) for one in mean_and_error(table))
    if error <= 1e-12 * np.abs(table).max():
        p_value, half_width = (2.0 ** (1 - max(table.shape)) if mean else 1.0), 0.0
    else:
        p_value = float(2 * student.sf(abs(mean) / error, degrees))
        half_width = float(student.ppf(1 - level / 2, degrees)) * error
    low, high = bounds or (-np.inf, np.inf)
    interval = float(max(mean - half_width, low)), float(min(mean + half_width, high))
    return Estimate(mean, interval, p_value, num_seeds, num_clients)


def mean_and_error(tables: Array) -> tuple[Array, Array, Array]:
    """Return the mean of each table, its standard error and the error's degrees of freedom.

    `tables`, (…, S, M), has one value per seed and client and no NaN; S · M is at least 2. Results have the shape (…).
    """
    num_seeds, num_clients = tables.shape[-2:]
    mean: Array = tables.mean((-2, -1))
    if min(num_seeds, num_clients) == 1:
        flat = tables.reshape(*tables.shape[:-2], -1)
        num = flat.shape[-1]
        return mean, flat.std(-1, ddof=1) / np.sqrt(num), np.full(mean.shape, num - 1.0)
    by_seed, by_client = tables.mean(-1), tables.mean(-2)
    rest = tables - by_seed[..., :, None] - by_client[..., None, :] + mean[..., None, None]
    freedom = np.array([num_seeds - 1, num_clients - 1, (num_seeds - 1) * (num_clients - 1)], dtype=np.float64)
    of_seeds = num_clients * by_seed.var(-1, ddof=1)
    of_clients = num_seeds * by_client.var(-1, ddof=1)
    of_rest = np.square(rest).sum((-2, -1)) / freedom[2]
    total = np.maximum(np.maximum(of_seeds, of_clients), of_seeds + of_clients - of_rest)
    spread = of_seeds**2 / freedom[0] + of_clients**2 / freedom[1] + of_rest**2 / freedom[2]
    smallest = float(freedom[:2].min())
    degrees = np.divide(total**2, spread, out=np.full(mean.shape, smallest), where=spread > 0)
    error: Array = np.sqrt(total / (num_seeds * num_clients))
    return mean, error, np.clip(degrees, smallest, num_seeds * num_clients - 1.0)
