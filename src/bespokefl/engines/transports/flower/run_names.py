"""What a run may be called: its name becomes a folder's at every node, and the server chooses it."""

import re

from bespokefl.core.errors import InputError

RUN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


def check_run(name: str) -> str:
    if not isinstance(name, str) or not RUN.fullmatch(name):
        raise InputError(f"a run's name must be of letters, digits, dots, dashes and underscores, got {name!r}.")
    return name
