"""Finds data by name, or in a file of arrays, and loads them."""

from collections.abc import Callable
from os import PathLike
from pathlib import Path

import numpy as np

from bespokefl.core.errors import InputError, unknown
from bespokefl.data.dataset import Dataset


def digits() -> Dataset:
    """Handwritten digits, 1797 pictures of 8 × 8 in 17 grey levels; they come with scikit-learn."""
    from sklearn.datasets import load_digits

    pictures, labels = load_digits(return_X_y=True)
    return Dataset.from_arrays((pictures / 16).reshape(-1, 1, 8, 8), labels, name="digits")


SOURCES: dict[str, Callable[[], Dataset]] = {"digits": digits}


def names() -> tuple[str, ...]:
    """The data that can be loaded by name."""
    return tuple(sorted(SOURCES))


def load(source: str | PathLike[str]) -> Dataset:
    """Data by name ("digits"), or from an .npz file with arrays x, y and, if each example has its client, client."""
    if isinstance(source, str) and source in SOURCES:
        return SOURCES[source]()
    path = Path(source)
    if path.suffix == ".npz" or path.is_file():
        return _from_npz(path)
    raise unknown("data", str(source), [*names(), "a path to an .npz file"])


def _from_npz(path: Path) -> Dataset:
    try:
        arrays = _arrays(path)
    except InputError:
        raise
    except FileNotFoundError:
        raise InputError(
            f"no file {str(path)!r}; give a path to an .npz file or one of: {', '.join(names())}"
        ) from None
    except Exception as error:  # a damaged file raises anything: of zip, zlib, lzma, or of numpy's header
        if "allow_pickle" in str(error):
            raise InputError(
                f"{str(path)!r} must hold plain arrays of numbers or text, got Python objects or no .npz file at all; "
                "save it with np.savez"
            ) from None
        what = " ".join(f"{type(error).__name__}: {error}".split())
        raise InputError(f"cannot read {str(path)!r} as an .npz file ({what}); save it with np.savez") from None
    missing = {"x", "y"} - arrays.keys()
    if missing:
        raise InputError(
            f"{str(path)!r} must have arrays x and y, but has no {' and no '.join(sorted(missing))}; "
            "save it with np.savez(path, x=..., y=...)"
        )
    return Dataset.from_arrays(arrays["x"], arrays["y"], arrays.get("client"), name=path.stem)


def _arrays(path: Path) -> dict[str, np.ndarray]:
    file = np.load(path, allow_pickle=False)
    if isinstance(file, np.ndarray):
        raise InputError(f"{str(path)!r} must be an .npz file with arrays x and y, got a single array")
    with file:
        return {key: file[key] for key in ("x", "y", "client") if key in file}
