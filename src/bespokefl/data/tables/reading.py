"""How the cells of a table are read: which texts count as missing, and which columns must be numbers.

A `Reading` is part of a run's features, so that new examples are read as the training data were.
"""

import logging
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from bespokefl.core.errors import InputError, in_brief, listing, spell

log = logging.getLogger("bespokefl")

MAX_SHOWN = 3  # values that a message shows

ToNumbers = Callable[[np.ndarray], np.ndarray | None]


@dataclass(frozen=True)
class Reading:
    """How cells become values."""

    missing_values: tuple[str, ...] = ()  # texts and numbers that count as missing, in any case of letters
    as_number: tuple[str, ...] = ()  # columns in which every other value than a number counts as missing
    dates: tuple[tuple[str, str], ...] = ()  # columns of dates, with the order of day and month

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> "Reading":
        """Restore the reading from JSON values."""
        dates = tuple((str(name), str(order)) for name, order in content["dates"])
        return cls(tuple(content["missing_values"]), tuple(content["as_number"]), dates)

    def merge(self, other: "Reading", owner: str) -> "Reading":
        """The reading of the data of several owners; dates must have one order."""
        orders = dict(self.dates)
        for name, order in other.dates:
            if orders.setdefault(name, order) != order:
                raise InputError(
                    f"the dates in column {name!r} must have one order of day and month everywhere, but {owner} has "
                    f"another; write them as 2024-12-31"
                )
        return Reading(
            tuple(dict.fromkeys((*self.missing_values, *other.missing_values))),
            tuple(dict.fromkeys((*self.as_number, *other.as_number))),
            tuple(orders.items()),
        )


@dataclass
class Remarks:
    """What users are told about the files of a table: collected over all of them, then logged once."""

    sentences: list[str] = field(default_factory=list)
    unreadable: dict[str, Counter[str]] = field(default_factory=dict)  # by column
    rows: Counter[str] = field(default_factory=Counter)  # by column

    def add(self, sentence: str) -> None:
        """Add a sentence to be logged."""
        self.sentences.append(sentence)

    def log(self) -> None:
        """Log the remarks, the same one of several files once."""
        if self.sentences:
            same = f" (the same in {len(self.sentences)} files)" if len(self.sentences) > 1 else ""
            log.warning("%s%s", self.sentences[0], same)
        for name, values in self.unreadable.items():
            log.warning(
                "column %r: %d of %d values are not numbers (%s) and count as missing",
                *(name, values.total(), self.rows[name], show(values)),
            )


def show(values: Collection[str]) -> str:
    """A few values in quotes; the most frequent ones of a counter."""
    ordered = [one for one, _ in values.most_common()] if isinstance(values, Counter) else sorted(values)
    return listing([repr(in_brief(one, 40)) for one in ordered], MAX_SHOWN)


def read_texts(
    reading: Reading, name: str, texts: np.ndarray, to_numbers: ToNumbers, remarks: Remarks, *, keep: bool = False
) -> np.ndarray:
    """A column of texts (None: missing), or of numbers where the reading makes them so.

    to_numbers  converts texts to numbers, or returns None if some are not numbers
    keep        keep texts, with None for those that are missing
    """
    absent = {one.lower() for one in reading.missing_values}
    found = _without(texts, {one for one in {*texts} - {None} if one.lower() in absent}) if absent else texts
    if name in reading.as_number:
        wrong = {one for one in {*found} - {None} if to_numbers(np.array([one], dtype=object)) is None}
        if wrong:
            remarks.unreadable.setdefault(name, Counter()).update(one for one in found if one in wrong)
            found = _without(found, wrong)
        remarks.rows[name] += len(found)
    elif found is texts:
        return texts
    numbers = None if keep else to_numbers(found)
    return found if numbers is None else numbers


def read_numbers(reading: Reading, values: np.ndarray) -> np.ndarray:
    """A column of numbers, with NaN for those that count as missing, such as -999."""
    absent = [number for one in reading.missing_values if (number := _as_float(one)) is not None]
    if not absent or values.dtype.kind not in "fiu":
        return values
    wrong = np.isin(values, absent)
    return np.where(wrong, np.nan, values) if wrong.any() else values


def _without(texts: np.ndarray, wrong: Collection[str]) -> np.ndarray:
    if not wrong:
        return texts
    return np.array([None if one in wrong else one for one in texts], dtype=object)


def _as_float(text: str) -> float | None:
    try:
        return None if "_" in text else float(text)  # Python reads 1_2 as 12
    except ValueError:
        return None


# -- columns that are numbers for the most part


def warn_of_mixture(name: str, texts: np.ndarray) -> None:
    """Warn if a column becomes categories because some of its values are not numbers."""
    hint = mixture(name, texts)
    if hint:
        log.warning("column %r has %s; each value becomes a category: %s", name, *hint)


def mixture(name: str, texts: np.ndarray) -> tuple[str, str] | None:
    """If most values of a column are numbers: what it has, and what to do. None for other columns."""
    counts = Counter(one for one in texts if one is not None)
    others = Counter({one: times for one, times in counts.items() if _as_float(one.replace(",", ".")) is None})
    if not others or 2 * others.total() > counts.total():
        return None
    return (
        f"numbers and {others.total()} of {counts.total()} values that are not ({show(others)})",
        f"{spell('as_number', [name])} makes them missing and the others numbers, "
        f"{spell('missing_values', sorted(others)[:MAX_SHOWN])} only those that it lists",
    )
