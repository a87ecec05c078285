"""Parses "name(key=value)", the notation for splits and models.

Arguments are literals (numbers, strings, tuples, True, None); no code is evaluated.
"""

import ast
import inspect
from collections.abc import Callable, Collection
from typing import Any

from bespokefl.core.errors import InputError, in_brief, unknown

Call = tuple[str, tuple[Any, ...], dict[str, Any]]


def parse_call(text: str) -> Call:
    """Return name, positional and keyword arguments of "name", "name()" or "name(1, key=2)"."""
    try:
        tree = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        tree = None
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
    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
        raise InputError(
            f"expected plain values (numbers, strings, tuples) in the brackets of {name!r}, "
            f"got {in_brief(ast.unparse(node), 80)!r}"
        ) from None
