"""What can go wrong, said in one sentence.

BespokeError        anything a person can mend; the command line exits with 2
├── InputError      what was asked for cannot be done: expected, came, what to do
└── TrainingError   the training itself failed: which round, which clients
"""

import difflib
from collections.abc import Iterable, Sequence


class BespokeError(Exception):
    """Base of all errors that carry a sentence instead of a traceback."""


class InputError(BespokeError):
    """A wrong option, file or argument."""


class TrainingError(BespokeError):
    """A run that cannot go on."""


def unknown(kind: str, name: str, known: Iterable[str], see: str = "") -> InputError:
    """The error for a name that is not among the known ones, with the nearest of them."""
    names = sorted(known)
    near = difflib.get_close_matches(name.lower(), [n.lower() for n in names], n=1)
    guess = next((n for n in names if near and n.lower() == near[0]), None)
    hint = f"; did you mean {guess!r}?" if guess else f"; known: {', '.join(names)}."
    return InputError(f"unknown {kind} {name!r}{hint}" + (f' See "{see}".' if see else ""))


def listing(names: Sequence[str], most: int = 5) -> str:
    """A few names for a sentence: "a, b, c and 7 more"."""
    shown = ", ".join(names[:most])
    rest = len(names) - most
    return f"{shown} and {rest} more" if rest > 0 else shown
