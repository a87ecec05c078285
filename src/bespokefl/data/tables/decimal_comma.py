"""Numbers with a decimal comma, such as 3,14, in tables whose columns are not separated by commas.

A column is read this way if each of its values is such a number or an integer. Points never separate thousands: 1.234,5
is text.
"""

import re

import numpy as np

NUMBER = re.compile(r"[+-]?([0-9]+(,[0-9]*)?|,[0-9]+)([eE][+-]?[0-9]+)?")
THOUSANDS = re.compile(r"[+-]?[1-9][0-9]{0,2},[0-9]{3}")  # 1,234 is ambiguous


class DecimalCommas:
    """Converts the columns of one file and remembers whether its commas are ambiguous."""

    def __init__(self) -> None:
        self._example, self._unambiguous = "", False

    def to_points(self, texts: np.ndarray) -> np.ndarray | None:
        """The texts (None: missing) with a decimal point; None if one of them is not such a number."""
        distinct = self._numbers(texts)
        if distinct is None:
            return None
        points = {None: None} | {one: one.replace(",", ".") for one in distinct}
        found = np.empty(len(texts), dtype=object)
        found[:] = [points[one] for one in texts]
        return found

    def to_numbers(self, texts: np.ndarray) -> np.ndarray | None:
        """The texts as numbers, NaN where one is missing; None if one of them is not such a number."""
        points = self.to_points(texts)
        return None if points is None else np.array([np.nan if one is None else float(one) for one in points])

    @property
    def warning(self) -> str | None:
        """A warning if every comma might also separate thousands."""
        if self._unambiguous or not self._example:
            return None
        return (
            f"{self._example} is read as {self._example.replace(',', '.')}, because a comma that does not separate "
            f"columns is a decimal comma; if it means thousands, write {self._example.replace(',', '')}"
        )

    def _numbers(self, texts: np.ndarray) -> set[str] | None:
        """The distinct texts if all of them are numbers."""
        distinct = {one for one in texts if one is not None}
        if not all(map(NUMBER.fullmatch, distinct)):
            return None
        with_comma = [one for one in distinct if "," in one]
        self._unambiguous |= not all(map(THOUSANDS.fullmatch, with_comma))
        self._example = min([*with_comma, *([self._example] if self._example else [])], default="")
        return distinct
