"""Read the help on a method from its source file: hyper-parameters with their comments, the paper, the docstring."""

import inspect
import re
import textwrap
from typing import Any

from bespokefl.core.method import Method

MAX_VENUE_LENGTH = 24  # characters; longer names of journals are left out


def hyperparameters(method: type[Method]) -> list[tuple[str, Any, str]]:
    """Return the name, the default and the meaning (the comment next to it) of each hyper-parameter."""
    comments: dict[str, str] = {}
    for base in reversed(method.__mro__[:-1]):  # without object
        comments |= _comments(base)
    return [(name, value, comments.get(name, "")) for name, value in method().hyper().items()]


def _comments(cls: type) -> dict[str, str]:
    """Return the comment at the end of the line of each annotated class attribute."""
    try:
        source = textwrap.dedent(inspect.getsource(cls))
    except (OSError, TypeError):  # a class defined in an interpreter has no file
        return {}
    return dict(re.findall(r"^    (\w+): [^#\n]*# *(.*)$", source, re.MULTILINE))


def reference(method: type[Method]) -> str:
    """Return a short reference to the paper, such as "Li et al., ICML 2021"."""
    fields = dict(re.findall(r"(\w+)\s*=\s*\{(.*?)\},?\s*$", method.citation, re.DOTALL | re.MULTILINE))
    authors = [one.partition(",")[0].strip() for one in re.split(r"\s+and\s+", fields.get("author", "")) if one.strip()]
    if not authors:
        return ""
    who = authors[0] + (" et al." if len(authors) > 2 else f" and {authors[1]}" if len(authors) == 2 else "")
    venue = next((fields[kind] for kind in ("booktitle", "journal", "school") if kind in fields), "")
    venue = f"{venue} " if len(venue) <= MAX_VENUE_LENGTH else ""
    return f"{who}, {venue}{fields.get('year', '')}".strip()


def description(method: type[Method]) -> str:
    """Return the docstring of the method's file: what it does, the paper, the objective, differences from the paper."""
    module = inspect.getmodule(method)
    return inspect.cleandoc((module.__doc__ if module else None) or method.__doc__ or "")
