"""Import of a user's function, named as "module:function"."""

import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bespokefl.core.errors import InputError, in_brief, unknown


def is_named(spec: str) -> bool:
    """Whether this has the form "module:function"."""
    module, colon, path = spec.partition(":")
    return bool(colon) and all(one.isidentifier() for one in [*module.split("."), *path.split(".")])


def imported(spec: str, what: str) -> Callable[..., Any]:
    """Import the function, also from the working directory; `what` is its purpose, such as "model"."""
    if not is_named(spec):
        raise InputError(f'expected a {what} function as "module:function", got {spec!r}')
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
            functions = [key for key, one in vars(found).items() if callable(one) and not key.startswith("_")]
            raise unknown(f"function in {module_name!r}:", name, functions)
        found = getattr(found, name)
    if not callable(found):
        raise InputError(f"{what} {spec!r} must name a function, got {type(found).__name__}")
    result: Callable[..., Any] = found
    return result
