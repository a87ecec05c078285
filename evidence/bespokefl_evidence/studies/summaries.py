"""Means with standard errors, and the claims of our own studies in print."""

import math
from collections.abc import Iterable, Sequence

import numpy as np
from rich.console import Console


def mean_and_error(values: Sequence[float] | np.ndarray) -> tuple[float, float]:
    """Return the mean and its standard error."""
    array = np.asarray(values)
    return float(array.mean()), float(array.std(ddof=1) / math.sqrt(len(array)))


def print_claims(console: Console, claims: Iterable[tuple[str, bool]]) -> None:
    """Print each claim, and whether it holds."""
    for sentence, holds in claims:
        console.print(f"{'holds' if holds else 'DOES NOT HOLD'}: {sentence}")
