"""Dates in tables: year, month, day, weekday and hour as features."""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

import numpy as np

from bespokefl.core.errors import InputError, in_brief, spell
from bespokefl.data.tables.reading import show

DATE = re.compile(r"(\d{4}-\d{1,2}-\d{1,2}|\d{1,2}[./-]\d{1,2}[./-]\d{2,4})([ T].*)?|\d{1,2}:\d{2}(:\d{2})?")
DAY = re.compile(r"(?:(\d{4})-(\d{1,2})-(\d{1,2})|(\d{1,2})([./-])(\d{1,2})[./-](\d{2}|\d{4}))(?:[ T]+(.*))?")
CLOCK = re.compile(r"(\d{1,2}):(\d{2})(?::(\d{2})(?:[.,]\d+)?)?\s*(?:Z|[+-]\d{2}:?\d{2})?")
DAY_PARTS, HOUR = ("year", "month", "day", "weekday"), "hour"
DAY_FIRST, MONTH_FIRST = "day-first", "month-first"  # the order of dates that do not begin with the year
CENTURY = 69  # two digits of a year: 69 to 99 are 1969 to 1999, as in POSIX


def are_dates(texts: Collection[str]) -> bool:
    """Whether all texts are dates or times; False if there is none."""
    return bool(texts) and all(DATE.fullmatch(one) for one in texts)


def dates_error(name: str) -> InputError:
    """The error for a column of dates."""
    return InputError(
        f"column {name!r} holds dates or times, which are not features yet: {spell('dates', True)} makes year, month, "
        f"day, weekday and hour of them, {spell('drop', [name])} ignores the column"
    )


def date_features(name: str, texts: np.ndarray, order: str | None = None) -> tuple[dict[str, np.ndarray], str]:
    """The parts of dates as columns of numbers (NaN: missing), and the order of day and month.

    Parameters
    ----------
    order : the order in the training data; None: it follows from the values
    """
    distinct = sorted({one for one in texts if one is not None})
    order = order or _order(name, distinct)
    parsed = {one: _parse_date(name, one, order) for one in distinct}
    days = [day for day, _ in parsed.values() if day is not None]
    hours = any(hour for _, hour in parsed.values()) or not days
    if days and len(days) < len(parsed):
        raise InputError(f"column {name!r} must hold dates or times of day, got both: {show(distinct)}; drop it")
    parts = (*(DAY_PARTS if days else ()), *((HOUR,) if hours else ()))
    table = {one: _date_parts(*both) for one, both in parsed.items()} | {None: {}}
    rows = [table[one] for one in texts]
    return {
        f"{name}.{part}": np.array([row.get(part, np.nan) for row in rows], dtype=np.float64) for part in parts
    }, order


def needed_dates(names: Iterable[str], found: Mapping[str, Any]) -> dict[str, tuple[str, ...]]:
    """The columns of dates in a file of which a run needs features, with the names of these features."""
    needed: dict[str, tuple[str, ...]] = {}
    for feature in names:
        name, dot, part = feature.rpartition(".")
        if dot and part in (*DAY_PARTS, HOUR) and feature not in found and name in found:
            needed[name] = (*needed.get(name, ()), feature)
    return needed


def _order(name: str, texts: Sequence[str]) -> str:
    """The order of day and month: points mean that the day is first, otherwise a number above 12 shows it."""
    unsure = [match for one in texts if (match := DAY.fullmatch(one)) and match[5] in ("/", "-")]
    day_first = any(int(match[4]) > 12 for match in unsure)
    month_first = any(int(match[6]) > 12 for match in unsure)
    if unsure and day_first == month_first:
        raise InputError(
            f"column {name!r} has dates such as {unsure[0][0]!r}, which do not show whether the day or the month is "
            f"first; write them as 2024-12-31, or ignore the column with {spell('drop', [name])}"
        )
    return MONTH_FIRST if month_first else DAY_FIRST


def _parse_date(name: str, text: str, order: str) -> tuple[datetime | None, float]:
    """The day (None: only a time) and the hour, with minutes as a fraction."""
    day, clock, found = None, text, DAY.fullmatch(text)
    try:
        if found is not None:
            year, month, date = (int(one) for one in found.group(1, 2, 3)) if found[1] else _day_of(found, order)
            day, clock = datetime(year, month, date), found[8] or "0:00"
        time = CLOCK.fullmatch(clock.strip())
        if time is None or int(time[1]) > 24 or int(time[2]) > 59:
            raise ValueError
    except ValueError:
        raise InputError(
            f"column {name!r} must hold dates such as 2024-12-31 or 2024-12-31 23:59, got {in_brief(text, 40)!r}; "
            f"correct it, or let it count as missing with {spell('missing_values', [text])}"
        ) from None
    return day, int(time[1]) + int(time[2]) / 60


def _day_of(found: re.Match[str], order: str) -> tuple[int, int, int]:
    first, second, year = int(found[4]), int(found[6]), int(found[7])
    if len(found[7]) == 2:
        year += 1900 if year >= CENTURY else 2000
    swap = order == MONTH_FIRST and found[5] != "."
    return (year, first, second) if swap else (year, second, first)


def _date_parts(day: datetime | None, hour: float) -> dict[str, float]:
    if day is None:
        return {HOUR: hour}
    return {"year": day.year, "month": day.month, "day": day.day, "weekday": day.isoweekday(), HOUR: hour}
