"""Errors that users can fix, and helpers for their messages.

BespokeError        base class; the command line prints the message and exits with 2
├── InputError      a wrong option, file or argument: what was expected, what came, what to do
├── TrainingError   training failed: in which round, for which clients
├── DiskError       a file could not be written: what is kept, and how to resume
└── StoppedError    the user stopped the run
"""

import difflib
import shlex
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

MAX_LISTED_NAMES = 40  # in the message about an unknown name


PYTHON, COMMAND_LINE, NODE_FILE = "Python", "command line", "node.toml"  # where a user writes settings
_written_in = PYTHON


class BespokeError(Exception):
    """Base class of errors that are reported by a sentence instead of a traceback."""


class InputError(BespokeError):
    """A wrong option, file or argument."""


class TrainingError(BespokeError):
    """A run that cannot continue."""


class DiskError(BespokeError):
    """The disk is full or failing; existing files are intact."""

    def __init__(self, fact: str, *, kept: str = "", cure: str = "make room", then: str = "") -> None:
        """fact: what could not be written, and why; kept: from what to resume; then: the command to resume with."""
        advice = f"{cure}, then: {then}" if then else cure
        super().__init__("; ".join(part for part in (fact, kept, advice) if part) + ".")
        self.fact, self.kept, self.cure = fact, kept, cure


class StoppedError(BespokeError):
    """The run is to stop, without waiting for replies."""


def unknown(kind: str, name: str, known: Iterable[str], see: str = "") -> InputError:
    """Return the error for an unknown name, with the most similar known one."""
    names = sorted(known)
    near = difflib.get_close_matches(name.lower(), [n.lower() for n in names], n=1)
    guess = next((n for n in names if near and n.lower() == near[0]), None)
    hint = f"; did you mean {guess!r}?" if guess else f"; known: {listing(names, MAX_LISTED_NAMES)}."
    return InputError(f"unknown {kind} {name!r}{hint}" + (f' See "{see}".' if see else ""))


def listing(names: Sequence[str], most: int = 5) -> str:
    """List a few names in a sentence: "a, b, c and 7 more"."""
    shown = ", ".join(map(in_brief, names[:most]))  # names from a file may be long
    rest = len(names) - most
    return f"{shown} and {rest} more" if rest > 0 else shown


def count(number: int, what: str) -> str:
    """A number with its noun: "1 client", "2 clients"."""
    return f"{number} {what}{'' if number == 1 else 's'}"


def in_brief(words: object, most: int = 200) -> str:
    """Shorten text from a library or a file to a part of a sentence."""
    line = " ".join(str(words).split())
    return line if len(line) <= most else line[: most - 1] + "…"


def said(error: Exception) -> str:
    """Describe an exception as a part of a sentence."""
    return in_brief(f"{type(error).__name__}: {error}")


@contextmanager
def settings_written_in(place: str) -> Iterator[None]:
    """Spell settings in messages as the user writes them: in Python, on the command line or in node.toml."""
    global _written_in
    before, _written_in = _written_in, place
    try:
        yield
    finally:
        _written_in = before


def spell(name: str, value: Any = None) -> str:
    """A setting as the user writes it, with a value or without: missing="mean", --missing mean, missing = "mean"."""
    if _written_in == COMMAND_LINE:
        flag = f"--{name.replace('_', '-')}"
        return flag if value is None or value is True else f"{flag} {shlex.quote(_as_text(value))}"
    if _written_in == NODE_FILE and value is None:
        return f"{name} in node.toml"
    if value is None:
        return name
    if _written_in == NODE_FILE:
        written = str(value).lower() if isinstance(value, bool) else f'"{_as_text(value)}"'
        return f"{name} = {written} in node.toml"
    return f"{name}={value!r}"


def _as_text(value: Any) -> str:
    return ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
