"""Reads and writes splits as JSON files, so that other programs and later runs use exactly the same clients.

format        "bespoke split"
version       2; files of version 1 have no transforms and are read, too
data          name of the data
fingerprint   sha256 of the data; the file is valid for these only
split, seed   how the split was made, for information: "dirichlet(alpha=0.4)", 0
names         the clients
train, validation, test   for each client the list of its examples, numbered from 0 in the original data. An example is
              in at most one list of train and validation; test lists may share examples (an official test set)
transforms    null, or for each client what is applied to all its examples, including test:
              turns     quarter turns of the image, counter-clockwise: numpy.rot90(x, turns, axes=(-2, -1))
              labels    null, or the list by which the label c becomes labels[c]
groups        each client's true group, or null
hash          sha256 of fingerprint, names, parts, groups and transforms (see `split_hash`)
"""

import json
from collections.abc import Iterator
from dataclasses import asdict
from itertools import chain, pairwise
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from bespokefl.core.client_index import PARTS, ClientIndex
from bespokefl.core.errors import InputError
from bespokefl.core.system.files import refuse_pipe, write_pieces
from bespokefl.data.clients import Clients, build_clients, client_index, split_hash
from bespokefl.data.dataset import Dataset
from bespokefl.data.splits import Transform

FORMAT = "bespoke split"
VERSION = 2
AT_ONCE = 10_000  # clients


def write(path: str | PathLike[str], clients: Clients) -> None:
    """Write the split atomically."""
    content: dict[str, Any] = {
        "format": FORMAT,
        "version": VERSION,
        "data": clients.data_name,
        "fingerprint": clients.fingerprint,
        "split": clients.split_name,
        "seed": clients.seed,
        "hash": clients.hash,
        "names": clients.names,
        "groups": clients.groups,
        "transforms": None if clients.transforms is None else [asdict(one) for one in clients.transforms],
    }
    # one key per line, so that the head of the file is readable
    head = ",\n".join(f"{json.dumps(key)}: {_compact(value)}" for key, value in content.items())
    write_pieces(Path(path), chain([f"{{\n{head}".encode()], _lists(clients), [b"\n}\n"]))


def _lists(clients: Clients) -> Iterator[bytes]:
    """The examples of each client as JSON, some clients at a time: all of them as Python objects would be large."""
    for name, part in zip(PARTS, clients.original_parts, strict=True):
        yield f",\n{json.dumps(name)}: [".encode()
        for start in range(0, len(part), AT_ONCE):
            offsets = part.offsets[start : start + AT_ONCE + 1].tolist()
            flat = part.indices[offsets[0] : offsets[-1]].tolist()
            lists = [flat[first - offsets[0] : last - offsets[0]] for first, last in pairwise(offsets)]
            yield (("," if start else "") + _compact(lists)[1:-1]).encode()
        yield b"]"


def _compact(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))


def read(path: str | PathLike[str], dataset: Dataset) -> Clients:
    """Read a split; the file must be unchanged and belong to these data."""
    file = repr(str(path))
    content = _read_json(path)
    for key, kind in (("fingerprint", str), ("split", str), ("seed", int), ("hash", str), ("names", list)):
        if not isinstance(content.get(key), kind):
            raise InputError(f"{file} is not a complete split file: {key!r} is missing or wrong; save it again")
    if content["fingerprint"] != dataset.fingerprint:
        raise InputError(
            f"{file} was made for the data {content.get('data')!r} with fingerprint {content['fingerprint']}, "
            f"but {dataset.name!r} has {dataset.fingerprint}; load the data it was made for"
        )
    names, groups = content["names"], content.get("groups")
    train, validation, test = (_to_index(file, key, content.get(key), len(names), len(dataset)) for key in PARTS)
    if not all(isinstance(one, str) for one in names) or len(set(names)) != len(names):
        raise InputError(f"{file} must name each client once, as text; save it again")
    if groups is not None and (not _is_integers(groups) or len(groups) != len(names)):
        raise InputError(f"{file} must have one group for each client or null; save it again")
    transforms = _to_transforms(file, content.get("transforms"), len(names), dataset.classes)
    parts = (train, validation, test)
    found = split_hash(dataset.fingerprint, names, parts, groups, transforms)
    if content["hash"] != found:
        raise InputError(
            f"{file} was changed after it was saved: its hash is {content['hash']}, but its content has {found}; "
            "use the original file or split again"
        )
    groups = None if groups is None else tuple(groups)
    return build_clients(dataset, tuple(names), parts, content["split"], content["seed"], groups, transforms)


def describe(path: str | PathLike[str]) -> tuple[str, str]:
    """The names of the data and of the split in a file."""
    content = _read_json(path)
    data, split = content.get("data"), content.get("split")
    if not isinstance(data, str) or not isinstance(split, str):
        raise InputError(f"{str(path)!r} is not a complete split file: 'data' or 'split' is missing; save it again")
    return data, split


def _read_json(path: str | PathLike[str]) -> dict[str, Any]:
    refuse_pipe(Path(path))
    try:
        content = json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"cannot read the split {str(path)!r}: {error.strerror or error}") from None
    except (ValueError, RecursionError):
        content = None
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise InputError(f"{str(path)!r} is not a split file; expected JSON as written by save_split")
    if content.get("version") not in (1, VERSION):
        raise InputError(
            f"{str(path)!r} must be a split file of version 1 or {VERSION}, got {content.get('version')!r}; split again"
        )
    return content


def _to_index(file: str, key: str, lists: Any, clients: int, examples: int) -> ClientIndex:
    if (
        not isinstance(lists, list)
        or len(lists) != clients
        or not all(isinstance(one, list) for one in lists)
        or not _is_integers(flat := list(chain.from_iterable(lists)))
        or (flat and not 0 <= min(flat) <= max(flat) < examples)
    ):
        raise InputError(
            f"{file} must list examples 0 to {examples - 1} for each of {clients} clients under {key!r}; "
            "use the original file or split again"
        )
    return client_index(np.array(flat, dtype=np.int64), np.array([len(one) for one in lists], dtype=np.int64))


def _to_transforms(file: str, content: Any, clients: int, classes: int | None) -> tuple[Transform, ...] | None:
    if content is None:
        return None
    all_labels = list(range(classes or 0))

    def fits(one: Any) -> bool:
        if not isinstance(one, dict) or set(one) != {"turns", "labels"}:
            return False
        turns, labels = one["turns"], one["labels"]
        valid_labels = labels is None or (_is_integers(labels) and sorted(labels) == all_labels)
        return type(turns) is int and 0 <= turns < 4 and valid_labels

    if not isinstance(content, list) or len(content) != clients or not all(map(fits, content)):
        raise InputError(
            f"{file} must have null or turns (0 to 3) and labels (all of them, in some order, or null) for "
            f"each of {clients} clients under 'transforms'; use the original file or split again"
        )
    return tuple(Transform(one["turns"], None if one["labels"] is None else tuple(one["labels"])) for one in content)


def _is_integers(values: Any) -> bool:
    return isinstance(values, list) and all(type(one) is int for one in values)
