"""Clients' values as arrays: lists, numpy and torch are all the same here, and what cannot be one is refused."""

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from bespokefl.core.errors import InputError

Array = NDArray[np.float64]
Values = ArrayLike | Tensor


def table(values: Values, what: str = "values") -> Array:
    """One value per client, (M,), or per seed and client, (S, M). NaN is a client without a value."""
    try:
        plain: Any = values.detach().cpu().double().numpy() if isinstance(values, Tensor) else values
        array = np.asarray(plain, dtype=np.float64)
    except (TypeError, ValueError):
        raise InputError(f"{what} must be numbers, one per client, got {_short(values)}.") from None
    if array.ndim not in (1, 2):
        raise InputError(f"{what} must be one per client, or per seed and client, got the shape {array.shape}.")
    if np.isinf(array).any():
        raise InputError(f"{what} must be finite, or NaN for a client without one, got an infinity.")
    return array


def vector(values: Values, what: str = "values") -> Array:
    """One value per client, (M,)."""
    array = table(values, what)
    if array.ndim != 1:
        raise InputError(f"{what} must be one per client, got the shape {array.shape}; take one seed at a time.")
    return array


def alike(*named: tuple[str, Values]) -> list[Array]:
    """Values of the same clients (and seeds)."""
    arrays = [table(values, what) for what, values in named]
    for (what, _), array in zip(named[1:], arrays[1:], strict=True):
        if array.shape != arrays[0].shape:
            shapes = f"{arrays[0].shape} and {array.shape}"
            raise InputError(
                f"{named[0][0]} and {what} must be of the same clients or examples, got the shapes {shapes}."
            )
    return arrays


def known(values: Values, what: str = "values") -> Array:
    """The values of clients that have one, as one line."""
    array = table(values, what).ravel()
    return array[~np.isnan(array)]


def _short(values: object) -> str:
    text = repr(values)
    return text if len(text) <= 60 else f"{text[:57]}..."
