"""A directory for each client: `clients/NAME/*.csv` (or .tsv, .parquet, .npz), where NAME is the client's name.

The files of a client are concatenated. If they are called train, validation and test, the client's data are divided
already, and `clients` keeps this division.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any, Unpack

import numpy as np

from bespokefl.core.client_index import PARTS, ClientIndex
from bespokefl.core.errors import InputError, listing
from bespokefl.data.clients import Clients, build_clients, client_index
from bespokefl.data.dataset import Dataset, Fractions
from bespokefl.data.tables import table as tables
from bespokefl.data.tables import table_files
from bespokefl.data.tables.features import Table, is_missing
from bespokefl.data.tables.reading import Reading, Remarks


@dataclass(frozen=True)
class ClientFile:
    """The columns of one file of a client."""

    path: Path
    columns: table_files.Columns

    @property
    def client(self) -> str:
        """The client's name: that of the file's directory."""
        return self.path.parent.name

    @property
    def part(self) -> str:
        """train, validation, test, or "" if the data are not divided."""
        return self.path.stem if self.path.stem in PARTS else ""


def has_tables(path: str | PathLike[str]) -> bool:
    """Whether the directory has subdirectories with tables."""
    top = Path(path)
    return top.is_dir() and any(_table_files(one) for one in top.iterdir() if one.is_dir())


def load(
    path: str | PathLike[str],
    *,
    drop: Collection[str] = (),
    missing_values: Collection[str] = (),
    as_number: Collection[str] = (),
    **options: Unpack[tables.Options],
) -> Table:
    """Load the data of all clients; the options are those of `tables.from_columns`.

    If the data are divided already, the column "part" of the result holds the part of each row.
    """
    top = Path(path)
    if not top.is_dir():
        raise InputError(f"expected a directory {str(path)!r} with a directory for each client, got none")
    found = {one: _table_files(one) for one in sorted(top.iterdir()) if one.is_dir() and not one.name.startswith(".")}
    empty = [one.name for one, inside in found.items() if not inside]
    if not found or empty:
        what = f"nothing in {listing(empty)}" if empty else "no directory in it"
        raise InputError(
            f"{str(path)!r} must hold a directory of {', '.join(table_files.SUFFIXES)} for each client, got {what}"
        )
    as_text, labels = tables.text_columns(options.get("label"), tables.CLIENT, options.get("text"))
    reading = Reading(tables.as_names(missing_values), tables.as_names(as_number))
    paths = [file for inside in found.values() for file in inside]
    files = _read_files(paths, as_text, labels, tables.as_names(drop), reading)
    if tables.CLIENT in files[0].columns:
        raise InputError(
            f"the directories of {str(path)!r} name the clients, but its files have a column {tables.CLIENT!r}, too; "
            "drop it"
        )
    sizes = [len(next(iter(file.columns.values()))) for file in files]
    starts = np.cumsum([0, *sizes])

    def locate(row: int) -> str:
        number = int(np.searchsorted(starts, row, side="right")) - 1
        return f"row {row - starts[number] + 1} of {str(files[number].path)!r}"

    columns = {name: _concatenate(files, name) for name in files[0].columns}
    columns[tables.CLIENT] = np.repeat(np.array([file.client for file in files], dtype=object), sizes)
    part = np.repeat([file.part for file in files], sizes)
    given = part if part[0] else None
    name = top.resolve().name
    return tables.build(columns, client=tables.CLIENT, name=name, reading=reading, locate=locate, part=given, **options)


def _read_files(
    paths: Sequence[Path], as_text: set[str], labels: set[str], drop: Collection[str], reading: Reading
) -> list[ClientFile]:
    """Read the files, with the same columns and kinds of columns in all of them."""

    def read(more: Collection[str] = ()) -> list[ClientFile]:
        how: dict[str, Any] = {"as_text": {*as_text, *more}, "labels": labels, "drop": drop, "reading": reading}
        return [ClientFile(path, table_files.read(path, **how, remarks=remarks)) for path in paths]

    remarks = Remarks()
    files = read()
    _check_parts(files)
    _check_columns(files)
    # text in one file and numbers in another: read them as text in all
    mixed = {name for name in files[0].columns if len({file.columns[name].dtype.kind == "O" for file in files}) > 1}
    if mixed:
        remarks = Remarks()
        files = read(mixed)
    remarks.log()
    return files


def clients(table: Dataset) -> Clients:
    """Create the clients of data that are divided already, as given by their column "part"; a part may be empty."""
    if table.client is None or "part" not in table.columns:
        raise InputError("the data must name the client and the part (train, validation or test) of each row")
    names, owner = np.unique(table.client.astype(np.str_), return_inverse=True)

    def rows_of(part: str) -> ClientIndex:
        chosen = np.flatnonzero(table.columns["part"] == part)
        by_client = chosen[np.argsort(owner[chosen], kind="stable")]
        return client_index(by_client, np.bincount(owner[chosen], minlength=len(names)))

    train, validation, test = (rows_of(part) for part in PARTS)
    return build_clients(table, tuple(names.tolist()), (train, validation, test), "given", 0)


def split_table(
    table: Dataset, split: str | None, otherwise: str, *, number: int | None, seed: int, fractions: Fractions
) -> Clients:
    """Split the data by `split`; without one, keep an existing division or use the client ids, else `otherwise`."""
    if split in (None, "given") and "part" in table.columns:
        return clients(table)
    chosen = split or ("by_column" if table.client is not None else otherwise)
    return table.split(chosen, clients=number, seed=seed, fractions=fractions)


def _table_files(directory: Path) -> list[Path]:
    return sorted(one for one in directory.iterdir() if one.suffix.lower() in table_files.SUFFIXES and one.is_file())


def _check_parts(files: list[ClientFile]) -> None:
    divided = [file for file in files if file.part]
    other = next((file for file in files if not file.part), None)
    if divided and other is not None:
        raise InputError(
            f"either all files are called {', '.join(PARTS)} or none, got {str(divided[0].path)!r} and "
            f"{str(other.path)!r}"
        )
    if len({(file.client, file.part) for file in divided}) < len(divided):
        names = listing([file.client for file in divided])
        raise InputError(f"a client must have one file for each part, got more in {names}")


def _check_columns(files: list[ClientFile]) -> None:
    """Check that all files have the same columns."""
    first = files[0]
    for file in files:
        sizes = {name: len(values) for name, values in file.columns.items()}
        if len(set(sizes.values())) > 1:
            raise InputError(f"the columns of {str(file.path)!r} must have one value per row each, got {sizes}")
        different = sorted(file.columns.keys() ^ first.columns.keys())
        if different:
            has, lacks = (file, first) if different[0] in file.columns else (first, file)
            raise InputError(
                f"all clients must have the same columns, but {different[0]!r} is in {str(has.path)!r} and not in "
                f"{str(lacks.path)!r}"
            )
        for name, values in file.columns.items():
            expected = first.columns[name].shape[1:]
            if values.shape[1:] != expected:
                raise InputError(
                    f"{name!r} in {str(file.path)!r} must have examples of shape {expected}, as in "
                    f"{str(first.path)!r}, got {values.shape[1:]}"
                )


def _concatenate(files: list[ClientFile], name: str) -> np.ndarray:
    arrays = [file.columns[name] for file in files]
    if len({values.dtype.kind == "O" for values in arrays}) > 1:
        numeric = next(file for file in files if file.columns[name].dtype.kind != "O")
        if not is_missing(numeric.columns[name]).all():
            raise InputError(
                f"column {name!r} must be of one kind, but is text in some files and numbers in {str(numeric.path)!r}"
            )
        arrays = [values if values.dtype.kind == "O" else np.full(len(values), None, dtype=object) for values in arrays]
    if len({values.dtype == np.uint8 for values in arrays}) > 1:
        raise InputError(f"{name!r} must be of one kind, but is bytes in some files and other numbers in others")
    return np.concatenate(arrays)
