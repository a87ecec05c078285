"""Numbers with a decimal comma, as in 3,14: how many countries write them, in tables that semicolons separate.

A column is read so if each of its values is such a number or a whole one. Points are never taken for thousands: 1.234,5
is a text.
"""

import re

import numpy as np

NUMBER = re.compile(r"[+-]?([0-9]+(,[0-9]*)?|,[0-9]+)([eE][+-]?[0-9]+)?")
THOUSANDS = re.compile(r"[+-]?[1-9][0-9]{0,2},[0-9]{3}")  # 1,234 may be either


class Commas:
    """What the commas of one file are."""

    def __init__(self) -> None:
        self._example, self._clear = "", False

    def pointed(self, texts: np.ndarray) -> np.ndarray | None:
        """Texts (None: missing) with a point for the comma; None where one of them is no such number."""
        different = self._different(texts)
        if different is None:
            return None
        points = {None: None} | {one: one.replace(",", ".") for one in different}
        found = np.empty(len(texts), dtype=object)
        found[:] = [points[one] for one in texts]
        return found

    def numbers(self, texts: np.ndarray) -> np.ndarray | None:
        """The same as numbers, NaN where one is missing."""
        different = self._different(texts)
        if different is None:
            return None
        values = {None: np.nan} | {one: float(one.replace(",", ".")) for one in different}
        return np.array([values[one] for one in texts])

    @property
    def doubt(self) -> str | None:
        """What to tell if every comma may as well be one of thousands."""
        if self._clear or not self._example:
            return None
        return (
            f"{self._example} is read as {self._example.replace(',', '.')}, for the comma is the decimal sign where it "
            f"separates no columns; if it means thousands, write {self._example.replace(',', '')}"
        )

    def _different(self, texts: np.ndarray) -> set[str] | None:
        """Those that there are, if all of them are numbers."""
        different = {one for one in texts if one is not None}
        if not all(map(NUMBER.fullmatch, different)):
            return None
        shown = [one for one in different if "," in one]
        self._clear |= not all(map(THOUSANDS.fullmatch, shown))
        self._example = min([*shown, *([self._example] if self._example else [])], default="")
        return different
