"""Writes TOML with comments, which tomli-w does not write. (Python's tomllib reads TOML.)"""

from collections.abc import Mapping
from typing import Any

import tomli_w


def dumps(values: Mapping[str, Any], comments: Mapping[str, str] | None = None, title: str = "") -> str:
    """Return the values as TOML, without None; `comments[key]` is a line above the key, and stays without a value."""
    lines = [f"# {title}\n"] if title else []
    for key, value in sorted(values.items(), key=lambda item: isinstance(item[1], Mapping)):  # tables come last
        comment = (comments or {}).get(key, "")
        printable = "".join(one if one.isprintable() else " " for one in comment)  # TOML allows no other characters
        lines += ["\n"] if isinstance(value, Mapping) else []
        lines += [f"# {printable}\n"] if printable else []
        if isinstance(value, Mapping):
            value = {name: one for name, one in value.items() if one is not None}
        lines += [] if value is None else [tomli_w.dumps({key: value})]
    return "".join(lines)
