"""What can go wrong, said in one sentence.

BespokeError        anything a person can mend; the command line exits with 2
├── InputError      what was asked for cannot be done: expected, came, what to do
├── TrainingError   the training itself failed: which round, which clients
└── DiskError       something could not be written: what is kept, and how to go on once it can be
"""

import difflib
from collections.abc import Iterable, Sequence

MOST = 40  # names that a sentence lists


class BespokeError(Exception):
    """Base of all errors that carry a sentence instead of a traceback."""


class InputError(BespokeError):
    """A wrong option, file or argument."""


class TrainingError(BespokeError):
    """A run that cannot go on."""


class DiskError(BespokeError):
    """A place that takes no more. What was there stays: whoever has made room, or has mended it, can go on."""

    def __init__(self, fact: str, *, kept: str = "", cure: str = "make room", then: str = "") -> None:
        """fact: what could not be written, and why; kept: what there is to go on from; then: the command that does."""
        told = f"{cure}, then: {then}" if then else cure
        super().__init__("; ".join(part for part in (fact, kept, told) if part) + ".")
        self.fact, self.kept, self.cure = fact, kept, cure


def unknown(kind: str, name: str, known: Iterable[str], see: str = "") -> InputError:
    """The error for a name that is not among the known ones, with the nearest of them."""
    names = sorted(known)
    near = difflib.get_close_matches(name.lower(), [n.lower() for n in names], n=1)
    guess = next((n for n in names if near and n.lower() == near[0]), None)
    hint = f"; did you mean {guess!r}?" if guess else f"; known: {listing(names, MOST)}."
    return InputError(f"unknown {kind} {name!r}{hint}" + (f' See "{see}".' if see else ""))


def listing(names: Sequence[str], most: int = 5) -> str:
    """A few names for a sentence: "a, b, c and 7 more"."""
    shown = ", ".join(map(in_brief, names[:most]))  # a column of a table may be called anything
    rest = len(names) - most
    return f"{shown} and {rest} more" if rest > 0 else shown


def count(number: int, what: str) -> str:
    """How many there are, for a sentence: "1 client", "2 clients"."""
    return f"{number} {what}{'' if number == 1 else 's'}"


def in_brief(words: object, most: int = 200) -> str:
    """Somebody else's words, of a library or a file, as a part of a sentence."""
    line = " ".join(str(words).split())
    return line if len(line) <= most else line[: most - 1] + "…"


def said(error: Exception) -> str:
    """What a library's error says, as a part of a sentence."""
    return in_brief(f"{type(error).__name__}: {error}")
