"""Checks of a method's hyper-parameters: their types, and limits that a method declares by name.

limits = {"prox_weight": at_least(0, "λ"), "order": one_of("first", "exact")}
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from math import inf
from typing import Any, get_type_hints

from bespokefl.core.errors import InputError, in_brief
from bespokefl.core.user_input.spec import convert

LARGEST_VALUE = {int: 10**9, float: 1e38}  # beyond these, counts and float32 overflow


@dataclass(frozen=True)
class Limit:
    """Which values a hyper-parameter may have."""

    text: str  # for an error: "must be …"
    allows: Callable[[Any], bool]
    symbol: str = ""  # in the paper


def at_least(least: float, symbol: str = "") -> Limit:
    """A finite number from `least` on."""
    return Limit(f">= {least}", lambda value: least <= value < inf, symbol)


def above(least: float, symbol: str = "") -> Limit:
    """A finite number greater than `least`."""
    return Limit(f"> {least}", lambda value: least < value < inf, symbol)


def interval(text: str, symbol: str = "") -> Limit:
    """An interval in the usual notation, such as "[0, 1)"."""
    low, high = map(float, text[1:-1].split(","))
    ends = {end for end, bracket in ((low, text[0]), (high, text[-1])) if bracket in "[]"}
    return Limit(f"in {text}", lambda value: low < value < high or value in ends, symbol)


def one_of(*values: Any) -> Limit:
    """One of these values."""
    *most, last = map(repr, values)
    return Limit(f"{', '.join(most)} or {last}", lambda value: value in values)


def each(limit: Limit) -> Limit:
    """A list of at least one number, each within the limit."""

    def allows(values: Any) -> bool:
        numbers = isinstance(values, list | tuple) and all(isinstance(value, int | float) for value in values)
        return numbers and len(values) > 0 and all(map(limit.allows, values))

    return Limit(f"one or more numbers {limit.text}", allows, limit.symbol)


Limits = Mapping[str, Limit]
LEARNING_RATE = above(0, "learning rate")
COMMON_LIMITS: Limits = {
    "momentum": interval("[0, 1)"),
    "weight_decay": at_least(0),
    "weights": one_of("examples", "equal"),
}


_annotations = cache(get_type_hints)


def converted(values: Mapping[str, Any], method: type, title: str) -> dict[str, Any]:
    """The hyper-parameters in their annotated types; annotations other than of plain values are not checked."""
    hints = _annotations(method)
    return {name: convert(f"{name} of {title}", value, hints[name]) for name, value in values.items()}


def check(values: Mapping[str, Any], limits: Limits, title: str) -> None:
    """Raise an InputError for the first value that is too large or outside of its limits."""
    for name, value in values.items():
        largest = LARGEST_VALUE.get(type(value), inf)
        if isinstance(value, int | float) and largest < abs(value) < inf:
            raise InputError(f"{name} must be at most {largest:g}, got {in_brief(value)}.")
        limit = limits.get(name) or COMMON_LIMITS.get(name) or (LEARNING_RATE if name.endswith("lr") else None)
        if limit is not None and value is not None and not limit.allows(value):
            symbol = f" ({limit.symbol} of {title})" if limit.symbol else ""
            raise InputError(f"{name} must be {limit.text}, got {value!r}{symbol}.")
