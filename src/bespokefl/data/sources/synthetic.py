"""Generated data: each client has its own parameter, distributed around a common one.

`gaussian` is Self-FL's two-level model (Chen et al., NeurIPS 2022, section 2.1 and appendix G.1):
    θ_m ~ N(θ_0, σ_0²),   z_{m,i} ~ N(θ_m, σ_m²),   i = 1 … N_m,   N_m ~ U{low … high}
The task is to estimate θ_m: x is always 1 and y is z, so that a linear model without bias has the single weight θ. The
data have client ids (split them by_column), and the column "theta" holds the θ_m of each example.
The default is case 1 of the paper; case 2 is gaussian(between=1.0, sizes=(10, 200)).
"""

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from bespokefl.core.errors import InputError, unknown
from bespokefl.core.rng import generator
from bespokefl.core.user_input.spec import bind, parse_call
from bespokefl.data.dataset import Dataset
from bespokefl.data.splits.split import client_names, integer, real


def gaussian(
    clients: int = 20,
    mean: float = 1.6,
    between: float = 0.001,
    within: float = 0.1,
    sizes: tuple[int, int] = (10, 20),
    seed: int = 0,
) -> Dataset:
    """Generate Self-FL's two-level Gaussian data.

    `mean` is θ_0, `between` is σ_0², the variance between clients, `within` is σ_m², the variance of a client's data;
    `sizes` are the smallest and the largest number of examples of a client.
    """
    num, seed = integer("clients", clients, 1), integer("seed", seed, 0)
    center = real("mean", mean, "the mean over clients", positive=False)
    between, within = (_variance(name, value) for name, value in (("between", between), ("within", within)))
    low, high = _range(sizes)
    rng = generator(seed, "gaussian")
    client_theta = rng.normal(center, math.sqrt(between), num)
    counts = rng.integers(low, high + 1, num)
    theta = np.repeat(client_theta, counts)
    values = rng.normal(theta, math.sqrt(within))
    ids = np.repeat(np.array(client_names(num)), counts)
    given = {"clients": num, "mean": center, "between": between, "within": within, "sizes": (low, high), "seed": seed}
    name = f"gaussian({', '.join(f'{key}={value!r}' for key, value in given.items())})"
    x = np.ones((len(values), 1), dtype=np.float32)
    return Dataset.from_arrays(x, values.astype(np.float32), ids, name, columns={"theta": theta})


GENERATORS: dict[str, Callable[..., Dataset]] = {"gaussian": gaussian}


def is_synthetic(text: str) -> bool:
    """Whether the text describes generated data: "gaussian" or "gaussian(between=1.0)"."""
    return text.split("(")[0].strip() in GENERATORS


def generate(text: str) -> Dataset:
    """Generate the data described as "gaussian(between=1.0, sizes=(10, 200))"."""
    call = parse_call(text)
    if call[0] not in GENERATORS:
        raise unknown("kind of generated data", call[0], GENERATORS)
    return GENERATORS[call[0]](**bind(call, GENERATORS[call[0]]))


def _variance(name: str, value: Any) -> float:
    if real(name, value, "a variance", positive=False) < 0:
        raise InputError(f"{name} must be >= 0, got {value!r} (a variance)")
    return float(value)


def _range(sizes: Any) -> tuple[int, int]:
    if not isinstance(sizes, tuple | list) or len(sizes) != 2:
        raise InputError(f"sizes must be two integers, from and to, got {sizes!r}")
    low, high = (integer("sizes", one, 1, "examples of a client, from and to") for one in sizes)
    if low > high:
        raise InputError(f"sizes must be two integers, from and to, got {sizes!r}; swap them")
    return low, high
