"""How far clients are apart: the mean of all says nothing about the one that is served worst.

A value that is NaN (a client without data) is left out. Of nothing, the answer is NaN.
"""

import numpy as np
from numpy.typing import ArrayLike, NDArray


def known(values: ArrayLike) -> NDArray[np.float64]:
    """The values of clients that have one."""
    array = np.asarray(values, dtype=np.float64)
    return array[~np.isnan(array)]


def worst(values: ArrayLike, higher_is_better: bool = True) -> float:
    """The value of the client that is served worst."""
    there = known(values)
    if not len(there):
        return float("nan")
    return float(there.min() if higher_is_better else there.max())


def worst_decile(values: ArrayLike, higher_is_better: bool = True) -> float:
    """The mean over the worst tenth of the clients, ⌈M/10⌉ of M."""
    ascending = np.sort(known(values))
    num = -(-len(ascending) // 10)
    if not num:
        return float("nan")
    return float((ascending[:num] if higher_is_better else ascending[-num:]).mean())
