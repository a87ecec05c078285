"""Check a value against a type annotation and convert it: the one rule for settings and hyper-parameters.

An integer is accepted for a float, and a float without a fractional part for an integer; numpy numbers count as
numbers. True and False are accepted for `bool` only.
"""

from collections.abc import Mapping, Sequence
from numbers import Integral, Real
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin

import numpy as np

from bespokefl.core.errors import InputError, in_brief

_MISSING = object()
_EXPECTED = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "text",
    Mapping: "a table of hyper-parameters, such as {lr = 0.1}",
    NoneType: "None",
}


def convert(name: str, value: Any, annotation: Any) -> Any:
    """Return a value, as written in TOML, on the command line or in Python, in the annotated type.

    An annotation is a type or a union of types: `int`, `float | None`, `Mapping[str, Any]`. Values of other annotations
    are returned unchanged.
    """
    members = get_args(annotation) if get_origin(annotation) in (Union, UnionType) else (annotation,)
    kinds = [get_origin(kind) or kind for kind in members]
    if any(kind not in _EXPECTED for kind in kinds):
        return value
    for kind in kinds:
        converted = _as(kind, value)
        if converted is not _MISSING:
            return converted
    expected = " or ".join(_EXPECTED[kind] for kind in kinds if kind is not NoneType)
    raise InputError(f"{name} must be {expected}, got {in_brief(value) if isinstance(value, int) else repr(value)}.")


def _as(kind: Any, value: Any) -> Any:
    if value is None or kind is NoneType:
        return None if value is None and kind is NoneType else _MISSING
    if kind is bool or isinstance(value, bool | np.bool_):
        return bool(value) if kind is bool and isinstance(value, bool | np.bool_) else _MISSING
    if kind is int:
        whole = isinstance(value, Integral) or (isinstance(value, float) and value.is_integer())
        return int(value) if whole else _MISSING
    if kind is float:
        try:
            return float(value) if isinstance(value, Real) else _MISSING
        except OverflowError:
            return _MISSING
    if kind is str:
        is_unicode = isinstance(value, str) and value == value.encode(errors="ignore").decode()
        return value if is_unicode else _MISSING
    if isinstance(value, Mapping) and all(isinstance(key, str) for key in value):
        return {key: frozen(one) for key, one in value.items()}
    return _MISSING


def frozen(value: Any) -> Any:
    """Lists as tuples, at every depth, so that settings are hashable and cannot change."""
    return tuple(frozen(one) for one in value) if isinstance(value, Sequence) and not isinstance(value, str) else value
