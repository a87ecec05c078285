"""What users write: calls such as "name(key=value)", functions such as "module:function", and values of a type.

The arguments of a call are literals (numbers, strings, tuples, True or true, None); no code is evaluated.

A value is converted to its annotated type by one rule, for settings and hyper-parameters: an integer is accepted for a
float, and a float without a fractional part for an integer; numbers of numpy and torch count as numbers. True and False
are accepted for `bool` only.
"""

import ast
import importlib
import inspect
import operator
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin

from bespokefl.core.errors import InputError, in_brief, unknown

Call = tuple[str, tuple[Any, ...], dict[str, Any]]

_MISSING = object()
_EXPECTED = {
    bool: "true or false",
    int: "an integer",
    float: "a number",
    str: "text",
    Mapping: "a table of hyper-parameters, such as {lr = 0.1}",
    NoneType: "None",
}


def parse_call(text: str) -> Call:
    """Return name, positional and keyword arguments of "name", "name()" or "name(1, key=2)"."""
    return _call(_parsed(text), text)


def parse_calls(text: str) -> list[Call]:
    """Return the calls of a list such as "name, other(key=2)"."""
    tree = _parsed(text)
    return [_call(one, text) for one in (tree.elts if isinstance(tree, ast.Tuple) else [tree])]


def _parsed(text: str) -> ast.expr | None:
    try:
        return ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _call(tree: ast.expr | None, text: str) -> Call:
    if isinstance(tree, ast.Name):
        return tree.id, (), {}
    if not isinstance(tree, ast.Call) or not isinstance(tree.func, ast.Name):
        raise InputError(f'expected a name such as "this" or "this(key=1)", got {in_brief(text, 80)!r}')
    name = tree.func.id
    kwargs: dict[str, Any] = {}
    for keyword in tree.keywords:
        if keyword.arg is None:
            raise InputError(f"expected key=value in the brackets of {name!r}, got **; write each key out")
        if keyword.arg in kwargs:
            raise InputError(f"{name} takes {keyword.arg} once, got it twice; leave one out")
        kwargs[keyword.arg] = _value(name, keyword.value)
    return name, tuple(_value(name, node) for node in tree.args), kwargs


def bind(call: Call, target: Callable[..., Any], given: Collection[str] = ()) -> dict[str, Any]:
    """Return the arguments of a call by the names of `target`'s parameters.

    given : parameters for which the caller has values itself, and which the call cannot have.
    """
    name, args, kwargs = call
    parameters = {key: one for key, one in inspect.signature(target).parameters.items() if key not in given}
    if (args or kwargs) and not parameters:
        raise InputError(f"{name} takes no arguments, got {len(args) + len(kwargs)}; write {name!r}")
    if len(args) > len(parameters):
        expected = ", ".join(parameters)
        raise InputError(f"{name} takes at most {len(parameters)} arguments ({expected}), got {len(args)}")
    bound = dict(zip(parameters, args, strict=False))
    for key, value in kwargs.items():
        if key not in parameters:
            raise unknown(f"key of {name}", key, parameters)
        if key in bound:
            raise InputError(f"{name} takes {key} once, got it by position and by name; leave one out")
        bound[key] = value
    missing = [key for key, one in parameters.items() if one.default is one.empty and key not in bound]
    if missing:
        raise InputError(f'{name} needs {" and ".join(missing)}, got none; write "{name}({missing[0]}=...)"')
    return bound


def _value(name: str, node: ast.expr) -> Any:
    if isinstance(node, ast.Name) and node.id in ("true", "false"):  # as in TOML
        return node.id == "true"
    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
        raise InputError(
            f"expected plain values (numbers, strings, tuples) in the brackets of {name!r}, "
            f"got {in_brief(ast.unparse(node), 80)!r}"
        ) from None


def is_named(spec: str) -> bool:
    """Whether this has the form "module:function"."""
    module, colon, path = spec.partition(":")
    return bool(colon) and all(one.isidentifier() for one in [*module.split("."), *path.split(".")])


def imported(spec: str, what: str, kind: str = "function") -> Callable[..., Any]:
    """Import the function or class, also from the working directory; `what` is its purpose, such as "model"."""
    if not is_named(spec):
        raise InputError(f'expected a {what} {kind} as "module:{kind}", got {spec!r}')
    module_name, _, path = spec.partition(":")
    here = str(Path.cwd())
    if here not in sys.path and "" not in sys.path:
        sys.path.insert(0, here)  # as "python -m" does; it stays, for later imports of the module
    importlib.invalidate_caches()
    try:
        found: Any = importlib.import_module(module_name)
    except Exception as error:
        gone = isinstance(error, ModuleNotFoundError) and error.name == module_name.partition(".")[0]
        advice = "; change to its directory, or add that to PYTHONPATH" if gone else ""
        raise InputError(
            f"cannot import {module_name!r} for {what} {spec!r}: {type(error).__name__}: {in_brief(error)}{advice}"
        ) from error
    for name in path.split("."):
        if not hasattr(found, name):
            usable = {key: one for key, one in vars(found).items() if callable(one) and not key.startswith("_")}
            own = [key for key, one in usable.items() if getattr(one, "__module__", None) == module_name]
            raise unknown(f"{kind} in {module_name!r}:", name, own or usable)
        found = getattr(found, name)
    if not callable(found):
        raise InputError(f"{what} {spec!r} must name a {kind}, got {type(found).__name__}")
    result: Callable[..., Any] = found
    return result


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
