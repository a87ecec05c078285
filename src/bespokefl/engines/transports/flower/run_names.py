"""Names of runs: the server chooses them, and every node has a directory of that name."""

import re

from bespokefl.core.errors import InputError

RUN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


def check_run(name: str) -> str:
    """Return the name if it is valid, so that it cannot lead out of a directory."""
    if not isinstance(name, str) or not RUN_NAME.fullmatch(name):
        raise InputError(f"a run's name must consist of letters, digits, dots, dashes and underscores, got {name!r}.")
    return name
