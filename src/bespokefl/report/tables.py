"""The tables of a page: the ranking of the methods, and the scores of every client."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from bespokefl.report.document import Document, client_gains, client_scores, oriented
from bespokefl.report.figures import MethodStyle, read_texts

MAX_CLIENT_ROWS = 2000
MISSING = "–"
BYTE_UNITS = ("B", "kB", "MB", "GB", "TB")


@dataclass(frozen=True)
class Cell:
    """A cell of the ranking: text, optionally followed by a note and a small drawing."""

    text: str
    style: str = ""  # CSS class of the text
    note: str = ""
    note_style: str = ""
    whisker: Mapping[str, str | None] | None = None  # positions in percent of the width
    shares: tuple[float, float] | None = None  # percentages of clients that are better and worse off


@dataclass(frozen=True)
class Column:
    """A column of the ranking, one cell for each method."""

    heading: str
    meaning: str
    cells: list[Cell]
    wide: bool = False  # needs more room where the table is narrow


def ranking(document: Document, methods: Sequence[Document], styles: Sequence[MethodStyle]) -> dict[str, Any]:
    """Return the rows and columns of the ranking, the best method first."""
    rows = []
    for method, style in zip(methods, styles, strict=True):
        figures = method["figures"]
        kind = "best" if figures["best"] else "tie" if figures["tie"] else "baseline" if method["baseline"] else ""
        rows.append({"name": method["name"], "style": style, "about": method["about"], "kind": kind})
    return {"rows": rows, "columns": _columns(document, [method["figures"] for method in methods])}


def _columns(document: Document, figures: Sequence[Mapping[str, Any]]) -> list[Column]:
    score, percent, several = document["score"], document["score"] == "accuracy", len(document["seeds"]) > 1
    cells: dict[str, Callable[[Mapping[str, Any]], Cell]] = {
        "mean": lambda one: _mean(one[score], percent),
        "interval": _whiskers(figures, score, percent),
        "difference": lambda one: _difference(one, percent),
        "gain": _shares,
        "jain": _jain,
        "bytes": _bytes_sent,
        "seconds": lambda one: Cell(format_duration(one["seconds"])),
    }
    words = {
        "Score": score.capitalize(),
        "unit": ", %" if percent else "",
        "error": " ± standard error over seeds" if several else "; one seed, so no standard error",
        "confidence": f"{100 * (1 - document['level']):.0f}",
        "seeds": " and seeds" if several else "",
    }
    columns = []
    for key, text in read_texts("ranking.toml").items():
        if text.get("only", document["kind"]) == document["kind"]:
            cell = cells.get(key, lambda one, key=key: Cell(format_score(one[score][key], percent)))
            heading, meaning = (text[name].format(**words) for name in ("heading", "meaning"))
            columns.append(Column(heading, meaning, [cell(one) for one in figures], text.get("wide", False)))
    return columns


def _mean(statistics: Mapping[str, Any], percent: bool) -> Cell:
    error = "" if statistics["sem"] is None else f"± {format_error(statistics['sem'], percent)}"
    return Cell(format_score(statistics["mean"], percent), "mean", error, "sem")


def _whiskers(figures: Sequence[Mapping[str, Any]], score: str, percent: bool) -> Callable[[Mapping[str, Any]], Cell]:
    """Return a function that draws a confidence interval on a scale that all methods share."""
    ends = [end for one in figures for end in (one[score]["interval"] or [one[score]["mean"]]) if end is not None]
    low, high = (min(ends), max(ends)) if ends else (0.0, 1.0)
    margin = (0.04 * (high - low) or 0.01) if ends else 0.0
    low, high = low - margin, high + margin
    best = next((one[score]["mean"] for one in figures if one["best"]), None)

    def position(value: float) -> float:
        return 100 * (value - low) / (high - low)

    def cell(one: Mapping[str, Any]) -> Cell:
        mean, interval = one[score]["mean"], one[score]["interval"]
        if interval is None or mean is None:
            return Cell(MISSING)
        start, end = map(position, interval)
        whisker = {
            "best": None if best is None else f"{position(best):.1f}",
            "low": f"{start:.1f}",
            "width": f"{end - start:.1f}",
            "mean": f"{position(mean):.1f}",
        }
        text = " to ".join(format_score(value, percent) for value in interval)
        return Cell(text, "range", whisker=whisker)

    return cell


def _difference(figures: Mapping[str, Any], percent: bool) -> Cell:
    if figures["difference"] is None:
        return Cell(MISSING)
    p = figures["adjusted"]
    note = "" if p is None else "p < .001" if p < 0.001 else f"p = {p:.2g}".replace("-", "−")
    text = " to ".join(format_difference(end, percent) for end in figures["difference"])
    return Cell(text, "range", note, "p")


def _shares(figures: Mapping[str, Any]) -> Cell:
    gain = figures["gain"]
    if gain is None or gain["improved_share"] is None:
        return Cell(MISSING)
    better, worse = gain["improved_share"], gain["decreased_share"]
    return Cell(f"{better:.0f} / {worse:.0f}", shares=(better, worse))


def _jain(figures: Mapping[str, Any]) -> Cell:
    index = ((figures.get("fairness") or {}).get("improved") or {}).get("jain")
    return Cell(MISSING if index is None else f"{index:.2f}")


def _bytes_sent(figures: Mapping[str, Any]) -> Cell:
    up, down = figures["up_bytes"], figures["down_bytes"]
    return Cell(format_bytes(None if up is None or down is None else up + down))


def clients(document: Document, methods: Sequence[Document]) -> dict[str, Any]:
    """Return the table of all clients: scores with the baselines and, in a comparison, the best method of each."""
    percent, comparison = document["score"] == "accuracy", document["kind"] == "comparison"
    names, groups = document["clients"]["names"], document["clients"]["groups"]
    scores = [client_scores(method, document["score"]) for method in methods]
    gains = [client_gains(method) for method in methods]
    ordered = oriented(scores, document["higher_is_better"])
    best, untested = ordered.argmax(0), np.isneginf(ordered.max(0))
    shown = [at for at, method in enumerate(methods) if method["baseline"] or not comparison]
    headings = ["Client", *(["True group"] if groups is not None else []), "Training examples"]
    headings += [methods[at]["name"] for at in shown]
    headings += ["Best method", "with it", "gain"] if comparison else []
    rows = []
    for client, name in enumerate(names[:MAX_CLIENT_ROWS]):
        cells = [] if groups is None else [str(groups[client])]
        cells += [str(document["clients"]["train"][client])]
        cells += [format_score(float(scores[at][client]), percent) for at in shown]
        if comparison and untested[client]:
            cells += [MISSING] * 3
        elif comparison:
            winner = best[client]
            gain = gains[winner]
            cells += [methods[winner]["name"], format_score(float(scores[winner][client]), percent)]
            cells.append(MISSING if gain is None else format_difference(float(gain[client]), percent))
        rows.append((name, cells))
    return {"headings": headings, "rows": rows, "num_clients": len(names)}


# -- How numbers are printed


def format_score(value: float | None, percent: bool) -> str:
    """Return a score in percent with one decimal, or with four significant digits."""
    if value is None or value != value:
        return MISSING
    return f"{100 * value:.1f}" if percent else f"{value:.4g}"


def format_error(value: float, percent: bool) -> str:
    """Return a standard error like a score, with a second decimal where the first would be zero."""
    return f"{100 * value:.2f}" if percent and value < 0.00095 else format_score(value, percent)


def format_difference(value: float, percent: bool) -> str:
    """Return a difference of scores with its sign."""
    if value != value:
        return MISSING
    return (f"{100 * value:+.1f}" if percent else f"{value:+.3g}").replace("-", "−")


def format_bytes(num_bytes: float | None) -> str:
    """Return a number of bytes with three significant digits and a unit."""
    if num_bytes is None:
        return MISSING
    value, unit = float(num_bytes), 0
    while value >= 999.5 and unit < len(BYTE_UNITS) - 1:
        value, unit = value / 1000, unit + 1
    return "0" if value == 0 else f"{value:.3g} {BYTE_UNITS[unit]}"


def format_duration(seconds: float | None) -> str:
    """Return a duration in seconds, minutes or hours."""
    if seconds is None:
        return MISSING
    if seconds < 60:
        return f"{seconds:.2g} s" if seconds < 9.95 else f"{seconds:.0f} s"
    minutes = seconds / 60
    return f"{minutes:.3g} min" if minutes < 90 else f"{minutes / 60:.3g} h"
