"""Render a template into one self-contained HTML file.

A page makes no network requests, and its Content-Security-Policy forbids them: only the two scripts embedded here may
run, identified by their hashes, so the name of a client or a method cannot inject another one.
"""

import base64
import hashlib
from collections.abc import Mapping
from functools import cache
from importlib import resources
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from bespokefl.core.errors import InputError

# The start and the end of the function that wraps plotly.min.js.
PLOTLY_START, PLOTLY_END = ": this, () => {", "}));"


def render(template: str, title: str, numbers: Mapping[str, Any], *, has_figures: bool = True, **content: Any) -> str:
    """Return the HTML of a page.

    `numbers` is embedded as JSON for page.js, which draws the figures; a page without figures has no scripts. Templates
    receive `content` and escape all of it.
    """
    scripts = {"plotly": _plotly(), "page": _asset("page.js")} if has_figures else {}
    digests = [base64.b64encode(hashlib.sha256(one.encode()).digest()).decode() for one in scripts.values()]
    content |= {"scripts": scripts, "script_hashes": [f"'sha256-{one}'" for one in digests]}
    page = _environment().get_template(template)
    return page.render(title=title, numbers=numbers, stylesheet=_asset("page.css"), **content)


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("bespokefl.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    json_options = {"ensure_ascii": False, "separators": (",", ":"), "allow_nan": False}
    environment.policies["json.dumps_kwargs"] = json_options
    return environment


@cache
def _asset(name: str) -> Markup:
    return Markup(resources.files("bespokefl.report").joinpath("templates", name).read_text(encoding="utf-8"))


@cache
def _plotly() -> Markup:
    """Return plotly.min.js with its outermost function in parentheses.

    Parentheses tell a browser that the function is called at once, so it parses the five megabytes once instead of
    scanning them for the end first and parsing them again for the call.
    """
    try:
        text = resources.files("plotly").joinpath("package_data", "plotly.min.js").read_text(encoding="utf-8").rstrip()
    except (ModuleNotFoundError, FileNotFoundError):
        raise InputError("the figures of a report need plotly, which is not installed; pip install plotly.") from None
    if text.count(PLOTLY_START) == 1 and text.endswith(PLOTLY_END):  # else another release, which works unchanged
        text = text.replace(PLOTLY_START, PLOTLY_START.replace("()", "(()"))
        text = text.removesuffix(PLOTLY_END) + f"{PLOTLY_END[0]}){PLOTLY_END[1:]}"
    return Markup(text)
