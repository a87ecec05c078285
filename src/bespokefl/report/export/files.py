"""Write a report in several formats."""

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from bespokefl.core.errors import InputError, unknown
from bespokefl.core.system.files import write_bytes, write_text
from bespokefl.report import diagnosis, figures, page
from bespokefl.report.document import read_document
from bespokefl.report.export import drawing
from bespokefl.report.export.csv_tables import csv_tables, csv_text
from bespokefl.report.export.figure_rows import figure_rows
from bespokefl.report.export.latex import latex
from bespokefl.report.export.markdown import markdown
from bespokefl.report.export.text_tables import state
from bespokefl.report.figures import Figure
from bespokefl.report.page import Contents, contents

HTML, LATEX, MARKDOWN, CSV = FORMATS = ("html", "latex", "markdown", "csv")
FILE_NAMES = {HTML: page.FILE_NAME, LATEX: "report.tex", MARKDOWN: "report.md"}  # formats of one file
PICTURES = ("svg", "pdf", "png")
PREFERRED = {LATEX: ("pdf", "png"), MARKDOWN: ("svg", "png")}  # pictures that a format can show
DIRECTORY, REFERENCES, DESCRIPTION = "report", "references.bib", "methods.txt"


def export(
    source: str | os.PathLike[str],
    target: str | os.PathLike[str] | None = None,
    *,
    formats: Sequence[str] = (HTML,),
    pictures: Sequence[str] = (),
    citations: Mapping[str, str] | None = None,
) -> list[Path]:
    """Write a report in some formats, and its figures as pictures with their numbers.

    Parameters
    ----------
    source : path
        The directory of a comparison or a run; of a diagnosis, for HTML only.
    target : path, optional
        The file, if there is one: for "html", "latex" or "markdown" without pictures. A directory otherwise. Default:
        report.html, report.tex or report.md in the source, and the directory "report" there for several files.
    formats : sequence of {"html", "latex", "markdown", "csv"}
    pictures : sequence of {"svg", "pdf", "png"}
        Write every figure in these formats, with a CSV file of its numbers. They need matplotlib.
    citations : mapping of str to str, optional
        BibTeX entries by method, for a run, whose directory contains none.

    Returns
    -------
    list of Path
        The files that were written.

    Raises
    ------
    InputError
        If a format is unknown, matplotlib is missing, or the source is no comparison or run.
    """
    for what, given, known in (("--format", formats, FORMATS), ("--figures", pictures, PICTURES)):
        for one in given:
            if one not in known:
                raise unknown(what, str(one), known)
    if pictures:
        drawing.check_matplotlib()
    path = Path(source)
    if tuple(formats) == (HTML,) and not pictures:
        return [page.write(path, None if target is None else Path(target), citations=citations)]
    if path.name == diagnosis.SOURCE_NAME or (path / diagnosis.SOURCE_NAME).is_file():
        raise InputError("a diagnosis has an HTML page only; leave out --format and --figures.")
    found = contents(read_document(path), citations or {})
    single = len(formats) == 1 and formats[0] in FILE_NAMES and not pictures
    folder = path if path.is_dir() else path.parent
    if single:
        name = FILE_NAMES[formats[0]]
        output = folder / name if target is None else Path(target)
        return _Writer(found, output.parent if not output.is_dir() else output).write(
            formats, (), output.name if not output.is_dir() else name
        )
    return _Writer(found, folder / DIRECTORY if target is None else Path(target)).write(formats, pictures)


class _Writer:
    """Writes the files of one report into a directory."""

    def __init__(self, found: Contents, directory: Path) -> None:
        self.found, self.directory = found, directory
        self.slugs = [_slug(one["name"]) for one in found.drawn]
        if len(set(self.slugs)) < len(self.slugs):
            self.slugs = [f"{slug}-{at}" for at, slug in enumerate(self.slugs, start=1)]
        self.written: list[Path] = []

    def write(self, formats: Sequence[str], pictures: Sequence[str], name: str = "") -> list[Path]:
        """Write all files; `name` is that of the only one."""
        files = self._figures(pictures, numbers=bool(pictures) or CSV in formats)
        for one in formats:
            shown = self._shown(files, pictures, PREFERRED.get(one, ()))
            if one == HTML:
                self._text(name or FILE_NAMES[one], page.comparison_html(self.found))
            elif one == MARKDOWN:
                self._text(name or FILE_NAMES[one], markdown(self.found, shown))
            elif one == LATEX:
                if not name and self.found.bibtex:
                    self._text(REFERENCES, self.found.bibtex + "\n")
                self._text(name or FILE_NAMES[one], latex(self.found, shown, "" if name else REFERENCES))
            else:
                self._tables()
        return self.written

    def _tables(self) -> None:
        for name, rows in csv_tables(self.found).items():
            self._text(f"table-{name}.csv", csv_text(rows, self.found))
        if self.found.document.get("description"):
            self._text(DESCRIPTION, self.found.document["description"] + "\n")

    def _figures(self, pictures: Sequence[str], numbers: bool) -> list[tuple[Figure, str]]:
        """Write the figures and their numbers; returns each with its file's name, without the ending."""
        found, written = self.found, []
        if not numbers or not found.numbers:
            return []
        fractions = figures.page_numbers(found.document, found.drawn, found.drawn_styles, fractions=True)
        curves = {one["name"]: one["client_curves"] for one in found.methods if one.get("client_curves")}
        for figure in (one for section in found.sections for one in section.figures if not one.missing):
            stem = f"figure-{self._stem(figure)}"
            self._text(f"{stem}.csv", csv_text(figure_rows(figure, fractions, curves), found))
            for kind, content in drawing.draw(figure, found.numbers, pictures, state(found).strip(" .")).items():
                self._add(f"{stem}.{kind}")
                write_bytes(self.directory / f"{stem}.{kind}", content)
            written.append((figure, stem))
        return written

    def _stem(self, figure: Figure) -> str:
        """Return the name of a figure's files, with the names of methods instead of numbers."""
        if figure.kind == "scatter":
            return f"against-{self.slugs[figure.data['reference']]}"
        return re.sub(r"^m(\d+)-", lambda match: f"{self.slugs[int(match[1])]}-", figure.key)

    def _shown(
        self, files: Sequence[tuple[Figure, str]], pictures: Sequence[str], preferred: Sequence[str]
    ) -> list[tuple[Figure, Path]]:
        kind = next((one for one in preferred if one in pictures), None)
        return [] if kind is None else [(figure, self.directory / f"{stem}.{kind}") for figure, stem in files]

    def _text(self, name: str, text: str) -> None:
        self._add(name)
        write_text(self.directory / name, text)

    def _add(self, name: str) -> None:
        self.written.append(self.directory / name)


def _slug(name: str) -> str:
    """Return a name as part of a file's name, which LaTeX and web pages accept."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-") or "method"
