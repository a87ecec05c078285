"""A mark of code that is a person's own: a run that is resumed with other code can say so."""

import hashlib
from collections.abc import Iterator
from types import CodeType, FunctionType
from typing import Any

from torch import nn

OURS = ("bespokefl", "torch", "builtins")  # their versions say what they do


def marks(**things: Any) -> dict[str, str]:
    """For every function, object or module that is not Bespoke's or torch's own: a hash of what it is compiled to."""
    pieces = {name: sorted(set(_pieces(thing))) for name, thing in things.items()}
    return {
        name: "code " + hashlib.sha256("\n".join(own).encode()).hexdigest()[:12] for name, own in pieces.items() if own
    }


def _pieces(thing: Any) -> Iterator[str]:
    if isinstance(thing, nn.Module):
        for kind in {type(layer) for layer in thing.modules()}:
            yield from _of_class(kind)
    elif isinstance(thing, FunctionType):
        yield from _of_function(thing)
    else:
        yield from _of_class(thing if isinstance(thing, type) else type(thing))


def _of_class(kind: type) -> Iterator[str]:
    for one in kind.__mro__:
        for value in vars(one).values() if not _is_known(one.__module__) else ():
            if isinstance(value, FunctionType):
                yield from _of_function(value)


def _of_function(function: FunctionType) -> Iterator[str]:
    if not _is_known(function.__module__):
        yield f"{function.__qualname__} {_told(function.__code__)} {_told(function.__defaults__)}"


def _is_known(module: str | None) -> bool:
    return (module or "").partition(".")[0] in OURS


def _told(value: Any) -> str:
    """What is computed, wherever it stands and whatever comments are beside it; the same in every process."""
    if isinstance(value, CodeType):
        return f"{value.co_code.hex()} {value.co_names} {value.co_varnames} {_told(value.co_consts)}"
    if isinstance(value, tuple | frozenset):
        inside = map(_told, value)
        return str(list(inside) if isinstance(value, tuple) else sorted(inside))
    return repr(value) if isinstance(value, int | float | complex | str | bytes | None) else type(value).__qualname__
