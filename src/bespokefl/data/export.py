"""Writes the clients' examples in the directory layouts of other frameworks.

pflib   What PFLlib's generators write and its `read_client_data` reads (0.npz, 1.npz, … under train/ and test/, and
        config.json); copy the directory to PFLlib's dataset/NAME. PFLlib has no validation data: they are in
        validation/, which it does not read, so that it trains on the same examples as Bespoke. Each .npz holds one
        Python dict, {"x": float32, "y": int64}, and is therefore, by PFLlib's design, a pickle: the only one that
        Bespoke writes, and it reads none.
flower  What Flower Datasets takes: train.jsonl, validation.jsonl and test.jsonl, for Hugging Face's
        `load_dataset("json", data_files={"train": "DIR/train.jsonl", ...})`. One line is one example: partition_id
        (the client's number), client (its name), index (the example in the original data), label and x, with the
        client's rotation and label permutation. Flower's NaturalIdPartitioner(partition_by="partition_id") gives the
        clients. A part without examples has no file.
Both write the names of the clients, in order, and the hash of the split to bespoke.json.
"""

import json
import os
import shutil
from collections.abc import Callable, Iterator
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from bespokefl.core.client_index import PARTS, ClientIndex
from bespokefl.core.errors import InputError, unknown
from bespokefl.core.system.files import sync
from bespokefl.data import split_statistics
from bespokefl.data.clients import Clients


def export(clients: Clients, to: str, out: str | PathLike[str]) -> Path:
    """Write the clients' examples into a new directory `out` in the layout "pflib" or "flower", atomically."""
    if to not in LAYOUTS:
        raise unknown("layout", to, LAYOUTS)
    target = Path(out)
    if target.exists():
        raise InputError(f"the directory to export to must be new, but {str(target)!r} exists; use another name")
    temporary = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        temporary.mkdir(parents=True)
        LAYOUTS[to](clients, temporary)
        known = {"data": clients.data_name, "split": clients.split_name, "seed": clients.seed, "hash": clients.hash}
        more = {"names": clients.names, "groups": clients.groups, "label_names": clients.label_names}
        (temporary / "bespoke.json").write_text(json.dumps({**known, **more}), encoding="utf-8")
        for written in temporary.rglob("*"):
            sync(written)
        temporary.rename(target)
    except OSError as error:
        raise InputError(f"cannot export to {str(target)!r}: {error.strerror or error}") from None
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return target


def _write_pflib(clients: Clients, directory: Path) -> None:
    if clients.classes is None:
        raise InputError(f"PFLlib has classification tasks only, got real-valued targets in {clients.data_name!r}")
    for name, part in zip(PARTS, clients.parts, strict=True):
        (directory / name).mkdir()
        for client in range(len(clients)):
            chosen = part.of(client)
            content = {"x": clients.x[chosen].numpy(), "y": clients.y[chosen].numpy()}
            np.savez_compressed(directory / name / f"{client}.npz", data=np.array(content, dtype=object))
    config = {  # the keys that PFLlib's generators write and compare, to see whether data exist already
        "num_clients": len(clients),
        "num_classes": clients.classes,
        "non_iid": not clients.split_name.startswith("iid"),
        "balance": int(clients.sizes.max()) - int(clients.sizes.min()) <= 1,
        "partition": clients.split_name,
        "Size of samples for labels in clients": [
            [[label, count] for label, count in enumerate(row) if count]
            for row in split_statistics.class_counts(clients).tolist()
        ],
        "alpha": None,
        "batch_size": 10,
    }
    (directory / "config.json").write_text(json.dumps(config), encoding="utf-8")


def _write_flower(clients: Clients, directory: Path) -> None:
    for name, part, original in zip(PARTS, clients.parts, clients.original_parts, strict=True):
        if len(original.indices):
            with (directory / f"{name}.jsonl").open("w", encoding="utf-8") as file:
                file.writelines(_json_lines(clients, part, original))


def _json_lines(clients: Clients, part: ClientIndex, original: ClientIndex) -> Iterator[str]:
    label = clients.y.tolist()
    for client, name in enumerate(clients.names):
        head = f'{{"partition_id": {client}, "client": {json.dumps(name)}, '
        for index, example in zip(original.of(client).tolist(), part.of(client).tolist(), strict=True):
            x = json.dumps(_to_short_floats(clients.x[example].numpy()), separators=(",", ":"))
            yield f'{head}"index": {index}, "label": {json.dumps(label[example])}, "x": {x}}}\n'


def _to_short_floats(values: np.ndarray) -> Any:
    """Nested lists; floats have the fewest digits that give the same float32."""
    if values.dtype.kind != "f":
        return values.tolist()
    return values.astype(np.str_).astype(np.float64).tolist()


LAYOUTS: dict[str, Callable[[Clients, Path], None]] = {"pflib": _write_pflib, "flower": _write_flower}
