"""LEAF's JSON files: the names of clients and the examples of each.

A file holds `users` (names) and `user_data` (for each name, lists x and y), perhaps `num_samples`. A data set is a
directory with any number of such files; if it has directories `train` and `test`, the examples of the latter are marked
as test.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from bespokefl.core.errors import InputError
from bespokefl.data.readers import files
from bespokefl.data.readers.files import Arrays, DamagedError, OnProgress

KIND = "a LEAF JSON file"
SIDE = 28  # of FEMNIST's images
TEXT_FIELD = 4  # of a tweet in Sent140: id, date, query, user, text, …
POSITIVE = 4  # the original label of Sent140; LEAF's is 1
KEYS = (b'"users"', b'"user_data"', b'"num_samples"', b'"hierarchies"')

Client = tuple[str, list[Any], list[Any]]  # name, x, y
Decode = Callable[[str, list[Any], list[Any]], tuple[np.ndarray, np.ndarray]]


def read(path: Path) -> list[Client]:
    """The clients of one file, in its order."""
    with files.content(path, KIND) as content:
        return _to_clients(json.loads(content))


def _to_clients(found: Any) -> list[Client]:
    users, data = (found.get(key) if isinstance(found, dict) else None for key in ("users", "user_data"))
    if not isinstance(users, list) or not isinstance(data, dict) or not all(isinstance(one, str) for one in users):
        raise DamagedError("it must have users (a list of names) and user_data")
    sizes = found.get("num_samples")
    if sizes is not None and (not isinstance(sizes, list) or len(sizes) != len(users)):
        raise DamagedError("num_samples must be a list with a number for each of users")
    clients: list[Client] = []
    for index, user in enumerate(users):
        entry = data.get(user)
        x, y = (entry.get(key) if isinstance(entry, dict) else None for key in ("x", "y"))
        if not isinstance(x, list) or not isinstance(y, list) or len(x) != len(y):
            raise DamagedError(f"user {user!r} must have lists x and y of the same length")
        if sizes is not None and sizes[index] != len(x):
            raise DamagedError(f"user {user!r} has {len(x)} examples, but num_samples is {sizes[index]!r}")
        clients.append((user, x, y))
    return clients


def read_femnist(directory: Path, report: OnProgress = files.no_report) -> Arrays | None:
    """Images as (examples, 1, 28, 28), uint8: paper is 255, ink is dark."""
    return _read_clients(directory, _to_images, report)


def read_sent140(directory: Path, report: OnProgress = files.no_report) -> Arrays | None:
    """Tweets as `text_utf8`: all of them as bytes, one line each."""
    found = _read_clients(directory, _to_tweets, report)
    if found is None:
        return None
    lines = "\n".join(found["x"].tolist())
    rest = {key: array for key, array in found.items() if key != "x"}
    return {"text_utf8": np.frombuffer(lines.encode(), np.uint8), **rest}


def read_directory(directory: Path, report: OnProgress = files.no_report) -> Arrays | None:
    """Numbers, with the same shape for all examples."""
    return _read_clients(directory, _to_numbers, report)


def _read_clients(directory: Path, decode: Decode, report: OnProgress) -> Arrays | None:
    paths = _locate(directory)
    if not paths:
        return None
    found: list[tuple[np.ndarray, np.ndarray, str, bool]] = []  # x, y, client, whether it is test
    for path, is_test in files.reported(paths, report):
        with files.reading(path, KIND):
            for user, examples, labels in read(path):
                if not examples:
                    continue
                x, y = decode(user, examples, labels)
                shapes = x.shape[1:], (found[0][0] if found else x).shape[1:]
                if shapes[0] != shapes[1]:
                    raise DamagedError(f"examples of user {user!r} have shape {shapes[0]}, others {shapes[1]}")
                found.append((x, y, user, is_test))
    if not found:
        raise InputError(f"the LEAF files in {str(directory)!r} hold no examples")
    xs, ys, names, tests = zip(*found, strict=True)
    sizes = [len(y) for y in ys]
    return {
        "x": np.concatenate(xs),
        "y": np.concatenate(ys),
        "client": np.repeat(np.array(names), sizes),
        "test": np.repeat(tests, sizes),
    }


def _locate(directory: Path) -> list[tuple[Path, bool]]:
    """The JSON files, training first, and whether they are for test."""
    train, test = (_first_with_files(directory / part, directory / "data" / part) for part in ("train", "test"))
    if train:
        return [(path, False) for path in train] + [(path, True) for path in test]
    unmarked = _first_with_files(directory, directory / "all_data", directory / "data" / "all_data")
    return [(path, False) for path in unmarked]


def _first_with_files(*directories: Path) -> list[Path]:
    """The LEAF files of the first directory that has any."""
    found = ([path for path in sorted(one.glob("*.json")) if _looks_like_leaf(path)] for one in directories)
    return next(filter(None, found), [])


def _looks_like_leaf(path: Path) -> bool:
    """Whether the first key of the file is one of LEAF's."""
    with files.opened(path, KIND) as file:
        start = file.read(200).lstrip()
    return start.startswith(b"{") and start[1:].lstrip().startswith(KEYS)


def _to_images(user: str, examples: list[Any], labels: list[Any]) -> tuple[np.ndarray, np.ndarray]:
    x, y = _to_numbers(user, examples, labels)
    if x.shape[1:] not in ((SIDE * SIDE,), (SIDE, SIDE), (1, SIDE, SIDE)) or x.min() < 0 or x.max() > 1:
        raise DamagedError(f"user {user!r} must have images of 28 × 28 numbers from 0 to 1")
    return np.rint(x * 255).astype(np.uint8).reshape(-1, 1, SIDE, SIDE), y


def _to_tweets(user: str, examples: list[Any], labels: list[Any]) -> tuple[np.ndarray, np.ndarray]:
    tweets = [one[TEXT_FIELD] if isinstance(one, list) and len(one) > TEXT_FIELD else one for one in examples]
    if not all(isinstance(one, str) for one in tweets):
        raise DamagedError(f"user {user!r} must have tweets, as text or as lists whose fifth entry is text")
    y = _to_labels(user, labels)
    y[y == POSITIVE] = 1
    return np.array([" ".join(one.split()) for one in tweets]), y


def _to_numbers(user: str, examples: list[Any], labels: list[Any]) -> tuple[np.ndarray, np.ndarray]:
    try:
        with np.errstate(over="ignore"):  # a number that is too large becomes infinite, which is checked below
            x = np.array(examples, dtype=np.float32)
    except (ValueError, TypeError, OverflowError):
        raise DamagedError(f"x of user {user!r} must be lists of numbers, of one shape") from None
    if x.ndim < 2 or not np.isfinite(x).all():
        raise DamagedError(f"x of user {user!r} must be lists of finite numbers")
    return x, _to_labels(user, labels)


def _to_labels(user: str, labels: list[Any]) -> np.ndarray:
    try:
        y = np.array([int(one) for one in labels], dtype=np.int64)
    except (ValueError, TypeError, OverflowError):
        raise DamagedError(f"y of user {user!r} must be integers") from None
    if y.min() < 0 or y.max() > 10**6:
        raise DamagedError(f"y of user {user!r} must be labels from 0")
    return y
