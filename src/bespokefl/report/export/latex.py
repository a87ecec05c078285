"""A report as LaTeX, to be included in a paper: a methods paragraph, booktabs tables and figures."""

from collections.abc import Sequence
from pathlib import Path

from bespokefl.report.export.text_tables import TextTable, text_tables
from bespokefl.report.figures import Figure
from bespokefl.report.page import Contents

PACKAGES = "\\usepackage{booktabs,tabularx,graphicx}"
SYMBOLS = {
    "\\": r"\textbackslash{}",
    "{": r"\{",
    "}": r"\}",
    "$": r"\$",
    "&": r"\&",
    "#": r"\#",
    "%": r"\%",
    "_": r"\_",
    "^": r"\textasciicircum{}",
    "~": r"\textasciitilde{}",
    "<": "$<$",
    ">": "$>$",
    "|": "$|$",
    '"': "''",
    "−": "$-$",
    "±": r"$\pm$",
    "×": r"$\times$",
    "–": "--",
    "—": "---",
    "…": r"\dots{}",
    "·": r"$\cdot$",
    "≤": r"$\leq$",
    "≥": r"$\geq$",
    "²": r"\textsuperscript{2}",
    "∞": r"$\infty$",
    "→": r"$\to$",
    "‖": r"$\|$",
    "α": r"$\alpha$",
    "β": r"$\beta$",
    "γ": r"$\gamma$",
    "δ": r"$\delta$",
    "ε": r"$\varepsilon$",
    "λ": r"$\lambda$",
    "μ": r"$\mu$",
    "ρ": r"$\rho$",
    "σ": r"$\sigma$",
    "Σ": r"$\Sigma$",
    "τ": r"$\tau$",
    "ℓ": r"$\ell$",
    "★": r"$\star$",
    "⁺": r"\textsuperscript{+}",
    "ᵢ": r"\textsubscript{i}",
}


def latex(found: Contents, pictures: Sequence[tuple[Figure, Path]], references: str) -> str:
    """Return the file; `pictures` are the figures and their files, and `references` the name of the BibTeX file."""
    document = found.document
    lines = [f"% {' '.join(str(document['title']).split())}", f"% In the preamble: {PACKAGES}"]
    lines += [f"% References: {references}"] if references else []
    lines += [f"% {word or 'Note'}: {' '.join(sentence.split())}" for word, sentence in found.warnings]
    for word, sentence in found.warnings:
        lines += ["", f"\\paragraph{{{word or 'Note'}.}} {escape(sentence[:1].upper() + sentence[1:])}"]
    if document.get("description"):
        lines += ["", f"\\paragraph{{Methods.}} {escape(document['description'])}"]
    if found.cards:
        lines += ["", f"\\paragraph{{Results.}} {escape(' '.join(card.sentence for card in found.cards))}"]
    for table in text_tables(found, narrow=True):
        lines += ["", *_table(table)]
    if found.ranking is None:
        lines += ["", "No run is finished yet."]
    for figure, path in pictures:
        width = "0.6" if figure.half else ""
        lines += [
            "",
            "\\begin{figure}[htbp]",
            "  \\centering",
            f"  \\includegraphics[width={width}\\linewidth]{{{path.name}}}",
            f"  \\caption{{{escape(f'{figure.title}. {figure.caption}')}}}",
            f"  \\label{{fig:{path.stem.removeprefix('figure-')}}}",
            "\\end{figure}",
        ]
    return "\n".join([*lines, ""])


def _table(table: TextTable) -> list[str]:
    wide = table.key == "hyperparameters"  # long texts, which are wrapped
    columns = (
        "l>{\\raggedright\\arraybackslash}X>{\\raggedright\\arraybackslash}X"
        if wide
        else "l" + "r" * (len(table.headings) - 1)
    )
    begin, end = ("tabularx}{\\linewidth", "tabularx") if wide else ("tabular", "tabular")
    rows = []
    for at, row in enumerate(table.rows):
        cells = [escape(text) for text in row]
        if at in table.bold:
            cells[:2] = [f"\\textbf{{{text}}}" for text in cells[:2]]
        rows.append(f"    {' & '.join(cells)} \\\\")
    return [
        "\\begin{table}[htbp]",
        "  \\centering\\footnotesize\\setlength{\\tabcolsep}{2.5pt}",
        f"  \\caption{{{escape(table.caption)}}}",
        f"  \\label{{tab:{table.key}}}",
        f"  \\begin{{{begin}}}{{{columns}}}",
        "    \\toprule",
        f"    {' & '.join(map(escape, table.headings))} \\\\",
        "    \\midrule",
        *rows,
        "    \\bottomrule",
        f"  \\end{{{end}}}",
        "\\end{table}",
    ]


def escape(text: str) -> str:
    """Escape everything that LaTeX interprets; symbols that pdfLaTeX lacks become mathematics."""
    return "".join(SYMBOLS.get(one, one) for one in " ".join(str(text).split()))
