"""Loads data by name, or from a file or directory."""

from collections.abc import Collection, Mapping
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from bespokefl.core.errors import InputError, spell, unknown
from bespokefl.data.dataset import Dataset
from bespokefl.data.readers import cifar, idx, leaf, npz
from bespokefl.data.sources import fetching, synthetic
from bespokefl.data.sources.catalogue import CATALOGUE
from bespokefl.data.tables import client_directories
from bespokefl.data.tables import table as tables


def names() -> tuple[str, ...]:
    """The data sets that can be loaded by name."""
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
    missing_values: Collection[str] = (),
    as_number: Collection[str] = (),
    dates: bool = False,
) -> Dataset:
    """Load a data set.

    Parameters
    ----------
    source : str or path; one of
        - a name such as "mnist" (see "bespoke data list") or generated data such as "gaussian(between=1.0)",
        - an .npz file with arrays x, y and, optionally, client,
        - a directory with IDX files, CIFAR batches or LEAF's JSON files,
        - a table: a .csv, .tsv or .parquet file, or an .npz file of columns if `label` or another option is given,
        - a directory with a subdirectory of tables for each client.
    label, client, drop, task, text, missing, missing_values, as_number, dates : options of tables; see
        `bespokefl.data.tables.from_columns`

    Examples
    --------
    >>> import bespokefl as bf
    >>> bf.load("digits")
    Dataset(digits: 1797 examples of shape (1, 8, 8), 10 classes)
    """
    given = {
        "label": label,
        "client": client,
        "drop": tables.as_names(drop),
        "task": task,
        "text": text,
        "missing": missing,
        "missing_values": tables.as_names(missing_values),
        "as_number": tables.as_names(as_number),
        "dates": dates,
    }
    options = {name: value for name, value in given.items() if value not in (None, (), "refuse", False)}
    found = _load_table(source, options)
    if found is not None:
        return found
    if options and set(options) != {"missing"}:
        raise InputError(
            f"{spell(next(iter(options)))} is for tables, but {str(source)!r} is not a table; leave it out"
        )
    if isinstance(source, str) and source in CATALOGUE:
        return fetching.load(CATALOGUE[source])
    if isinstance(source, str) and synthetic.is_synthetic(source):
        return synthetic.generate(source)
    if not isinstance(source, str | PathLike):
        raise InputError(f"data must be a name or a path, got {source!r}; use Clients.from_arrays for arrays")
    path = Path(source)
    if path.is_dir() and path.suffix != ".npz":
        return _load_directory(path)
    if path.suffix == ".npz" or path.is_file():
        return _load_npz(path)
    raise unknown("data", str(source), [*names(), "a path to a file or directory"], see="bespoke data list")


def _load_table(source: str | PathLike[str], options: Mapping[str, Any]) -> Dataset | None:
    """The data if the source is a table or a directory of them, else None."""
    if not isinstance(source, str | PathLike) or str(source) in CATALOGUE:
        return None
    path = Path(source)
    is_npz_table = path.suffix == ".npz" and bool(options.keys() - {"missing"})
    if path.suffix in (".csv", ".tsv", ".parquet") or is_npz_table:
        return tables.load(path, **options)
    if client_directories.has_tables(path):
        if "client" in options:
            raise InputError(f"the directories name the clients; leave {spell('client')} out")
        return client_directories.load(path, **options)
    return None


def _load_npz(path: Path) -> Dataset:
    arrays = npz.read(path)
    missing = {"x", "y"} - arrays.keys()
    if missing:
        raise InputError(
            f"{str(path)!r} must have arrays x and y, but has no {' and no '.join(sorted(missing))}; "
            "save it with np.savez(path, x=..., y=...)"
        )
    per_example = arrays["y"].shape[:1]
    columns = {key: one for key, one in arrays.items() if key not in ("x", "y", "client") and one.shape == per_example}
    return Dataset.from_arrays(arrays["x"], arrays["y"], arrays.get("client"), name=path.stem, columns=columns)


def _load_directory(path: Path) -> Dataset:
    found = idx.read_directory(path) or cifar.read_directory(path) or leaf.read_directory(path)
    if found is None:
        raise InputError(
            f"{str(path)!r} must hold IDX files, CIFAR batches, LEAF's JSON files, or a directory of tables for each "
            "client; found none of these"
        )
    columns = {key: array for key, array in found.items() if key not in ("x", "y", "client")}
    y = found["y"].astype(np.int64)
    return Dataset.from_arrays(found["x"], y, found.get("client"), name=path.resolve().name, columns=columns)
