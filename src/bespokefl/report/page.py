"""Write the page of a comparison, a run or a diagnosis."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bespokefl.core.system.files import write_text
from bespokefl.report import diagnosis, figures, method_figures, overview, tables
from bespokefl.report.constant_predictor import constant_method
from bespokefl.report.document import Document, finished_runs, read_document
from bespokefl.report.figures import MethodStyle, Section, assign_styles
from bespokefl.report.rendering import render

FILE_NAME = "report.html"


def write(
    source: str | os.PathLike[str],
    target: str | os.PathLike[str] | None = None,
    *,
    citations: Mapping[str, str] | None = None,
) -> Path:
    """Write the page of a comparison, a run or a diagnosis.

    Parameters
    ----------
    source : path
        The directory of a comparison, a run or a diagnosis, or its compare.json or diagnosis.json.
    target : path, optional
        The file to write. Default: report.html in the same directory, diagnosis.html for a diagnosis.
    citations : mapping of str to str, optional
        BibTeX entries by method, for a run, whose directory contains none.

    Returns
    -------
    Path
        The file that was written.
    """
    path = Path(source)
    directory = path if path.is_dir() else path.parent
    if path.name == diagnosis.SOURCE_NAME or (path / diagnosis.SOURCE_NAME).is_file():
        name, page = diagnosis.FILE_NAME, diagnosis.html(diagnosis.read(directory / diagnosis.SOURCE_NAME))
    else:
        name, page = FILE_NAME, comparison_html(contents(read_document(path), citations or {}))
    output = directory / name if target is None else Path(target)
    write_text(output, page)
    return output


@dataclass(frozen=True)
class Contents:
    """What a report of a comparison, or of a run in the form of one, consists of; in every format."""

    document: Document
    methods: Sequence[Document]  # those that can be shown, best first
    styles: Sequence[MethodStyle]
    drawn: Sequence[Document]  # the same, and the constant predictor
    drawn_styles: Sequence[MethodStyle]
    numbers: Mapping[str, Any]  # of the figures; empty without methods
    sections: Sequence[Section]
    ranking: Mapping[str, Any] | None
    warnings: Sequence[tuple[str, str]]
    cards: Sequence[overview.Card]
    bibtex: str

    @property
    def single(self) -> bool:
        """Whether this is a single run."""
        return bool(self.document["kind"] == "run")


def contents(document: Document, citations: Mapping[str, str]) -> Contents:
    """Return the contents of a report."""
    methods = sorted(
        (one for one in document["methods"] if one["figures"] is not None and finished_runs(one)),
        key=lambda one: one["figures"]["rank"],
    )
    styles = assign_styles([bool(one["baseline"]) for one in methods])
    constant = constant_method(document)
    drawn = methods if constant is None or not methods else [*methods, constant]
    drawn_styles = [*styles, figures.CONSTANT_STYLE][: len(drawn)]
    numbers = figures.page_numbers(document, drawn, drawn_styles) if methods else {}
    sections = []
    if methods:
        sections = figures.general_sections(document, numbers) + method_figures.sections(document, methods)
        numbers["parts"] = {one.key: one.data for section in sections for one in section.figures if one.data}
    return Contents(
        document,
        methods,
        styles,
        drawn,
        drawn_styles,
        numbers,
        sections,
        ranking=tables.ranking(document, drawn, drawn_styles) if methods else None,
        warnings=overview.warnings(document),
        cards=overview.verdict_cards(document, methods, styles),
        bibtex=overview.bibtex(document, citations),
    )


def comparison_html(found: Contents) -> str:
    """Return the page of a comparison, or of a run in the form of one."""
    document, methods = found.document, found.methods
    focus = {str(at): one["name"] for at, one in enumerate(methods) if not one["baseline"]}
    return render(
        "comparison.html",
        document["title"],
        found.numbers,
        document=document,
        has_figures=bool(methods),
        single=found.single,
        styles=found.styles,
        sections=found.sections,
        warnings=found.warnings,
        tuning_state=overview.tuning_state(document),
        cards=found.cards,
        level=f"{document['level']:.2g}".lstrip("0"),
        margin=tables.format_margin(document),
        ranking_table=found.ranking,
        focus=figures.Control("select", "focus", "Method", focus) if focus and not found.single else None,
        clients=tables.clients(document, methods) if methods else None,
        bibtex=found.bibtex,
    )
