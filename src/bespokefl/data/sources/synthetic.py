"""Data that are drawn, not found: every client's own truth, scattered around a common one.

`gaussian` is Self-FL's two-level model (Chen et al., NeurIPS 2022, section 2.1 and appendix G.1):
    θ_m ~ N(θ_0, σ_0²),   z_{m,i} ~ N(θ_m, σ_m²),   i = 1 … N_m,   N_m ~ U{low … high}
The task is to find θ_m: x is always 1 and y is z, so that a linear model without bias has the one weight θ. The data
know their clients (split them by_column), and the column "theta" has each example's θ_m.
Case 1 of the paper is the default; case 2 is gaussian(between=1.0, sizes=(10, 200)).
"""

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from bespokefl.core import rng as chance
from bespokefl.core.errors import InputError, unknown
from bespokefl.core.spec import bind, parse_call
from bespokefl.data.dataset import Dataset
from bespokefl.data.splits.split import numbered, real, whole


def gaussian(
    clients: int = 20,
    mean: float = 1.6,  # θ_0
    between: float = 0.001,  # σ_0², the variance between clients
    within: float = 0.1,  # σ_m², the variance of a client's data
    sizes: tuple[int, int] = (10, 20),  # of the clients' data, from … to
    seed: int = 0,
) -> Dataset:
    """Self-FL's two-level Gaussian data."""
    num, seed = whole("clients", clients, 1), whole("seed", seed, 0)
    center = real("mean", mean, "the common truth", positive=False)
    scatter, noise = (_variance(name, value) for name, value in (("between", between), ("within", within)))
    low, high = _range(sizes)
    rng = chance.generator(seed, "gaussian")
    truth = rng.normal(center, math.sqrt(scatter), num)
    many = rng.integers(low, high + 1, num)
    theta = np.repeat(truth, many)
    values = rng.normal(theta, math.sqrt(noise))
    ids = np.repeat(np.array(numbered(num)), many)
    given = {"clients": num, "mean": center, "between": scatter, "within": noise, "sizes": (low, high), "seed": seed}
    name = f"gaussian({', '.join(f'{key}={value!r}' for key, value in given.items())})"
    x = np.ones((len(values), 1), dtype=np.float32)
    return Dataset.from_arrays(x, values.astype(np.float32), ids, name, columns={"theta": theta})


GENERATORS: dict[str, Callable[..., Dataset]] = {"gaussian": gaussian}


def is_drawn(text: str) -> bool:
    """Whether these are data to be drawn: "gaussian" or "gaussian(between=1.0)"."""
    return text.split("(")[0].strip() in GENERATORS


def draw(text: str) -> Dataset:
    """The data that are written as "gaussian(between=1.0, sizes=(10, 200))"."""
    call = parse_call(text)
    if call[0] not in GENERATORS:
        raise unknown("kind of drawn data", call[0], GENERATORS)
    return GENERATORS[call[0]](**bind(call, GENERATORS[call[0]]))


def _variance(name: str, value: Any) -> float:
    if real(name, value, "a variance", positive=False) < 0:
        raise InputError(f"{name} must be >= 0, got {value!r} (a variance)")
    return float(value)


def _range(sizes: Any) -> tuple[int, int]:
    if not isinstance(sizes, tuple | list) or len(sizes) != 2:
        raise InputError(f"sizes must be two whole numbers, from and to, got {sizes!r}")
    low, high = (whole("sizes", one, 1, "examples of a client, from and to") for one in sizes)
    if low > high:
        raise InputError(f"sizes must be two whole numbers, from and to, got {sizes!r}; exchange them")
    return low, high
