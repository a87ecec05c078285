"""Times for tuning, such as "10m", in words and in seconds."""

import re

from bespokefl.core.errors import InputError

DEFAULT_TIME = "10m"
UNITS = {"s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}


def read_time(given: str | float) -> float:
    """Return a time such as "10m", "90s", "1.5h" or a number of seconds, in seconds."""
    found = re.fullmatch(r"(\d+(?:\.\d*)?|\.\d+)\s*(s|m|min|h)?", str(given).strip())
    seconds = 0.0 if found is None else float(found[1]) * UNITS[found[2] or "s"]
    if seconds <= 0:
        raise InputError(f"--tune must be followed by a time, such as 90s, 10m or 1h, got {given!r}.")
    return seconds


def is_time(text: str) -> bool:
    """Return whether `read_time` understands a text."""
    try:
        return read_time(text) > 0
    except InputError:
        return False


def in_words(seconds: float) -> str:
    """Return a time as text."""
    if seconds < 100:
        return f"{seconds:.3g} s"
    return f"{seconds / 60:.3g} min" if seconds < 6000 else f"{seconds / 3600:.3g} h"
