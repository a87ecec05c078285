"""One file that holds everything: text, tables, numbers, and what draws them.

It asks nothing of any network, and its policy forbids it to: only the scripts that are written here can run, so that
no name of a client or method can bring one along.
"""

import base64
import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from html import escape
from importlib import resources
from pathlib import Path
from typing import Any

from bespokefl.core.errors import InputError
from bespokefl.core.files import write_text
from bespokefl.report import figures, inside, tables, words
from bespokefl.report.figures import Figure
from bespokefl.report.source import Document, read
from bespokefl.report.style import Look, looks

NAME = "report.html"
Sections = list[tuple[str, str, list[Figure]]]


def write(
    source: str | os.PathLike[str],
    target: str | os.PathLike[str] | None = None,
    *,
    citations: Mapping[str, str] | None = None,
) -> Path:
    """Write the page of a comparison or a run, and tell where it is.

    target       the file to write; report.html in the same folder if not given
    citations    BibTeX by method, for a run, which has none on disk
    """
    origin = Path(source)
    document = read(origin)
    folder = origin.parent if origin.is_file() else origin
    path = folder / NAME if target is None else Path(target)
    write_text(path, html(document, citations or {}))
    return path


def html(document: Document, citations: Mapping[str, str]) -> str:
    methods = sorted(
        (one for one in document["methods"] if one["figures"] is not None and figures.finished(one)),
        key=lambda one: one["figures"]["rank"],
    )
    styles = looks([bool(one["baseline"]) for one in methods])
    drawn: dict[str, Any] = {}
    sections: Sections = []
    if methods:
        drawn = figures.numbers(document, methods, styles)
        sections = figures.general(document, drawn) + inside.sections(document, methods)
        drawn["parts"] = {one.key: one.data for _, _, found in sections for one in found if one.data}
    scripts = [_plotly(), _own("page.js")] if methods else []
    policy = (
        f"default-src 'none'; style-src 'unsafe-inline'; img-src data: blob:; "
        f"script-src {' '.join(_allowed(one) for one in scripts) or repr('none')}; base-uri 'none'; form-action 'none'"
    )
    parts = [
        "<!doctype html>",
        '<html lang="en"><head><meta charset="utf-8">',
        f'<meta http-equiv="Content-Security-Policy" content="{escape(policy)}">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        '<meta name="color-scheme" content="light dark">',
        '<meta name="generator" content="Bespoke">',
        f"<title>{escape(document['title'])}</title>",
        f"<style>{_own('page.css')}</style></head><body>",
        _body(document, methods, styles, sections, citations),
        f'<script type="application/json" id="numbers">{_json(drawn)}</script>',
        *([f'<script type="text/plain" id="plotly">{_plotly()}</script>'] if methods else []),
        *([f"<script>{_own('page.js')}</script>"] if methods else []),
        "</body></html>",
    ]
    return "\n".join(parts) + "\n"


def _body(
    document: Document,
    methods: Sequence[Document],
    styles: Sequence[Look],
    sections: Sections,
    citations: Mapping[str, str],
) -> str:
    single = document["kind"] == "run"
    ends = [("repeat", "How to repeat it"), ("references", "BibTeX")]
    heads = [(f"part-{at}", title) for at, (title, _, _) in enumerate(sections)]
    links = "".join(f'<a href="#{key}">{escape(title)}</a>' for key, title in [("table", "Table"), *heads, *ends])
    parts = [
        '<a class="skip" href="#table">To the table</a>',
        f'<header><p class="kind">{"One run" if single else "A comparison"}</p><h1>{escape(document["title"])}</h1>',
        words.facts(document),
        words.warnings(document),
        "</header><main>",
    ]
    if not methods:
        parts.append('<p class="missing">No run is finished yet: there is nothing to show.</p>')
        parts.append(words.remarks(document))
    else:
        parts += [
            words.verdicts(document, methods, styles),
            f'<nav aria-label="Parts of this page">{links}</nav>',
            f'<section id="table"><h2>{"Figures" if single else "All methods"}</h2>{_table_words(document)}',
            tables.ranking(document, methods, styles),
            words.remarks(document),
            "</section>",
            "<noscript><p class=missing>The figures below need JavaScript; the tables do not.</p></noscript>",
            _legend(methods, styles, single) if len(methods) > 1 else "",
        ]
        for (key, title), (_, said, found) in zip(heads, sections, strict=True):
            parts.append(f'<section id="{key}"><h2>{escape(title)}</h2>')
            parts.append(f"<p>{escape(said)}</p>" if said else "")
            clients = title == "Client by client" and not all(one.missing for one in found)
            if clients:
                parts.append(_finder(document, methods))
            parts.append(f'<div class="figures">{"".join(one.html() for one in _paired(found))}</div>')
            if clients:
                parts.append(tables.clients(document, methods))
            parts.append("</section>")
    parts += [
        f'<section id="repeat"><h2>How to repeat it</h2>{words.repeat(document)}</section>',
        '<section id="references"><h2>BibTeX</h2><p>Of what was run.</p>',
        f"{words.references(document, citations)}</section>",
        f"</main><footer><p>Written by Bespoke {escape(str(document['versions'].get('bespokefl', '')))}.</p></footer>",
    ]
    return "\n".join(part for part in parts if part)


def _paired(found: Sequence[Figure]) -> list[Figure]:
    """A narrow figure without a neighbour becomes wide."""
    listed: list[Figure] = []
    waiting = False  # for a neighbour
    for at, one in enumerate(found):
        narrow = one.half and not one.missing
        if narrow and not waiting:
            follows = at + 1 < len(found) and found[at + 1].half and not found[at + 1].missing
            narrow = waiting = follows
        else:
            waiting = False
        listed.append(replace(one, half=narrow))
    return listed


def _table_words(document: Document) -> str:
    if document["kind"] == "run":
        return ""
    level = f"{document['level']:.2g}".lstrip("0")
    return (
        "<p>Best first. <strong>Tie</strong>: cannot be told from the best by a paired test over clients and seeds "
        f"(Wilcoxon, Holm, level {level}).</p>"
    )


def _legend(methods: Sequence[Document], styles: Sequence[Look], single: bool) -> str:
    buttons = "".join(
        f'<button type="button" data-method="{at}" aria-pressed="false">{tables.name(method, look)}</button>'
        for at, (method, look) in enumerate(zip(methods, styles, strict=True))
    )
    presets = "" if single or len(methods) < 4 else '<span class="presets"></span>'
    return (
        f'<div class="legend scripted" role="group" aria-label="{"Models" if single else "Methods"} shown in the '
        f'figures">{presets}<div class="chips">{buttons}</div></div>'
    )


def _finder(document: Document, methods: Sequence[Document]) -> str:
    options = {str(at): method["name"] for at, method in enumerate(methods) if not method["baseline"]}
    chosen = figures.choice("focus", "Method", options) if document["kind"] == "comparison" and options else ""
    return (
        f'<div class="controls">{chosen}<label class="choice scripted">Find a client <input name="find" list="names" '
        'autocomplete="off" spellcheck="false" placeholder="its name"></label><datalist id="names"></datalist></div>'
        '<p id="found" class="found" aria-live="polite"></p>'
    )


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
def _plotly() -> str:
    try:
        return resources.files("plotly").joinpath("package_data", "plotly.min.js").read_text(encoding="utf-8")
    except (ModuleNotFoundError, FileNotFoundError):
        raise InputError("the figures of a report need plotly, which is not installed; pip install plotly.") from None
