"""Convert values of clients (lists, NumPy arrays, torch tensors) to arrays, and reject what is not numeric."""

import reprlib
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from bespokefl.core.errors import InputError

Array = NDArray[np.float64]
Values = ArrayLike | Tensor


def to_table(values: Values, what: str = "values") -> Array:
    """Return one value per client, (M,), or per seed and client, (S, M); NaN is a client without a value."""
    try:
        plain: Any = values.detach().cpu().double().numpy() if isinstance(values, Tensor) else values
        array = np.asarray(plain, dtype=np.float64)
    except (TypeError, ValueError):
        raise InputError(f"{what} must be numbers, one per client, got {reprlib.repr(values)}.") from None
    if array.ndim not in (1, 2):
        raise InputError(f"{what} must be one per client, or per seed and client, got the shape {array.shape}.")
    if np.isinf(array).any():
        raise InputError(f"{what} must be finite, or NaN for a client without one, got an infinity.")
    return array


def to_vector(values: Values, what: str = "values") -> Array:
    """Return one value per client, (M,)."""
    array = to_table(values, what)
    if array.ndim != 1:
        raise InputError(f"{what} must be one per client, got the shape {array.shape}; pass one seed at a time.")
    return array


def same_shape(*named: tuple[str, Values]) -> list[Array]:
    """Return the values of the same clients (and seeds), given as pairs of name and values."""
    arrays = [to_table(values, what) for what, values in named]
    for (what, _), array in zip(named[1:], arrays[1:], strict=True):
        if array.shape != arrays[0].shape:
            both, shapes = f"{named[0][0]} and {what}", f"{arrays[0].shape} and {array.shape}"
            raise InputError(f"{both} must be of the same clients or examples, got the shapes {shapes}.")
    return arrays


def drop_missing(values: Values, what: str = "values") -> Array:
    """Return the values of clients that have one, flattened."""
    array = to_table(values, what).ravel()
    return array[~np.isnan(array)]


def by_name(named: Mapping[str, Values], what: str = "scores") -> dict[str, Array]:
    """Return the values of the same clients (and seeds) with each method; there must be at least one method."""
    if not named:
        raise InputError(f"there is nothing to compare: pass the {what} of at least one method.")
    return dict(zip(named, same_shape(*named.items()), strict=True))
