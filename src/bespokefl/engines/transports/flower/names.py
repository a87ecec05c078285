"""Names of runs and nodes: each has a directory of its name, at the server and at the nodes."""

import re

from bespokefl.core.errors import InputError


def check_name(name: str, of: str, longest: int = 100) -> str:
    """Return the name of a run or node if it is valid, so that it cannot lead out of a directory."""
    if not isinstance(name, str) or not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", name) or len(name) > longest:
        raise InputError(f"{of}'s name must consist of letters, digits, dots, dashes and underscores, got {name!r}.")
    return name
