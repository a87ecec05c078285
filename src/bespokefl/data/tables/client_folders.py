"""A folder per client: `clients/NAME/*.csv` (or .tsv, .parquet, .npz), where NAME is the client's name.

The files of a client are put together. Where they are called train, validation and test, somebody has already cut the
client's data, and `clients` keeps it so.
"""

import logging
from collections.abc import Collection
from dataclasses import dataclass
from os import PathLike
from pathlib import Path

import numpy as np
import torch

from bespokefl.core.client_index import ClientIndex
from bespokefl.core.errors import InputError, listing
from bespokefl.data.clients import Clients, assemble
from bespokefl.data.dataset import PARTS, Dataset, Fractions
from bespokefl.data.tables import columns as files
from bespokefl.data.tables import table as tables
from bespokefl.data.tables.features import Table, is_missing

log = logging.getLogger("bespokefl")


@dataclass(frozen=True)
class Piece:
    """One file."""

    path: Path
    client: str
    part: str  # "": not cut yet
    columns: files.Columns

    @property
    def rows(self) -> int:
        return len(next(iter(self.columns.values())))


def is_folder(path: str | PathLike[str]) -> bool:
    """Whether these are folders with tables in them, one for each client."""
    top = Path(path)
    return top.is_dir() and any(_files(one) for one in top.iterdir() if one.is_dir())


def load(
    path: str | PathLike[str],
    *,
    label: str | None = None,
    missing: str = "refuse",
    drop: Collection[str] = (),
    task: str | None = None,
    text: str | None = None,
) -> Table:
    """All clients' data; the options are those of `tables.from_columns`. Its column "part" says how they were cut."""
    top = Path(path)
    if not top.is_dir():
        raise InputError(f"expected a folder {str(path)!r} with a folder for each client, got none")
    places = {one: _files(one) for one in sorted(top.iterdir()) if one.is_dir() and not one.name.startswith(".")}
    empty = [one.name for one, inside in places.items() if not inside]
    if not places or empty:
        found = f"nothing in {listing(empty)}" if empty else "no folder in it"
        raise InputError(f"{str(path)!r} must hold a folder of {', '.join(files.KINDS)} for each client, got {found}")
    as_text, labels = tables.as_written(label, tables.CLIENT, text)
    drop = (drop,) if isinstance(drop, str) else tuple(drop)
    doubts: list[str] = []
    pieces = [
        _piece(file, one.name, as_text, labels, drop, doubts) for one, inside in places.items() for file in inside
    ]
    _check_parts(pieces)
    mixed = _mixed(pieces)
    if mixed:
        doubts.clear()
        pieces = [_piece(piece.path, piece.client, as_text | mixed, labels, drop, doubts) for piece in pieces]
    if doubts:
        log.warning("%s%s", doubts[0], f" (so in {len(doubts)} files)" if len(doubts) > 1 else "")
    starts = np.cumsum([0, *(piece.rows for piece in pieces)])

    def place(row: int) -> str:
        at = int(np.searchsorted(starts, row, side="right")) - 1
        return f"row {row - starts[at] + 1} of {str(pieces[at].path)!r}"

    sizes = [piece.rows for piece in pieces]
    whole = {name: _joined(pieces, name) for name in pieces[0].columns}
    owner = np.empty(sum(sizes), dtype=object)
    owner[:] = np.repeat(np.array([piece.client for piece in pieces], dtype=object), sizes)
    name = tables.CLIENT
    if name in whole:
        raise InputError(
            f"the folders of {str(path)!r} name the clients, but its files have a column {name!r} as well; drop it"
        )
    part = np.repeat([piece.part for piece in pieces], sizes)
    return tables.build(
        {**whole, name: owner},
        label=label,
        client=name,
        missing=missing,
        task=task,
        text=text,
        name=top.resolve().name,
        place=place,
        part=part if part[0] else None,
    )


def clients(table: Dataset) -> Clients:
    """The clients of data that are cut already, by their column "part"; without validation that part is empty."""
    if table.client is None or "part" not in table.columns:
        raise InputError("these data must name each row's client and part (train, validation or test), but do not")
    names, owner = np.unique(table.client.astype(np.str_), return_inverse=True)

    def cut(part: str) -> ClientIndex:
        chosen = np.flatnonzero(table.columns["part"] == part)
        ordered = chosen[np.argsort(owner[chosen], kind="stable")]
        sizes = np.bincount(owner[chosen], minlength=len(names))
        offsets = np.concatenate([[0], sizes.cumsum()]).astype(np.int64)
        return ClientIndex(torch.from_numpy(ordered), torch.from_numpy(offsets))

    train, validation, test = (cut(part) for part in PARTS)
    return assemble(table, tuple(names.tolist()), (train, validation, test), "given", 0)


def divided(
    table: Dataset,
    split: str | None,
    otherwise: str,
    *,
    number: int | None,
    seed: int,
    fractions: Fractions,
) -> Clients:
    """Data as whoever made the files cut them, unless another split is named; else a client for each id, and where
    there are no ids the split `otherwise`."""
    if split in (None, "given") and "part" in table.columns:
        return clients(table)
    chosen = split or ("by_column" if table.client is not None else otherwise)
    return table.split(chosen, clients=number, seed=seed, fractions=fractions)


def _files(folder: Path) -> list[Path]:
    return sorted(one for one in folder.iterdir() if one.suffix.lower() in files.KINDS and one.is_file())


def _piece(
    path: Path,
    client: str,
    as_text: Collection[str],
    labels: Collection[str],
    drop: Collection[str],
    doubts: list[str],
) -> Piece:
    part = path.stem if path.stem in PARTS else ""
    found = files.read(path, as_text=as_text, labels=labels, drop=drop, doubts=doubts)
    sizes = {name: len(values) for name, values in found.items()}
    if len(set(sizes.values())) > 1:
        raise InputError(f"the columns of {str(path)!r} must have one value per row each, got {sizes}")
    return Piece(path, client, part, found)


def _check_parts(pieces: list[Piece]) -> None:
    cut = [piece for piece in pieces if piece.part]
    other = next((piece for piece in pieces if not piece.part), None)
    if cut and other is not None:
        raise InputError(
            f"either all files are called {', '.join(PARTS)} or none, got {str(cut[0].path)!r} and {str(other.path)!r}"
        )
    twice = {(piece.client, piece.part) for piece in cut}
    if len(twice) < len(cut):
        raise InputError(f"a client must have one file for each part, got more in {listing([p.client for p in cut])}")
    first = pieces[0]
    for piece in pieces:
        different = sorted(piece.columns.keys() ^ first.columns.keys())
        if different:
            has = piece if different[0] in piece.columns else first
            lacks = first if has is piece else piece
            raise InputError(
                f"all clients must have the same columns, but {different[0]!r} is in {str(has.path)!r} and not in "
                f"{str(lacks.path)!r}"
            )
        for name, values in piece.columns.items():
            expected = first.columns[name].shape[1:]
            if values.shape[1:] != expected:
                raise InputError(
                    f"{name!r} in {str(piece.path)!r} must have examples of shape {expected}, as in "
                    f"{str(first.path)!r}, got {values.shape[1:]}"
                )


def _mixed(pieces: list[Piece]) -> set[str]:
    """Columns that are text in one file and numbers in another, and can be read as text in all."""
    kinds = {name: {piece.columns[name].dtype.kind == "O" for piece in pieces} for name in pieces[0].columns}
    return {name for name, found in kinds.items() if len(found) > 1}


def _joined(pieces: list[Piece], name: str) -> np.ndarray:
    parts = [piece.columns[name] for piece in pieces]
    if len({values.dtype.kind == "O" for values in parts}) > 1:
        strange = next(piece for piece in pieces if piece.columns[name].dtype.kind != "O")
        if not is_missing(strange.columns[name]).all():
            raise InputError(
                f"column {name!r} must be of one kind, but is text in some files and numbers in {str(strange.path)!r}"
            )
        nothing = [np.full(len(values), None, dtype=object) for values in parts]
        parts = [values if values.dtype.kind == "O" else none for values, none in zip(parts, nothing, strict=True)]
    bytes_ = {values.dtype == np.uint8 for values in parts}
    if len(bytes_) > 1:
        raise InputError(f"{name!r} must be of one kind, but is bytes in some files and other numbers in others")
    return np.concatenate(parts)
