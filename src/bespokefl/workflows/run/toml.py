"""Writes TOML: flat keys, then tables of flat keys. (Python reads TOML itself, with tomllib.)"""

import json
import re
from collections.abc import Mapping
from typing import Any


def dumps(values: Mapping[str, Any], comments: Mapping[str, str] | None = None, title: str = "") -> str:
    """The values as TOML. None is left out, as TOML has none; `comments[key]` stands above the key."""
    notes = comments or {}
    lines = [f"# {title}"] if title else []
    tables = []
    for key, value in values.items():
        if isinstance(value, Mapping):
            tables += ["", *_comment(notes.get(key)), f"[{_key(key)}]"]
            tables += [f"{_key(name)} = {_value(one)}" for name, one in value.items() if one is not None]
        else:
            lines += _comment(notes.get(key))
            lines += [] if value is None else [f"{_key(key)} = {_value(value)}"]
    return "\n".join([*lines, *tables]) + "\n"


def _comment(text: str | None) -> list[str]:
    printable = "".join(one if one.isprintable() else " " for one in text or "")  # TOML allows no other
    return [f"# {printable}"] if printable else []


def _key(key: str) -> str:
    return key if re.fullmatch(r"[A-Za-z0-9_-]+", key) else _text(key)


def _text(text: str) -> str:
    # JSON escapes what TOML wants escaped, but for the delete character.
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, list | tuple):
        return f"[{', '.join(_value(one) for one in value)}]"
    raise TypeError(f"TOML has no way to write a {type(value).__name__}")
