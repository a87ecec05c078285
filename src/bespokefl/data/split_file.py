"""A split as a JSON file, so that other programs, and this one tomorrow, use exactly the same clients.

format        "bespoke split"
version       2; files of version 1 have no transforms, and are read, too
data          name of the data
fingerprint   sha256 of the data: the file fits no other
split, seed   how the split was made, for people: "dirichlet(alpha=0.4)", 0
names         the clients
train, validation, test   for each client the list of its examples, counted from 0 in the data as they were. An example
              is in one list of train or validation at most; test lists may share examples (an official test set)
transforms    null, or for each client what is done to all its examples, its test examples included:
              turns     quarter turns of the picture, counter-clockwise: numpy.rot90(x, turns, axes=(-2, -1))
              labels    null, or the list by which the label c becomes labels[c]
groups        each client's true group, or null
hash          sha256 of fingerprint, names, parts, groups and transforms (see `split_hash`)
"""

import json
from itertools import chain, pairwise
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from bespokefl.core.client_index import ClientIndex
from bespokefl.core.errors import InputError
from bespokefl.core.files import refuse_pipe, write_text
from bespokefl.data.clients import Clients, assemble, split_hash
from bespokefl.data.dataset import PARTS
from bespokefl.data.splits import Transform

if TYPE_CHECKING:
    from bespokefl.data.dataset import Dataset

FORMAT = "bespoke split"
VERSION = 2


def write(path: str | PathLike[str], clients: Clients) -> None:
    """Write the clients' split; the file is there whole or not at all."""
    content = {
        "format": FORMAT,
        "version": VERSION,
        "data": clients.data_name,
        "fingerprint": clients.fingerprint,
        "split": clients.split_name,
        "seed": clients.seed,
        "hash": clients.hash,
        "names": list(clients.names),
        "groups": None if clients.groups is None else list(clients.groups),
        "transforms": None if clients.transforms is None else [one.written() for one in clients.transforms],
        **{name: _lists(part) for name, part in zip(PARTS, clients.original_parts, strict=True)},
    }
    # one key a line: a person can look at the head of the file
    lines = (f"{json.dumps(key)}: {json.dumps(value, separators=(',', ':'))}" for key, value in content.items())
    text = "{\n" + ",\n".join(lines) + "\n}\n"
    write_text(Path(path), text)


def read(path: str | PathLike[str], dataset: "Dataset") -> Clients:
    """The clients of the split in the file, if it is unchanged and belongs to these data."""
    content = _json(path)
    for key, kind in (("fingerprint", str), ("split", str), ("seed", int), ("hash", str), ("names", list)):
        if not isinstance(content.get(key), kind):
            raise InputError(f"{str(path)!r} is not a whole split file: {key!r} is missing or wrong; save it again")
    if content["fingerprint"] != dataset.fingerprint:
        raise InputError(
            f"{str(path)!r} was made for the data {content.get('data')!r} with fingerprint {content['fingerprint']}, "
            f"but {dataset.name!r} has {dataset.fingerprint}; load the data it was made for"
        )
    names, groups = content["names"], content.get("groups")
    first, second, third = (_part(path, key, content.get(key), len(names), len(dataset)) for key in PARTS)
    if not all(isinstance(one, str) for one in names) or len(set(names)) != len(names):
        raise InputError(f"{str(path)!r} must name each client once, in text; save it again")
    if groups is not None and (not _whole_numbers(groups) or len(groups) != len(names)):
        raise InputError(f"{str(path)!r} must have one group for each client or null; save it again")
    transforms = _transforms(path, content.get("transforms"), len(names), dataset.classes)
    found = split_hash(dataset.fingerprint, names, (first, second, third), groups, transforms)
    if content["hash"] != found:
        raise InputError(
            f"{str(path)!r} was changed after it was saved: it says hash {content['hash']}, but its content has "
            f"{found}; use the original file or split anew"
        )
    return assemble(
        dataset,
        tuple(names),
        (first, second, third),
        content["split"],
        content["seed"],
        None if groups is None else tuple(groups),
        transforms,
    )


def about(path: str | PathLike[str]) -> tuple[str, str]:
    """The data a split file was made for, and how the split was made."""
    content = _json(path)
    data, split = content.get("data"), content.get("split")
    if not isinstance(data, str) or not isinstance(split, str):
        raise InputError(f"{str(path)!r} is not a whole split file: 'data' or 'split' is missing; save it again")
    return data, split


def _json(path: str | PathLike[str]) -> dict[str, Any]:
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
            f"{str(path)!r} must be a split file of version 1 or {VERSION}, got {content.get('version')!r}; split anew"
        )
    return content


def _part(path: str | PathLike[str], key: str, lists: Any, clients: int, examples: int) -> ClientIndex:
    if (
        not isinstance(lists, list)
        or len(lists) != clients
        or not all(isinstance(one, list) for one in lists)
        or not _whole_numbers(flat := list(chain.from_iterable(lists)))
        or (flat and not 0 <= min(flat) <= max(flat) < examples)
    ):
        raise InputError(
            f"{str(path)!r} must list examples 0 to {examples - 1} for each of {clients} clients under {key!r}; "
            "use the original file or split anew"
        )
    sizes = np.array([len(one) for one in lists], dtype=np.int64)
    offsets = np.concatenate([[0], sizes.cumsum()]).astype(np.int64)
    return ClientIndex(torch.tensor(flat, dtype=torch.int64), torch.from_numpy(offsets))


def _transforms(
    path: str | PathLike[str], written: Any, clients: int, classes: int | None
) -> tuple[Transform, ...] | None:
    if written is None:
        return None
    every = list(range(classes or 0))

    def fits(one: Any) -> bool:
        if not isinstance(one, dict) or set(one) != {"turns", "labels"}:
            return False
        turns, labels = one["turns"], one["labels"]
        return (
            type(turns) is int
            and 0 <= turns < 4
            and (labels is None or (_whole_numbers(labels) and sorted(labels) == every))
        )

    if not isinstance(written, list) or len(written) != clients or not all(map(fits, written)):
        raise InputError(
            f"{str(path)!r} must have null or turns (0 to 3) and labels (all of them, in some order, or null) for "
            f"each of {clients} clients under 'transforms'; use the original file or split anew"
        )
    return tuple(Transform(one["turns"], None if one["labels"] is None else tuple(one["labels"])) for one in written)


def _lists(part: ClientIndex) -> list[list[int]]:
    flat, offsets = part.indices.tolist(), part.offsets.tolist()
    return [flat[start:end] for start, end in pairwise(offsets)]


def _whole_numbers(values: Any) -> bool:
    return isinstance(values, list) and all(type(one) is int for one in values)
