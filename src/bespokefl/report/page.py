"""The page of a comparison or a run: verdicts, tables, figures, and how to repeat it, in one file."""

import os
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from bespokefl.core.files import write_text
from bespokefl.report import diagnosis, figures, inside, tables, words
from bespokefl.report.figures import Figure
from bespokefl.report.frame import framed
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
    """Write the page of a comparison, a run or a diagnosis, and tell where it is.

    target       the file to write; report.html in the same folder if not given, diagnosis.html for a diagnosis
    citations    BibTeX by method, for a run, which has none on disk
    """
    origin = Path(source)
    if diagnosis.is_one(origin):
        return diagnosis.write(origin, target)
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
    body = _body(document, methods, styles, sections, citations)
    return framed(document["title"], body, drawn, drawn=bool(methods))


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
            parts.append(f'<div class="figures">{"".join(one.html() for one in figures.paired(found))}</div>')
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
