"""What every page is wrapped in: its head, its policy, the numbers, and the scripts that draw them.

A page asks nothing of any network, and its policy forbids it to: only the scripts that are written here can run, so
that no name of a client or method can bring one along.
"""

import base64
import hashlib
import json
from collections.abc import Mapping
from functools import cache
from html import escape
from importlib import resources
from typing import Any

from bespokefl.core.errors import InputError

# How the drawing library begins and ends: a function that is handed to another one, and called by it.
OPENING, CLOSING = ": this, () => {", "}));"


def framed(title: str, body: str, numbers: Mapping[str, Any], *, drawn: bool = True) -> str:
    """A whole page; without figures it needs no scripts."""
    scripts = {"plotly": _library(), "page": _own("page.js")} if drawn else {}
    policy = (
        "default-src 'none'; style-src 'unsafe-inline'; img-src data: blob:; "
        f"script-src {' '.join(map(_allowed, scripts.values())) or repr('none')}; base-uri 'none'; form-action 'none'"
    )
    parts = [
        "<!doctype html>",
        '<html lang="en"><head><meta charset="utf-8">',
        f'<meta http-equiv="Content-Security-Policy" content="{escape(policy)}">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        '<meta name="color-scheme" content="light dark">',
        '<meta name="generator" content="Bespoke">',
        f"<title>{escape(title)}</title>",
        f"<style>{_own('page.css')}</style></head><body>",
        body,
        f'<script type="application/json" id="numbers">{_json(numbers)}</script>',
    ]
    if drawn:  # the library as a text, which page.js runs when everything else is there
        parts.append(f'<script type="text/plain" id="plotly">{scripts["plotly"]}</script>')
        parts.append(f"<script>{scripts['page']}</script>")
    return "\n".join([*parts, "</body></html>"]) + "\n"


def _json(value: Any) -> str:
    """For a script element, which a "</script>" in a name would end."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def _allowed(script: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'"


@cache
def _own(name: str) -> str:
    return resources.files("bespokefl.report").joinpath(name).read_text(encoding="utf-8")


@cache
def _library() -> str:
    """Plotly, its outermost function in brackets: by them browsers know that it is called at once, and read it once.

    Without them they skim its five megabytes first, to find the end, and read them again when it is called.
    """
    try:
        text = resources.files("plotly").joinpath("package_data", "plotly.min.js").read_text(encoding="utf-8").rstrip()
    except (ModuleNotFoundError, FileNotFoundError):
        raise InputError("the figures of a report need plotly, which is not installed; pip install plotly.") from None
    if text.count(OPENING) != 1 or not text.endswith(CLOSING):
        return text  # another edition, which works as it is
    return text.replace(OPENING, OPENING.replace("()", "(()")).removesuffix(CLOSING) + f"{CLOSING[0]}){CLOSING[1:]}"
