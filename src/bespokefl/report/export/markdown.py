"""A report as Markdown, with tables as GitHub renders them."""

import re
from collections.abc import Sequence
from pathlib import Path

from bespokefl.report.export.text_tables import TextTable, text_tables
from bespokefl.report.figures import Figure
from bespokefl.report.page import Contents


def markdown(found: Contents, pictures: Sequence[tuple[Figure, Path]]) -> str:
    """Return the file; `pictures` are the figures and their files, beside it."""
    document = found.document
    lines = [f"# {_escape(document['title'])}", ""]
    for word, sentence in found.warnings:
        lines += [f"> {f'**{word}:** ' if word else ''}{_escape(sentence)}", ""]
    if document.get("description"):
        lines += ["## Methods", "", _escape(document["description"]), ""]
    lines += ["## Results", ""]
    lines += [
        part
        for card in found.cards
        for part in (f"**{card.title}: {_escape(card.winner)}.** {_escape(card.sentence)}", "")
    ]
    for table in text_tables(found):
        lines += [*_table(table), "", f"*{_escape(table.caption)}*", ""]
    if found.ranking is None:
        lines += ["No run is finished yet.", ""]
    lines += [*(f"- {_escape(note)}" for note in document["notes"]), ""] if document["notes"] else []
    if pictures:
        lines += ["## Figures", ""]
    for figure, path in pictures:
        lines += [
            f"![{_escape(figure.title)}]({path.name})",
            "",
            f"*{_escape(f'{figure.title}. {figure.caption}')}*",
            "",
        ]
    if found.bibtex:
        lines += ["## References", "", "```bibtex", found.bibtex, "```", ""]
    return "\n".join(lines)


def _table(table: TextTable) -> list[str]:
    lines = [_row(table.headings), "|" + "|".join([":---", *["---:"] * (len(table.headings) - 1)]) + "|"]
    for at, row in enumerate(table.rows):
        cells = [_escape(text) for text in row]
        if at in table.bold:
            cells[:2] = [f"**{text}**" for text in cells[:2]]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(map(_escape, cells))} |"


def _escape(text: str) -> str:
    """Escape what Markdown interprets; line breaks would end a table."""
    return re.sub(r"([\\`*_\[\]<>|~#])", r"\\\1", " ".join(str(text).split()))
