"""Check a value against a type annotation and convert it: the one rule for settings and hyper-parameters.

An integer is accepted for a float, and a float without a fractional part for an integer; numbers of numpy and torch
count as numbers. True and False are accepted for `bool` only.
"""

import operator
from collections.abc import Mapping, Sequence
from contextlib import suppress
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin

from bespokefl.core.errors import InputError, in_brief

_MISSING = object()
_EXPECTED = {
    bool: "true or false",
    int: "an integer",
    float: "a number",
    str: "text",
    Mapping: "a table of hyper-parameters, such as {lr = 0.1}",
    NoneType: "None",
}


def convert(name: str, value: Any, annotation: Any) -> Any:
    """Return a value, as written in TOML, on the command line or in Python, in the annotated type.

    Parameters
    ----------
    name : str
        The name of the value in the error message.
    value : Any
        The value as a user wrote it, in TOML, on the command line or in Python.
    annotation : Any
        A type, or a union of types: `int`, `float | None`, `Mapping[str, Any]`. Values of other annotations are
        returned unchanged.

    Raises
    ------
    InputError
        If the value fits none of the types.
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
    if kind is bool or _is_bool(value):
        return bool(value) if kind is bool and _is_bool(value) else _MISSING
    if kind is str:
        return value if isinstance(value, str) and _is_unicode(value) else _MISSING
    with suppress(TypeError, ValueError, OverflowError):
        if kind is int:
            return int(value) if isinstance(value, float) and value.is_integer() else operator.index(value)
        if kind is float:
            return _MISSING if isinstance(value, str | bytes) else float(value)
    if kind is Mapping and isinstance(value, Mapping) and all(isinstance(key, str) for key in value):
        return {key: frozen(one) for key, one in value.items()}
    return _MISSING


def frozen(value: Any) -> Any:
    """Return lists as tuples, at every depth, so that settings are hashable and cannot change."""
    return tuple(frozen(one) for one in value) if isinstance(value, Sequence) and not isinstance(value, str) else value


def _is_bool(value: Any) -> bool:
    """Whether the value is a bool of Python or numpy; numpy, which is slow to import, is not needed to ask."""
    kind = type(value)
    return kind is bool or (kind.__module__ == "numpy" and kind.__name__ in ("bool", "bool_"))


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
