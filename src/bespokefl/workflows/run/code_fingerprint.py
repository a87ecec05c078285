"""A mark of code that is a person's own: a run that is resumed with other code can say so."""

import hashlib
from collections.abc import Iterator
from types import CodeType, FunctionType
from typing import Any

OURS = ("bespokefl", "builtins")  # their versions say what they do


def mark(thing: object) -> str:
    """A hash of what its class and those above are compiled to, as far as they are not Bespoke's; "" if all are."""
    pieces = sorted(_pieces(type(thing)))
    return "code " + hashlib.sha256("\n".join(pieces).encode()).hexdigest()[:12] if pieces else ""


def _pieces(kind: type) -> Iterator[str]:
    for one in kind.__mro__:
        if one.__module__.partition(".")[0] in OURS:
            continue
        for name, value in vars(one).items():
            function = getattr(
                value, "__func__", getattr(value, "fget", value)
            )  # of a static or class method, or property
            if isinstance(function, FunctionType):
                named = tuple(sorted((function.__kwdefaults__ or {}).items()))
                yield f"{one.__qualname__}.{name} {_told(function.__code__)} {_told((function.__defaults__, named))}"


def _told(value: Any) -> str:
    """What is computed, wherever it stands and whatever comments are beside it; the same in every process."""
    if isinstance(value, CodeType):
        return f"{value.co_code.hex()} {value.co_names} {value.co_varnames} {_told(value.co_consts)}"
    if isinstance(value, tuple | frozenset):
        inside = map(_told, value)
        return str(list(inside) if isinstance(value, tuple) else sorted(inside))
    return repr(value) if isinstance(value, int | float | complex | str | bytes | None) else type(value).__qualname__
