"""Fingerprints of a user's own code, by which a resumed run notices that the code has changed."""

import hashlib
from collections.abc import Iterator
from types import CodeType, FunctionType
from typing import Any

OURS = ("bespokefl", "builtins")  # identified by their versions instead


def mark(thing: object) -> str:
    """Return a hash of the bytecode of an object's class and its bases; "" if all of them are Bespoke's."""
    pieces = sorted(_pieces(type(thing)))
    return "code " + hashlib.sha256("\n".join(pieces).encode()).hexdigest()[:12] if pieces else ""


def _pieces(kind: type) -> Iterator[str]:
    for one in kind.__mro__:
        if one.__module__.partition(".")[0] in OURS:
            continue
        for name, value in vars(one).items():
            # static methods and class methods, properties, functions
            function = getattr(value, "__func__", getattr(value, "fget", value))
            if isinstance(function, FunctionType):
                named = tuple(sorted((function.__kwdefaults__ or {}).items()))
                yield f"{one.__qualname__}.{name} {_text(function.__code__)} {_text((function.__defaults__, named))}"


def _text(value: Any) -> str:
    """Return code as text that depends on neither positions in the file, nor comments, nor the process."""
    if isinstance(value, CodeType):
        return f"{value.co_code.hex()} {value.co_names} {value.co_varnames} {_text(value.co_consts)}"
    if isinstance(value, tuple | frozenset):
        inside = map(_text, value)
        return str(list(inside) if isinstance(value, tuple) else sorted(inside))
    return repr(value) if isinstance(value, int | float | complex | str | bytes | None) else type(value).__qualname__
