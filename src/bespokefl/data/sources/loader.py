"""Finds data by name, or in a file or folder, and loads them."""

from collections.abc import Collection, Mapping
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from bespokefl.core.errors import InputError, unknown
from bespokefl.data.dataset import Dataset
from bespokefl.data.readers import cifar, idx, leaf, npz
from bespokefl.data.readers.files import Arrays
from bespokefl.data.sources import named, synthetic
from bespokefl.data.sources.catalogue import CATALOGUE


def names() -> tuple[str, ...]:
    """The data that can be loaded by name."""
    return tuple(sorted(CATALOGUE))


def load(
    source: str | PathLike[str],
    *,
    label: str | None = None,
    client: str | None = None,
    drop: Collection[str] = (),
    task: str | None = None,
    text: str | None = None,
    missing: str = "refuse",
) -> Dataset:
    """Data by name ("mnist"); from an .npz file with arrays x, y and, if each example has its client, client; from a
    folder with IDX files, CIFAR batches or LEAF's JSON files; or from tables: a .csv or .parquet file, or a folder of
    them for each client. The options are for tables: see `data.tables.load`."""
    given = {"label": label, "client": client, "drop": tuple(drop), "task": task, "text": text, "missing": missing}
    options = {name: value for name, value in given.items() if value not in (None, (), "refuse")}
    found = _from_table(source, options)
    if found is not None:
        return found
    if options and set(options) != {"missing"}:
        raise InputError(f"{next(iter(options))} is for tables, but {str(source)!r} is none; leave it out")
    if isinstance(source, str) and source in CATALOGUE:
        return named.load(CATALOGUE[source])
    if isinstance(source, str) and synthetic.is_drawn(source):
        return synthetic.draw(source)
    if not isinstance(source, str | PathLike):
        raise InputError(f"data must be a name or a path, got {source!r}; arrays go into Clients.from_arrays")
    path = Path(source)
    if path.is_dir() and path.suffix != ".npz":
        return _from_folder(path)
    if path.suffix == ".npz" or path.is_file():
        return _from_npz(path)
    raise unknown("data", str(source), [*names(), "a path to a file or folder"], see="bespoke data list")


def _from_table(source: str | PathLike[str], options: Mapping[str, Any]) -> Dataset | None:
    """Data from tables, if that is what they are."""
    if not isinstance(source, str | PathLike) or str(source) in CATALOGUE:
        return None
    path = Path(source)
    asked = bool(options.keys() - {"missing"})  # an .npz file of x and y is no table, one with named columns is
    if path.suffix in (".csv", ".tsv", ".parquet") or (path.suffix == ".npz" and asked):
        from bespokefl.data.tables import table as tables

        return tables.load(path, **options)
    if path.is_dir():
        from bespokefl.data.tables import client_folders

        if client_folders.is_folder(path):
            if "client" in options:
                raise InputError("the folders name the clients; leave the column of clients out")
            return client_folders.load(path, **options)
    return None


def _from_npz(path: Path) -> Dataset:
    arrays = npz.read(path)
    missing = {"x", "y"} - arrays.keys()
    if missing:
        raise InputError(
            f"{str(path)!r} must have arrays x and y, but has no {' and no '.join(sorted(missing))}; "
            "save it with np.savez(path, x=..., y=...)"
        )
    columns = {key: one for key, one in arrays.items() if key not in ("x", "y", "client") and one.ndim == 1}
    beside = {key: one for key, one in columns.items() if len(one) == len(arrays["y"])}
    return Dataset.from_arrays(arrays["x"], arrays["y"], arrays.get("client"), name=path.stem, columns=beside)


def _from_folder(path: Path) -> Dataset:
    found: Arrays | None = idx.pool(path) or cifar.pool(path) or leaf.pool(path)
    if found is not None:
        columns = {key: array for key, array in found.items() if key not in ("x", "y", "client")}
        y = found["y"].astype(np.int64)
        return Dataset.from_arrays(found["x"], y, found.get("client"), name=path.resolve().name, columns=columns)
    raise InputError(
        f"{str(path)!r} must hold IDX files, CIFAR batches, LEAF's JSON files, or a folder of tables for each client; "
        "found nothing of the kind"
    )
