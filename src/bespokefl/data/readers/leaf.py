"""LEAF's JSON folders: clients by name, and each one's examples.

A file holds `users` (names) and `user_data` (for each name, lists x and y), perhaps `num_samples`. A set is a folder
with any number of such files; where it has folders `train` and `test`, the latter's examples are marked as test.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from bespokefl.core.errors import InputError
from bespokefl.data.readers import files
from bespokefl.data.readers.files import Arrays, Report

KIND = "a LEAF JSON file"
SIDE = 28  # of FEMNIST's pictures
TEXT = 4  # where a tweet stands among what Sent140 keeps of it: id, date, query, user, text, …
POSITIVE = 4  # the original's label; LEAF's own is 1

Client = tuple[str, list[Any], list[Any]]  # name, x, y
Decode = Callable[[Path, str, list[Any], list[Any]], tuple[np.ndarray, np.ndarray]]


def read(path: Path) -> list[Client]:
    """The clients of one file, in its order."""
    try:
        found = json.loads(files.content(path, KIND))
    except (ValueError, RecursionError) as error:
        raise files.damaged(path, KIND, str(error)) from None
    users, data = (found.get(key) if isinstance(found, dict) else None for key in ("users", "user_data"))
    if not isinstance(users, list) or not isinstance(data, dict) or not all(isinstance(one, str) for one in users):
        raise files.damaged(path, KIND, "it must have users (a list of names) and user_data")
    sizes = found.get("num_samples")
    if sizes is not None and (not isinstance(sizes, list) or len(sizes) != len(users)):
        raise files.damaged(path, KIND, "num_samples must be a list with a number for each of users")
    clients: list[Client] = []
    for at, user in enumerate(users):
        entry = data.get(user)
        x, y = (entry.get(key) if isinstance(entry, dict) else None for key in ("x", "y"))
        if not isinstance(x, list) or not isinstance(y, list) or len(x) != len(y):
            raise files.damaged(path, KIND, f"user {user!r} must have lists x and y of one length")
        if sizes is not None and sizes[at] != len(x):
            raise files.damaged(path, KIND, f"user {user!r} has {len(x)} examples, but num_samples says {sizes[at]!r}")
        clients.append((user, x, y))
    return clients


def femnist(folder: Path, report: Report = files.silent) -> Arrays | None:
    """Pictures as (examples, 1, 28, 28), uint8: paper is 255, ink is dark."""
    return _pool(folder, _pictures, report)


def sent140(folder: Path, report: Report = files.silent) -> Arrays | None:
    """Tweets as `text_utf8`: all of them as bytes, a line each."""
    found = _pool(folder, _tweets, report)
    if found is None:
        return None
    lines = "\n".join(found["x"].tolist())
    rest = {key: array for key, array in found.items() if key != "x"}
    return {"text_utf8": np.frombuffer(lines.encode(), np.uint8), **rest}


def pool(folder: Path, report: Report = files.silent) -> Arrays | None:
    """Numbers of any kind, one shape for all examples."""
    return _pool(folder, _numbers, report)


def _pool(folder: Path, decode: Decode, report: Report) -> Arrays | None:
    paths = _located(folder)
    if not paths:
        return None
    x: list[np.ndarray] = []
    y: list[np.ndarray] = []
    names: list[str] = []
    sizes: list[int] = []
    test: list[bool] = []
    for done, (path, is_test) in enumerate(paths):
        report("reading", done, len(paths))
        for user, examples, labels in read(path):
            if not examples:
                continue
            decoded = decode(path, user, examples, labels)
            if x and decoded[0].shape[1:] != x[0].shape[1:]:
                raise files.damaged(
                    path, KIND, f"examples of user {user!r} have shape {decoded[0].shape[1:]}, others {x[0].shape[1:]}"
                )
            x.append(decoded[0])
            y.append(decoded[1])
            names.append(user)
            sizes.append(len(examples))
            test.append(is_test)
    if not x:
        raise InputError(f"the LEAF files in {str(folder)!r} hold no examples")
    return {
        "x": np.concatenate(x),
        "y": np.concatenate(y),
        "client": np.repeat(np.array(names), sizes),
        "test": np.repeat(test, sizes),
    }


def _located(folder: Path) -> list[tuple[Path, bool]]:
    """The JSON files, training first, and whether they are for test."""
    train, test = (_below(folder, part) for part in ("train", "test"))
    if train:
        return [(path, False) for path in train] + [(path, True) for path in test]
    for place in (folder, folder / "all_data", folder / "data" / "all_data"):
        found = [path for path in sorted(place.glob("*.json")) if _looks_like(path)]
        if found:
            return [(path, False) for path in found]
    return []


def _below(folder: Path, part: str) -> list[Path]:
    for place in (folder / part, folder / "data" / part):
        found = [path for path in sorted(place.glob("*.json")) if _looks_like(path)]
        if found:
            return found
    return []


def _looks_like(path: Path) -> bool:
    """Whether the file begins as LEAF's do, with users or one of the keys beside it."""
    with files.opened(path, KIND) as file:
        start = file.read(200).lstrip()
    return start.startswith(b"{") and any(
        start[1:].lstrip().startswith(key) for key in (b'"users"', b'"user_data"', b'"num_samples"', b'"hierarchies"')
    )


def _pictures(path: Path, user: str, examples: list[Any], labels: list[Any]) -> tuple[np.ndarray, np.ndarray]:
    x, y = _numbers(path, user, examples, labels)
    if x.shape[1:] not in ((SIDE * SIDE,), (SIDE, SIDE), (1, SIDE, SIDE)) or x.min() < 0 or x.max() > 1:
        raise files.damaged(path, KIND, f"user {user!r} must have pictures of 28 × 28 numbers from 0 to 1")
    return np.rint(x * 255).astype(np.uint8).reshape(-1, 1, SIDE, SIDE), y


def _tweets(path: Path, user: str, examples: list[Any], labels: list[Any]) -> tuple[np.ndarray, np.ndarray]:
    tweets = [one[TEXT] if isinstance(one, list) and len(one) > TEXT else one for one in examples]
    if not all(isinstance(one, str) for one in tweets):
        raise files.damaged(
            path, KIND, f"user {user!r} must have tweets, as text or as lists whose fifth entry is text"
        )
    y = _whole(path, user, labels)
    y[y == POSITIVE] = 1
    return np.array([" ".join(one.split()) for one in tweets]), y


def _numbers(path: Path, user: str, examples: list[Any], labels: list[Any]) -> tuple[np.ndarray, np.ndarray]:
    try:
        with np.errstate(over="ignore"):  # too large a number is infinite, and is refused as such later
            x = np.array(examples, dtype=np.float32)
    except (ValueError, TypeError, OverflowError):
        raise files.damaged(path, KIND, f"x of user {user!r} must be lists of numbers, of one shape") from None
    if x.ndim < 2 or not np.isfinite(x).all():
        raise files.damaged(path, KIND, f"x of user {user!r} must be lists of finite numbers")
    return x, _whole(path, user, labels)


def _whole(path: Path, user: str, labels: list[Any]) -> np.ndarray:
    try:
        y = np.array([int(one) for one in labels], dtype=np.int64)
    except (ValueError, TypeError, OverflowError):
        raise files.damaged(path, KIND, f"y of user {user!r} must be whole numbers") from None
    if y.min() < 0 or y.max() > 10**6:
        raise files.damaged(path, KIND, f"y of user {user!r} must be labels from 0")
    return y
