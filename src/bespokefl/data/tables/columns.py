"""Reads the columns of a table from a file: .csv (or .tsv), .parquet, or .npz with one array per column.

A column comes as numbers (NaN: missing), whole numbers, truth values, or texts (an object array; None: missing).
"""

import csv
import importlib
import logging
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from bespokefl.core.errors import InputError, in_brief, listing, said
from bespokefl.data.dataset import as_array
from bespokefl.data.tables.decimal_comma import Commas
from bespokefl.data.tables.features import MISSING

log = logging.getLogger("bespokefl")

Columns = dict[str, np.ndarray]

KINDS = (".csv", ".tsv", ".parquet", ".npz")
DELIMITERS = ",;\t"
LONGEST = 200  # characters of a column's name: a quote that nobody closed makes one of many lines
BLOCK = 20_000  # lines that are in memory as text at a time


def read(
    path: str | PathLike[str],
    *,
    as_text: Collection[str] = (),
    labels: Collection[str] = (),
    drop: Collection[str] = (),
    doubts: list[str] | None = None,
) -> Columns:
    """The columns of a file, without those to drop.

    as_text  columns that are taken as they are written, where a file is text
    labels   those too, but decimal commas become points
    doubts   takes a sentence where commas may be decimal or of thousands; None: it is a warning
    """
    file, drop = Path(path), dict.fromkeys(drop)  # which is as quick with a hundred thousand columns as with one
    if file.suffix.lower() not in KINDS:
        raise InputError(f"a table must be a file that ends in {', '.join(KINDS)}, got {str(path)!r}")
    if not file.is_file():
        what = "a folder" if file.is_dir() else "none of that name"
        raise InputError(f"expected a file {str(path)!r}, got {what}; check the path")
    if file.suffix.lower() == ".npz":
        found = _npz(file, drop)
    elif file.suffix.lower() == ".parquet":
        found = _parquet(file, drop)
    else:
        found, doubt = _csv(file, as_text, labels, drop)
        if doubt is not None and doubts is not None:
            doubts.append(f"{path}: {doubt}")
        elif doubt is not None:
            log.warning("%s: %s", path, doubt)
    if not any(len(values) for values in found.values()):
        raise InputError(f"{str(path)!r} must hold at least one row and a column that is not dropped, got none")
    return found


def column(values: Any, name: str) -> np.ndarray:
    """Anything like a column: numbers, truth values, or texts with None where there is none."""
    if hasattr(values, "to_numpy") and not isinstance(values, np.ndarray):  # pandas, pyarrow
        values = values.to_numpy()
    if not isinstance(values, np.ndarray) and not hasattr(values, "layout"):
        values = list(values)
        if any(one is None or isinstance(one, str) for one in values):
            values = np.fromiter(values, dtype=object, count=len(values))
    if isinstance(values, np.ndarray) and values.dtype.kind in "OTUS" and values.ndim == 1:
        plain = [None if _nothing(one) else one for one in values.tolist()]
        if all(isinstance(one, str | bytes | None) for one in plain):
            return _texts([one.decode() if isinstance(one, bytes) else one for one in plain])
        if all(isinstance(one, bool | None) for one in plain):
            return _texts([None if one is None else str(one) for one in plain])
        if all(isinstance(one, int | float | np.number | None) for one in plain):
            return np.array([np.nan if one is None else one for one in plain])
        if any(hasattr(one, "isoformat") for one in plain):
            raise dates(name)
    if isinstance(values, np.ndarray) and values.dtype.kind in "Mm":
        raise dates(name)
    found = as_array(values, f"column {name!r}")
    if found.ndim == 0:
        raise InputError(f"column {name!r} must hold one value per row, got a single value")
    return _texts(found.tolist()) if found.dtype.kind == "U" and found.ndim == 1 else found


def dates(name: str) -> InputError:
    return InputError(
        f"column {name!r} holds dates or times, which are no features as they stand; turn them into numbers, such as "
        "days since a fixed day, or drop the column"
    )


def _nothing(one: Any) -> bool:
    return one is None or (isinstance(one, float) and one != one) or type(one).__name__ in ("NAType", "NaTType")


def _texts(values: Sequence[str | None]) -> np.ndarray:
    found = np.empty(len(values), dtype=object)
    known = {one: _cleaned(one) for one in set(values)}  # labels and categories repeat
    found[:] = [known[one] for one in values]
    return found


def _cleaned(one: str | None) -> str | None:
    stripped = "" if one is None else one.strip()
    return None if stripped.lower() in MISSING else stripped


def _known(names: Collection[str], known: Collection[str], file: Path) -> None:
    there = set(known)
    foreign = [name for name in names if name not in there]
    if foreign:
        raise InputError(f"{str(file)!r} has no column {foreign[0]!r} to drop; it has {listing(sorted(known), 10)}")


# -- csv


def _csv(
    file: Path, as_text: Collection[str], labels: Collection[str], drop: Collection[str]
) -> tuple[Columns, str | None]:
    """The columns, and what is doubtful."""
    written = {*as_text, *labels}
    try:
        table = _csv_pass(file, written, drop)
        mixed = table.mixed
        if mixed:  # their first lines looked like numbers and are needed as they were written
            table = _csv_pass(file, {*written, *mixed}, drop)
    except UnicodeDecodeError:
        raise InputError(f"{str(file)!r} must be text in utf-8, as its name says, got other bytes") from None
    except csv.Error as error:
        raise InputError(f"cannot read {str(file)!r} as a table of text ({error}); check its quotes") from None
    found = table.columns()
    if table.commas is None:
        return found, None
    for name in mixed:
        numbers = table.commas.numbers(found[name])
        found[name] = found[name] if numbers is None else numbers
    for name in found.keys() & {*labels}:
        pointed = table.commas.pointed(found[name])
        found[name] = found[name] if pointed is None else pointed
    return found, table.commas.doubt


def _csv_pass(file: Path, as_text: Collection[str], drop: Collection[str]) -> "_Cells":
    with file.open(newline="", encoding="utf-8-sig") as lines:
        first = lines.readline()
        if any(one < " " and one not in "\t\r\n" for one in first):
            raise InputError(f"{str(file)!r} must be a table of text, as its name says, got other bytes")
        delimiter = max(DELIMITERS, key=re.sub('"[^"]*"', "", first).count)
        lines.seek(0)
        header = [name.strip() for name in next(_rows(lines, delimiter), [])]
        _check_header(header, file)
        _known(drop, header, file)
        wanted = [at for at, name in enumerate(header) if name not in drop]
        table = _Cells(file, header, wanted, as_text, None if delimiter == "," else Commas())
        while block := list(islice(lines, BLOCK)):
            if any('"' in line for line in block):  # a quoted cell may hold delimiters and line ends
                reader = _rows(chain(block, lines), delimiter)
                while rows := list(islice(reader, BLOCK)):
                    table.take(rows)
            elif not table.take_numbers(block, delimiter):
                table.take(list(_rows(block, delimiter)))
    return table


def _rows(lines: Iterable[str], delimiter: str) -> Iterator[list[str]]:
    return csv.reader(lines, delimiter=delimiter, skipinitialspace=True, strict=True)


class _Cells:
    """The cells of a file, column by column: numbers while they are numbers, or texts."""

    def __init__(
        self, file: Path, header: Sequence[str], wanted: Sequence[int], as_text: Collection[str], commas: Commas | None
    ) -> None:
        """commas: None where they separate the cells"""
        self.file, self.header, self.wanted, self.commas = file, header, wanted, commas
        self.texts: dict[int, list[str | None]] = {at: [] for at in wanted if header[at] in as_text}
        self.numbers: dict[int, list[np.ndarray]] = {at: [] for at in wanted if header[at] not in as_text}
        self.decimal: set[int] = set()  # which of the numbers have commas
        self.rows = 0

    def take(self, rows: Sequence[list[str]]) -> None:
        full = [row for row in rows if row]  # an empty line is no row
        for number, row in enumerate(full, self.rows + 1):
            if len(row) != len(self.header):
                raise InputError(
                    f"row {number} of {str(self.file)!r} must have {len(self.header)} cells, as the header has, got "
                    f"{len(row)}; check its delimiters and quotes"
                )
        self.rows += len(full)
        for at, cells in enumerate(zip(*full, strict=True)):
            if at in self.texts:
                self.texts[at].extend(cells)
            elif at in self.numbers:
                values = self._numbers(at, cells)
                if values is None:
                    del self.numbers[at]
                else:
                    self.numbers[at].append(values)

    def take_numbers(self, lines: Sequence[str], delimiter: str) -> bool:
        """The same for lines without quotes or gaps, in a fifth of the time; False if they are not like that."""
        width = len(self.header) - 1
        if not self.numbers or self.decimal or any(line.count(delimiter) != width for line in lines):
            return False
        places = list(self.numbers)
        try:
            values = np.loadtxt(lines, delimiter=delimiter, usecols=places, comments=None, ndmin=2)
        except ValueError:
            return False
        if len(values) != len(lines):
            return False
        for place, column in zip(places, values.T, strict=True):
            self.numbers[place].append(column.copy())
        if self.texts:
            cells = [line.rstrip("\r\n").split(delimiter) for line in lines]
            for place, texts in self.texts.items():
                texts.extend(row[place] for row in cells)
        self.rows += len(lines)
        return True

    @property
    def mixed(self) -> set[str]:
        """Columns that began as numbers and are not, or not written as such throughout."""
        return {self.header[at] for at in self.wanted if at not in self.texts and at not in self.numbers}

    def columns(self) -> Columns:
        found: dict[int, np.ndarray] = {at: _texts(cells) for at, cells in self.texts.items()}
        found |= {at: np.concatenate([*blocks, np.zeros(0)]) for at, blocks in self.numbers.items()}
        return {self.header[at]: found[at] for at in self.wanted if at in found}

    def _numbers(self, at: int, cells: Sequence[str]) -> np.ndarray | None:
        values = None if at in self.decimal else _numbers(cells)
        if values is None and self.commas is not None and (at in self.decimal or not self.numbers[at]):
            values = self.commas.numbers(_texts(cells))
            (self.decimal.discard if values is None else self.decimal.add)(at)
        return values


def _numbers(cells: Sequence[str]) -> np.ndarray | None:
    """The cells as numbers, NaN where there is none; None where one is something else."""
    if any("_" in one for one in cells):  # Python reads 1_2 as 12
        return None
    try:
        return np.array([np.nan if one.strip().lower() in MISSING else float(one) for one in cells])
    except ValueError:
        return None


def _check_header(header: Sequence[str], file: Path) -> None:
    if not header:
        raise InputError(f"{str(file)!r} must begin with a line of column names, got an empty file")
    long = next((name for name in header if len(name) > LONGEST), None)
    if long is not None:
        raise InputError(
            f"the columns of {str(file)!r} must have names of at most {LONGEST} characters, got {len(long)} that begin "
            f"with {in_brief(long, 40)!r}; check its quotes"
        )
    twice = sorted(name for name, times in Counter(header).items() if times > 1)
    if twice:
        raise InputError(f"the columns of {str(file)!r} must have different names, got {twice[0]!r} twice")


# -- parquet and npz


def _parquet(file: Path, drop: Collection[str]) -> Columns:
    try:
        parquet = importlib.import_module("pyarrow.parquet")
    except ImportError:
        raise InputError(
            f'reading {str(file)!r} needs pyarrow, which is not installed; pip install "bespokefl[tables]"'
        ) from None
    try:
        table = parquet.read_table(file)
    except Exception as error:  # a damaged file raises anything
        raise InputError(f"cannot read {str(file)!r} as a parquet file ({said(error)})") from None
    _known(drop, table.column_names, file)
    found = {}
    for name in (one for one in table.column_names if one not in drop):
        values = table.column(name)
        kind = str(values.type)
        if kind.startswith(("timestamp", "date", "time", "duration")):
            raise dates(name)
        if kind.startswith(("list", "large_list", "struct", "map", "binary")):
            raise InputError(
                f"column {name!r} of {str(file)!r} must hold numbers or text, got {kind}; drop it, or save arrays as "
                ".npz"
            )
        plain = values.to_pylist() if kind.startswith(("dictionary", "decimal", "bool", "string", "large")) else values
        if kind.startswith("decimal"):
            plain = [None if one is None else float(one) for one in plain]
        found[name] = column(plain, name)
    return found


def _npz(file: Path, drop: Collection[str]) -> Columns:
    try:
        with np.load(file, allow_pickle=False) as arrays:
            names = arrays.files
            found: Mapping[str, np.ndarray] = {name: arrays[name] for name in names if name not in drop}
    except Exception as error:  # a damaged file raises anything: of zip, zlib, lzma, or of numpy's header
        raise InputError(f"cannot read {str(file)!r} as an .npz file ({said(error)}); save it with np.savez") from None
    _known(drop, names, file)
    return {name: column(values, name) for name, values in found.items()}
