"""Reads pickles of plain data, such as CIFAR's, without executing them.

A pickle is a program, and unpickling normally runs whatever functions it names. This reader looks up none of them: the
few names that numpy arrays need stand for functions of this module, and any other name is rejected. numpy itself does
not see the content before it has been checked.
"""

import io
import math
import pickle  # noqa: TID251 (only `_Unpickler` below is used, which runs no code of the pickle)
import warnings
from pathlib import Path
from typing import Any

import numpy as np

from bespokefl.core.errors import said
from bespokefl.data.readers import files
from bespokefl.data.readers.files import DamagedError


class _Array:
    """A numpy array under construction."""

    array: np.ndarray | None = None

    def __setstate__(self, state: Any) -> None:
        _, shape, dtype, is_fortran, content = state
        if not isinstance(dtype, _DType) or not isinstance(shape, tuple) or not isinstance(content, str | bytes):
            raise DamagedError("an array in it does not hold plain numbers")
        numpy_dtype = np.dtype(dtype.code if dtype.order == "|" else dtype.order + dtype.code)
        if numpy_dtype.kind not in "biuf":
            raise DamagedError("an array in it does not hold plain numbers")
        raw = content.encode("latin-1") if isinstance(content, str) else content
        valid = all(type(one) is int and one >= 0 for one in shape)
        if not valid or math.prod(shape) * numpy_dtype.itemsize != len(raw):
            raise DamagedError("an array in it is longer or shorter than its shape")
        self.array = np.frombuffer(raw, numpy_dtype).reshape(shape, order="F" if is_fortran else "C")


class _DType:
    """A numpy dtype under construction."""

    def __init__(self, code: str) -> None:
        self.code, self.order = code, "|"

    def __setstate__(self, state: Any) -> None:
        if not isinstance(state, tuple) or len(state) < 2 or state[1] not in ("<", ">", "|"):
            raise DamagedError("a dtype in it is not valid")
        self.order = state[1]


class _Function:
    """A function that the pickle names; calling it runs our own code only."""

    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        self.name = name

    def __setstate__(self, state: Any) -> None:
        raise DamagedError("it changes a function")

    def __call__(self, *arguments: Any) -> Any:
        first = arguments[0] if arguments else None
        if self.name.endswith("multiarray._reconstruct") and isinstance(first, _Function):
            return _Array()
        if self.name == "numpy.dtype" and isinstance(first, str):
            return _DType(first)
        if self.name == "_codecs.encode" and isinstance(first, str) and arguments[1:] == ("latin1",):
            return first.encode("latin-1")  # bytes, in protocol 2
        raise DamagedError(f"it calls {self.name} in a way that plain data do not need")


ALLOWED = {
    *("numpy.ndarray", "numpy.dtype", "_codecs.encode"),
    *(f"{module}.multiarray._reconstruct" for module in ("numpy.core", "numpy._core")),
}


class _Unpickler(pickle._Unpickler):
    """Python's own implementation: the C one may allocate memory for a made-up memo index."""

    def find_class(self, module: str, name: str) -> Any:
        if f"{module}.{name}" not in ALLOWED:
            raise DamagedError(f"it names {module}.{name}, which plain data do not need")
        return _Function(f"{module}.{name}")

    def get_extension(self, code: int) -> None:
        raise DamagedError("it uses the extension registry, which plain data do not need")


def read(path: Path) -> dict[str, Any]:
    """The dictionary in the pickle, with numpy arrays."""
    with files.content(path, "a pickle of plain arrays") as content:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # about unknown escapes in a damaged text
                found = _Unpickler(io.BytesIO(content), encoding="latin-1").load()
        except Exception as error:  # a damaged pickle can raise any error
            raise error if isinstance(error, DamagedError) else DamagedError(said(error)) from None
        if not isinstance(found, dict) or not all(isinstance(key, str | bytes) for key in found):
            raise DamagedError("it does not hold a dictionary with text as keys")
    return {
        key.decode("latin-1") if isinstance(key, bytes) else key: value.array if isinstance(value, _Array) else value
        for key, value in found.items()
    }
