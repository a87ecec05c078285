"""Reads the columns of a table from a file: .csv (or .tsv), .parquet, or .npz with one array per column.

A column is an array of numbers (NaN: missing), integers or booleans, or an object array of texts (None: missing).
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
from bespokefl.data.readers import npz
from bespokefl.data.tables.features import MISSING_TEXTS
from bespokefl.data.tables.reading import Reading, Remarks, read_numbers, read_texts

log = logging.getLogger("bespokefl")

Columns = dict[str, np.ndarray]

SUFFIXES = (".csv", ".tsv", ".parquet", ".npz")
DELIMITERS = ",;\t"
COMMA_NUMBER = re.compile(r"[+-]?([0-9]+(,[0-9]*)?|,[0-9]+)([eE][+-]?[0-9]+)?")
COMMA_THOUSANDS = re.compile(r"[+-]?[1-9][0-9]{0,2},[0-9]{3}")  # 1,234 is ambiguous
MAX_NAME = 200  # characters of a column's name; an unclosed quote makes a name of many lines
BLOCK = 20_000  # lines that are in memory as text at a time


def read(
    path: str | PathLike[str],
    *,
    as_text: Collection[str] = (),
    labels: Collection[str] = (),
    drop: Collection[str] = (),
    reading: Reading | None = None,
    remarks: Remarks | None = None,
) -> Columns:
    """The columns of a file, except those to drop.

    as_text  columns that are not converted to numbers, if the file is text
    labels   the same, but decimal commas become points
    reading  which values count as missing
    remarks  receives what users are told about the values; None: it is logged
    """
    reading, told = reading or Reading(), remarks or Remarks()
    file, drop = Path(path), dict.fromkeys(drop)  # a dict, because there may be a hundred thousand columns
    suffix = file.suffix.lower()
    if suffix not in SUFFIXES:
        raise InputError(f"a table must be a file that ends in {', '.join(SUFFIXES)}, got {str(path)!r}")
    if not file.is_file():
        found_instead = "a directory" if file.is_dir() else "none of that name"
        raise InputError(f"expected a file {str(path)!r}, got {found_instead}; check the path")
    if suffix == ".npz":
        arrays = npz.read(file, choose=lambda names: _kept(names, drop, file))
        found = read_columns(arrays, reading, told, {*as_text, *labels})
    elif suffix == ".parquet":
        found = read_columns(_read_parquet(file, drop), reading, told, {*as_text, *labels})
    else:
        found = _read_csv(file, as_text, labels, drop, reading, told)
    if remarks is None:
        told.log()
    if not any(len(values) for values in found.values()):
        raise InputError(f"{str(path)!r} must hold at least one row and a column that is not dropped, got none")
    return found


def read_columns(
    columns: Mapping[str, Any], reading: Reading, remarks: Remarks, as_text: Collection[str] = ()
) -> Columns:
    """Convert columns that have types: lists, arrays, columns of pandas or pyarrow."""
    found = {}
    for name, values in columns.items():
        column = to_column(values, name)
        if column.dtype.kind == "O":
            found[name] = read_texts(reading, name, column, _texts_to_numbers, remarks, keep=name in as_text)
        else:
            found[name] = read_numbers(reading, column)
    return found


def to_column(values: Any, name: str) -> np.ndarray:
    """Convert a list, an array or a column of pandas or pyarrow; dates become texts such as 2024-12-31."""
    if hasattr(values, "to_numpy") and not isinstance(values, np.ndarray):  # pandas, pyarrow
        values = values.to_numpy()
    if not isinstance(values, np.ndarray) and not hasattr(values, "layout"):
        values = list(values)
        if any(one is None or isinstance(one, str) or hasattr(one, "isoformat") for one in values):
            values = np.fromiter(values, dtype=object, count=len(values))
    if isinstance(values, np.ndarray) and values.dtype.kind in "OTUS" and values.ndim == 1:
        plain = [None if _is_missing(one) else one for one in values.tolist()]
        if all(isinstance(one, str | bytes | None) for one in plain):
            return _to_texts([one.decode() if isinstance(one, bytes) else one for one in plain])
        if all(isinstance(one, bool | None) for one in plain):
            return _to_texts([None if one is None else str(one) for one in plain])
        if all(isinstance(one, int | float | np.number | None) for one in plain):
            return np.array([np.nan if one is None else one for one in plain])
        if all(one is None or hasattr(one, "isoformat") for one in plain):
            return _to_texts([None if one is None else one.isoformat() for one in plain])
    if isinstance(values, np.ndarray) and values.dtype.kind == "M" and values.ndim == 1:
        return to_column(np.array([*values.astype("datetime64[us]").tolist(), None], dtype=object)[:-1], name)
    if isinstance(values, np.ndarray) and values.dtype.kind in "Mm":
        raise InputError(f"column {name!r} holds durations; convert them to numbers, such as seconds, or drop it")
    found = as_array(values, f"column {name!r}")
    if found.ndim == 0:
        raise InputError(f"column {name!r} must hold one value per row, got a single value")
    return _to_texts(found.tolist()) if found.dtype.kind == "U" and found.ndim == 1 else found


def _is_missing(one: Any) -> bool:
    return one is None or (isinstance(one, float) and one != one) or type(one).__name__ in ("NAType", "NaTType")


def _to_texts(values: Sequence[str | None]) -> np.ndarray:
    stripped = {one: "" if one is None else one.strip() for one in set(values)}  # labels and categories repeat
    cleaned = {one: None if text.lower() in MISSING_TEXTS else text for one, text in stripped.items()}
    return np.array([cleaned[one] for one in values], dtype=object)


def _kept(columns: Sequence[str], drop: Collection[str], file: Path) -> list[str]:
    """The columns that are not dropped; all that are to drop must exist."""
    known = set(columns)
    unknown = next((name for name in drop if name not in known), None)
    if unknown is not None:
        raise InputError(f"{str(file)!r} has no column {unknown!r} to drop; it has {listing(sorted(columns), 10)}")
    return [name for name in columns if name not in drop]


# -- csv


def _read_csv(
    file: Path,
    as_text: Collection[str],
    labels: Collection[str],
    drop: Collection[str],
    reading: Reading,
    remarks: Remarks,
) -> Columns:
    kept_as_text = {*as_text, *labels}
    try:
        table = _read_cells(file, kept_as_text, drop)
        mixed = table.mixed
        if mixed:  # their first lines looked like numbers; read their original text
            table = _read_cells(file, {*kept_as_text, *mixed}, drop)
    except UnicodeDecodeError:
        raise InputError(f"{str(file)!r} must be text in UTF-8, got other bytes") from None
    except csv.Error as error:
        raise InputError(f"cannot read {str(file)!r} as a table of text ({error}); check its quotes") from None
    found, commas = table.columns(), table.commas
    to_numbers = _texts_to_numbers if commas is None else commas.or_points
    for name, values in found.items():
        if values.dtype.kind == "O":
            found[name] = read_texts(reading, name, values, to_numbers, remarks, keep=name in kept_as_text)
        else:
            found[name] = read_numbers(reading, values)
    if commas is None:
        return found
    for name in mixed:
        numbers = commas.to_numbers(found[name]) if found[name].dtype.kind == "O" else None
        found[name] = found[name] if numbers is None else numbers
    for name in found.keys() & {*labels}:
        points = commas.to_points(found[name])
        found[name] = found[name] if points is None else points
    if commas.warning is not None:
        remarks.add(f"{file}: {commas.warning}")
    return found


def _read_cells(file: Path, as_text: Collection[str], drop: Collection[str]) -> "_Cells":
    with file.open(newline="", encoding="utf-8-sig") as lines:
        first = lines.readline()
        if any(one < " " and one not in "\t\r\n" for one in first):
            raise InputError(f"{str(file)!r} must be a table of text, got other bytes")
        delimiter = max(DELIMITERS, key=re.sub('"[^"]*"', "", first).count)
        lines.seek(0)
        header = [name.strip() for name in next(_rows(lines, delimiter), [])]
        _check_header(header, file)
        kept = {*_kept(header, drop, file)}
        wanted = [index for index, name in enumerate(header) if name in kept]
        table = _Cells(file, header, wanted, as_text, None if delimiter == "," else DecimalCommas())
        while block := list(islice(lines, BLOCK)):
            if any('"' in line for line in block):  # a quoted cell may hold delimiters and line ends
                reader = _rows(chain(block, lines), delimiter)
                while rows := list(islice(reader, BLOCK)):
                    table.add_rows(rows)
            elif not table.add_numeric_lines(block, delimiter):
                table.add_rows(list(_rows(block, delimiter)))
    return table


def _rows(lines: Iterable[str], delimiter: str) -> Iterator[list[str]]:
    return csv.reader(lines, delimiter=delimiter, skipinitialspace=True, strict=True)


class DecimalCommas:
    """Converts columns of a file with decimal commas, such as 3,14, and remembers whether they are ambiguous.

    This is for files whose cells are not separated by commas. A column is read this way if each of its values is such a
    number or an integer. Points never separate thousands: 1.234,5 is text.
    """

    def __init__(self) -> None:
        self._example, self._unambiguous = "", False

    def to_points(self, texts: np.ndarray) -> np.ndarray | None:
        """The texts (None: missing) with a decimal point; None if one of them is not such a number."""
        distinct = {one for one in texts if one is not None}
        if not all(map(COMMA_NUMBER.fullmatch, distinct)):
            return None
        with_comma = [one for one in distinct if "," in one]
        self._unambiguous |= not all(map(COMMA_THOUSANDS.fullmatch, with_comma))
        self._example = min([*with_comma, *([self._example] if self._example else [])], default="")
        points = {None: None} | {one: one.replace(",", ".") for one in distinct}
        return np.array([points[one] for one in texts], dtype=object)

    def to_numbers(self, texts: np.ndarray) -> np.ndarray | None:
        """The texts as numbers, NaN where one is missing; None if one of them is not such a number."""
        points = self.to_points(texts)
        return None if points is None else np.array([np.nan if one is None else float(one) for one in points])

    def or_points(self, texts: np.ndarray) -> np.ndarray | None:
        """The same for texts with decimal points or commas."""
        numbers = _texts_to_numbers(texts)
        return self.to_numbers(texts) if numbers is None else numbers

    @property
    def warning(self) -> str | None:
        """A warning if every comma might also separate thousands."""
        if self._unambiguous or not self._example:
            return None
        return (
            f"{self._example} is read as {self._example.replace(',', '.')}, because a comma that does not separate "
            f"columns is a decimal comma; if it means thousands, write {self._example.replace(',', '')}"
        )


class _Cells:
    """The columns of a CSV file while it is read: numbers as long as all cells are numbers, or texts."""

    def __init__(
        self,
        file: Path,
        header: Sequence[str],
        wanted: Sequence[int],
        as_text: Collection[str],
        commas: DecimalCommas | None,  # None: commas separate the cells
    ) -> None:
        self.file, self.header, self.wanted, self.commas = file, header, wanted, commas
        self.texts: dict[int, list[str | None]] = {index: [] for index in wanted if header[index] in as_text}
        self.numbers: dict[int, list[np.ndarray]] = {index: [] for index in wanted if header[index] not in as_text}
        self.with_commas: set[int] = set()  # numeric columns with decimal commas
        self.rows = 0

    def add_rows(self, rows: Sequence[list[str]]) -> None:
        full = [row for row in rows if row]  # skip empty lines
        for number, row in enumerate(full, self.rows + 1):
            if len(row) != len(self.header):
                raise InputError(
                    f"row {number} of {str(self.file)!r} must have {len(self.header)} cells, like the header, got "
                    f"{len(row)}; check its delimiters and quotes"
                )
        self.rows += len(full)
        for index, cells in enumerate(zip(*full, strict=True)):
            if index in self.texts:
                self.texts[index].extend(cells)
            elif index in self.numbers:
                values = self._to_numbers(index, cells)
                if values is None:
                    del self.numbers[index]
                else:
                    self.numbers[index].append(values)

    def add_numeric_lines(self, lines: Sequence[str], delimiter: str) -> bool:
        """Add lines without quotes and missing values, five times as fast as `add_rows`; False if it cannot."""
        width = len(self.header) - 1
        if not self.numbers or self.with_commas or any(line.count(delimiter) != width for line in lines):
            return False
        indices = list(self.numbers)
        try:
            values = np.loadtxt(lines, delimiter=delimiter, usecols=indices, comments=None, ndmin=2)
        except ValueError:
            return False
        if len(values) != len(lines):
            return False
        for index, column in zip(indices, values.T, strict=True):
            self.numbers[index].append(column.copy())
        if self.texts:
            cells = [line.rstrip("\r\n").split(delimiter) for line in lines]
            for index, texts in self.texts.items():
                texts.extend(row[index] for row in cells)
        self.rows += len(lines)
        return True

    @property
    def mixed(self) -> set[str]:
        """Columns that started as numbers but hold other cells, too."""
        return {self.header[index] for index in self.wanted if index not in self.texts and index not in self.numbers}

    def columns(self) -> Columns:
        found: dict[int, np.ndarray] = {index: _to_texts(cells) for index, cells in self.texts.items()}
        found |= {index: np.concatenate([*blocks, np.zeros(0)]) for index, blocks in self.numbers.items()}
        return {self.header[index]: found[index] for index in self.wanted if index in found}

    def _to_numbers(self, index: int, cells: Sequence[str]) -> np.ndarray | None:
        values = None if index in self.with_commas else parse_numbers(cells)
        if values is None and self.commas is not None and (index in self.with_commas or not self.numbers[index]):
            values = self.commas.to_numbers(_to_texts(cells))
            (self.with_commas.discard if values is None else self.with_commas.add)(index)
        return values


def parse_numbers(cells: Sequence[str] | np.ndarray) -> np.ndarray | None:
    """The cells as numbers, NaN where one is missing; None if one is something else."""
    if any("_" in one for one in cells):  # Python reads 1_2 as 12
        return None
    try:
        return np.array([np.nan if one.strip().lower() in MISSING_TEXTS else float(one) for one in cells])
    except ValueError:
        return None


def _texts_to_numbers(texts: np.ndarray) -> np.ndarray | None:
    """The texts (None: missing) as numbers; None if one is something else."""
    return parse_numbers(["" if one is None else one for one in texts])


def _check_header(header: Sequence[str], file: Path) -> None:
    if not header:
        raise InputError(f"{str(file)!r} must start with a line of column names, got an empty file")
    long = next((name for name in header if len(name) > MAX_NAME), None)
    if long is not None:
        raise InputError(
            f"the columns of {str(file)!r} must have names of at most {MAX_NAME} characters, got {len(long)} that "
            f"start with {in_brief(long, 40)!r}; check its quotes"
        )
    twice = sorted(name for name, times in Counter(header).items() if times > 1)
    if twice:
        raise InputError(f"the columns of {str(file)!r} must have different names, got {twice[0]!r} twice")


# -- parquet


def _read_parquet(file: Path, drop: Collection[str]) -> dict[str, Any]:
    try:
        parquet = importlib.import_module("pyarrow.parquet")
    except ImportError:
        raise InputError(
            f'reading {str(file)!r} needs pyarrow, which is not installed; pip install "bespokefl[tables]"'
        ) from None
    try:
        table = parquet.read_table(file)
    except Exception as error:  # a damaged file can raise any error
        raise InputError(f"cannot read {str(file)!r} as a Parquet file ({said(error)})") from None
    found = {}
    for name in _kept(table.column_names, drop, file):
        values = table.column(name)
        kind = str(values.type)
        if kind.startswith(("list", "large_list", "struct", "map", "binary")):
            raise InputError(
                f"column {name!r} of {str(file)!r} must hold numbers or text, got {kind}; drop it, or save arrays as "
                ".npz"
            )
        as_list = ("dictionary", "decimal", "bool", "string", "large", "timestamp", "date", "time")
        plain = values.to_pylist() if kind.startswith(as_list) else values
        if kind.startswith("decimal"):
            plain = [None if one is None else float(one) for one in plain]
        found[name] = plain
    return found
