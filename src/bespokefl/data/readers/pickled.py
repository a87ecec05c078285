"""Pickles of plain data, read without executing them.

A pickle is a little program, and the usual way to read one runs whatever it asks for. Here its operations are taken one
by one: those that build dictionaries, lists, tuples, text, numbers and numpy arrays are carried out on plain stand-ins;
any other, and any other function or class that the file names, is refused.
"""

import math
import pickletools
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bespokefl.core.errors import said
from bespokefl.data.readers import files

KIND = "a pickle of plain arrays"


class RefusedError(Exception):
    """Something that plain data do not need."""


@dataclass(eq=False)
class Numbers:
    """An array's stand-in, until its contents come."""

    array: np.ndarray | None = None


@dataclass(eq=False)
class Type:
    """A dtype's stand-in, until its byte order comes."""

    code: str
    order: str = "|"


@dataclass(frozen=True)
class Named:
    """A function or class by its module and name. It is never looked up."""

    name: str


MARK = object()
ARRAY, DTYPE, ENCODE = Named("numpy ndarray"), Named("numpy dtype"), Named("_codecs encode")
RECONSTRUCT = {Named(f"{module}.multiarray _reconstruct") for module in ("numpy.core", "numpy._core")}
ALLOWED = {ARRAY, DTYPE, ENCODE, *RECONSTRUCT}


def read(path: Path) -> dict[str, Any]:
    """The dictionary that the pickle holds, arrays as numpy's."""
    content = files.content(path, KIND)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of an escape that Python does not know, in a damaged text
            found = _Machine().run(content)
    except RefusedError as refused:
        raise files.damaged(path, KIND, str(refused)) from None
    except Exception as error:  # a damaged program can stumble over anything
        raise files.damaged(path, KIND, said(error)) from None
    if not isinstance(found, dict):
        raise files.damaged(path, KIND, "it holds no dictionary")
    return {str(key): value.array if isinstance(value, Numbers) else value for key, value in found.items()}


class _Machine:
    """The stack and the memo, as Python's own reader has them."""

    def __init__(self) -> None:
        self.stack: list[Any] = []
        self.memo: dict[int, Any] = {}

    def run(self, content: bytes) -> Any:
        for operation, argument, _ in pickletools.genops(content):
            self.step(operation.name, argument)
        return self.stack.pop()

    def step(self, name: str, argument: Any) -> None:
        stack = self.stack
        match name:
            case "INT" | "BININT" | "BININT1" | "BININT2" | "LONG" | "LONG1" | "FLOAT" | "BINFLOAT":
                stack.append(argument)
            case "STRING" | "BINSTRING" | "SHORT_BINSTRING" | "UNICODE" | "BINUNICODE" | "SHORT_BINUNICODE":
                stack.append(argument)
            case "BINBYTES" | "SHORT_BINBYTES":
                stack.append(argument)
            case "PUT" | "BINPUT" | "LONG_BINPUT":
                self.memo[argument] = stack[-1]
            case "MEMOIZE":
                self.memo[len(self.memo)] = stack[-1]
            case "GET" | "BINGET" | "LONG_BINGET":
                stack.append(self.memo[argument])
            case "NONE":
                stack.append(None)
            case "NEWTRUE" | "NEWFALSE":
                stack.append(name == "NEWTRUE")
            case "MARK":
                stack.append(MARK)
            case "EMPTY_DICT":
                stack.append({})
            case "EMPTY_LIST":
                stack.append([])
            case "DICT":
                stack.append(_items(self.since_mark()))
            case "LIST":
                stack.append(self.since_mark())
            case "SETITEM":
                self.add(dict, self.taken(2))
            case "SETITEMS":
                self.add(dict, self.since_mark())
            case "APPEND":
                self.add(list, self.taken(1))
            case "APPENDS":
                self.add(list, self.since_mark())
            case "TUPLE":
                stack.append(tuple(self.since_mark()))
            case "EMPTY_TUPLE" | "TUPLE1" | "TUPLE2" | "TUPLE3":
                stack.append(tuple(self.taken(int(name[-1]) if name[-1].isdigit() else 0)))
            case "GLOBAL":
                stack.append(_named(argument))
            case "STACK_GLOBAL":
                stack.append(_named(" ".join(map(str, self.taken(2)))))
            case "REDUCE":
                stack.append(_called(*self.taken(2)))
            case "BUILD":
                _build(stack[-2], stack.pop())
            case "PROTO" | "FRAME" | "STOP":
                pass
            case _:
                raise RefusedError(f"it asks for {name}, which plain data do not need")

    def taken(self, count: int) -> list[Any]:
        if len(self.stack) < count:
            raise RefusedError("it takes more than it has")
        at = len(self.stack) - count
        found = self.stack[at:]
        del self.stack[at:]
        return found

    def since_mark(self) -> list[Any]:
        found: list[Any] = []
        while (last := self.stack.pop()) is not MARK:
            found.append(last)
        return found[::-1]

    def add(self, kind: type[Any], found: list[Any]) -> None:
        target: Any = self.stack[-1]
        if not isinstance(target, kind):
            raise RefusedError(f"it adds to a {type(target).__name__} as if it were a {kind.__name__}")
        if kind is dict:
            target.update(_items(found))
        else:
            target.extend(found)


def _items(found: list[Any]) -> dict[str, Any]:
    keys = [key.decode("latin-1") if isinstance(key, bytes) else key for key in found[::2]]
    if len(found) % 2 or not all(isinstance(key, str) for key in keys):
        raise RefusedError("a dictionary in it has keys that are not text")
    return dict(zip(keys, found[1::2], strict=True))


def _named(name: str) -> Named:
    if Named(name) not in ALLOWED:
        raise RefusedError(f"it names {name.replace(' ', '.')}, which plain data do not need")
    return Named(name)


def _called(function: Any, arguments: Any) -> Any:
    if isinstance(function, Named) and isinstance(arguments, tuple) and arguments:
        first = arguments[0]
        if function in RECONSTRUCT and first == ARRAY:
            return Numbers()
        if function == DTYPE and isinstance(first, str):
            return Type(first)
        if function == ENCODE and isinstance(first, str) and arguments[1:] == ("latin1",):  # bytes, in old protocols
            return first.encode("latin-1")
    raise RefusedError("it calls a function in a way that plain data do not need")


def _build(target: Any, state: Any) -> None:
    if isinstance(target, Type) and isinstance(state, tuple) and len(state) >= 2 and state[1] in ("<", ">", "|"):
        target.order = state[1]
    elif isinstance(target, Numbers) and isinstance(state, tuple) and len(state) == 5:
        target.array = _array(*state[1:])
    else:
        raise RefusedError("it builds something other than an array")


def _array(shape: Any, kind: Any, by_columns: Any, content: Any) -> np.ndarray:
    if not isinstance(kind, Type) or not isinstance(shape, tuple) or not isinstance(content, str | bytes):
        raise RefusedError("an array in it is not of plain numbers")
    dtype = np.dtype(kind.code if kind.order == "|" else kind.order + kind.code)
    if dtype.kind not in "biuf":
        raise RefusedError("an array in it is not of plain numbers")
    raw = content.encode("latin-1") if isinstance(content, str) else content
    if not all(type(one) is int and one >= 0 for one in shape) or math.prod(shape) * dtype.itemsize != len(raw):
        raise RefusedError("an array in it is longer or shorter than its shape")
    return np.frombuffer(raw, dtype).reshape(shape, order="F" if by_columns else "C")
