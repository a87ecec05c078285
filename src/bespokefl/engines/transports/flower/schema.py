"""Describes which JSON from other machines is valid: types and bounds. A sentence tells the first value that is not."""

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from bespokefl.core.errors import in_brief

CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
MAX_SHOWN = 60  # characters of a wrong value


class MalformedError(ValueError):
    """A value from another machine does not have the agreed form; the message is a part of a sentence."""


class Schema(Protocol):
    """Describes which values are valid."""

    def check(self, value: Any, where: str) -> None:
        """Raise MalformedError unless the value is valid; `where` says where it stands."""


def parse(text: Any, schema: Schema, what: str, longest: int) -> Any:
    """Parse JSON and check it; raise MalformedError."""
    if not isinstance(text, str) or len(text) > longest:
        raise MalformedError(f"{what} must be a text of at most {longest:,} characters")
    try:
        value = json.loads(text, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise MalformedError(f"{what} cannot be read as JSON: {in_brief(error, MAX_SHOWN)}") from None
    schema.check(value, what)
    return value


def _no_constant(name: str) -> Any:
    raise MalformedError(f"{name} is not a number")


def wrong(where: str, expected: str, value: Any) -> MalformedError:
    """The error for a value that is not what was expected."""
    try:
        shown = in_brief(repr(value)[: 4 * MAX_SHOWN], MAX_SHOWN)
    except (ValueError, RecursionError):  # an integer of too many digits, or too deep
        shown = f"a {type(value).__name__}"
    return MalformedError(f"{in_brief(where, 2 * MAX_SHOWN)} must be {expected}, got {shown}")


@dataclass(frozen=True)
class Whole:
    """A whole number in a range."""

    least: int
    most: int

    def check(self, value: Any, where: str) -> None:
        if type(value) is not int or not self.least <= value <= self.most:
            raise wrong(where, f"a whole number from {self.least} to {self.most}", value)


@dataclass(frozen=True)
class Real:
    """A finite number."""

    least: float = -math.inf

    def check(self, value: Any, where: str) -> None:
        try:
            fits = type(value) in (int, float) and math.isfinite(value) and value >= self.least
        except OverflowError:  # an integer beyond all floats
            fits = False
        if not fits:
            raise wrong(
                where, "a finite number" + (f" from {self.least:g}" if math.isfinite(self.least) else ""), value
            )


@dataclass(frozen=True)
class Text:
    """A text; as a `name` it has no control characters, so that it can stand in a log."""

    longest: int
    shortest: int = 0
    name: bool = False

    def check(self, value: Any, where: str) -> None:
        if not isinstance(value, str) or not self.shortest <= len(value) <= self.longest:
            raise wrong(where, f"a text of {self.shortest} to {self.longest} characters", value)
        if self.name and CONTROL.search(value):
            raise wrong(where, "a text without control characters", value)


@dataclass(frozen=True)
class OneOf:
    """One of some values."""

    values: tuple[Any, ...]

    def check(self, value: Any, where: str) -> None:
        if not any(type(value) is type(one) and value == one for one in self.values):
            raise wrong(where, f"one of {', '.join(map(repr, self.values))}", value)


@dataclass(frozen=True)
class Maybe:
    """A value, or null."""

    schema: Schema

    def check(self, value: Any, where: str) -> None:
        if value is not None:
            self.schema.check(value, where)


@dataclass(frozen=True)
class List:
    """A list of values of one kind."""

    item: Schema
    most: int
    least: int = 0
    different: bool = False

    def check(self, value: Any, where: str) -> None:
        if not isinstance(value, list) or not self.least <= len(value) <= self.most:
            raise wrong(where, f"a list of {self.least} to {self.most} values", value)
        for at, one in enumerate(value):
            self.item.check(one, f"{where}[{at}]")
        if self.different and len(set(value)) < len(value):
            raise wrong(where, "a list of different values", value)


@dataclass(frozen=True)
class Map:
    """An object with any keys of one kind, and values of one kind."""

    key: Schema
    value: Schema
    most: int
    least: int = 0

    def check(self, value: Any, where: str) -> None:
        if not isinstance(value, dict) or not self.least <= len(value) <= self.most:
            raise wrong(where, f"an object of {self.least} to {self.most} entries", value)
        for key, one in value.items():
            self.key.check(key, f"a name in {where}")
            self.value.check(one, f"{where}.{key}")


@dataclass(frozen=True)
class Record:
    """An object with these keys and no others."""

    required: Mapping[str, Schema]
    optional: Mapping[str, Schema] = field(default_factory=dict)

    def check(self, value: Any, where: str) -> None:
        if not isinstance(value, dict):
            raise wrong(where, "an object", value)
        for name in self.required:
            if name not in value:
                raise MalformedError(f"{where} has no {name}")
        known = {**self.required, **self.optional}
        for name, one in value.items():
            if name not in known:
                raise wrong(f"a name in {where}", f"one of {', '.join(known)}", name)
            known[name].check(one, f"{where}.{name}")
