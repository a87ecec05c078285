"""Methods, models and splits of other packages, by "module:Name" or by the name of an entry point.

A package offers them in its pyproject.toml: ``[project.entry-points."bespokefl.methods"]``, then ``mine =
"package.module:Mine"``.
"""

import hashlib
import inspect
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

from bespokefl.core.errors import InputError, said
from bespokefl.core.user_input.spec import imported

METHODS, MODELS, SPLITS = "bespokefl.methods", "bespokefl.models", "bespokefl.splits"  # groups of entry points


@cache
def entry_points(group: str) -> dict[str, metadata.EntryPoint]:
    """The entry points of installed packages by name."""
    return {one.name: one for one in metadata.entry_points(group=group)}


def load(name: str, group: str, what: str) -> Any:
    """The object that is called "module:Name", or that an entry point has under this name; None if neither."""
    if ":" in name:
        return imported(name, what, "class")
    if name not in entry_points(group):
        return None
    try:
        return entry_points(group)[name].load()
    except Exception as error:
        raise InputError(
            f"the {what} {name!r}, an entry point of {group}, cannot be imported: {said(error)}"
        ) from error


def module_of(name: str, group: str) -> str | None:
    """The module whose code this name runs, without importing it; None for what is built in."""
    if ":" in name:
        return name.partition(":")[0]
    point = entry_points(group).get(name)
    return None if point is None else point.module


def short(name: str) -> str:
    """The name without its module, as part of a path or title."""
    return name.rpartition(":")[2]


def code_digest(kind: type) -> str:
    """A hash of the file that defines a class; "" if there is none."""
    try:
        return hashlib.sha256(Path(inspect.getfile(kind)).read_bytes()).hexdigest()
    except (OSError, TypeError):
        return ""
