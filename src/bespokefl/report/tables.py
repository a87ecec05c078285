"""The tables of a page: the ranking of the methods, and the scores of every client."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from bespokefl.report.document import Document
from bespokefl.report.formatting import (
    MISSING,
    format_bytes,
    format_difference,
    format_duration,
    format_error,
    format_score,
)
from bespokefl.report.method_style import MethodStyle
from bespokefl.report.scores import client_gains, client_scores, oriented

MAX_CLIENT_ROWS = 2000


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
    score, percent = document["score"], document["score"] == "accuracy"
    several = len(document["seeds"]) > 1
    whisker = _whiskers(figures, score, percent)

    def column(heading: str, meaning: str, cell: Callable[[Mapping[str, Any]], Cell], wide: bool = False) -> Column:
        return Column(heading, meaning, [cell(one) for one in figures], wide)

    def statistic(heading: str, meaning: str, key: str) -> Column:
        return column(heading, meaning, lambda one: Cell(format_score(one[score][key], percent)))

    mean = column(
        f"{score.capitalize()}{', %' if percent else ''}",
        "mean over clients" + (" ± standard error over seeds" if several else "; one seed, so no standard error"),
        lambda one: _mean(one[score], percent),
    )
    interval = column(
        f"{100 * (1 - document['level']):.0f} % interval",
        "bootstrap interval of the mean, resampling clients" + (" and seeds" if several else ""),
        whisker,
        wide=True,
    )
    spread = [
        statistic("SD", "standard deviation between clients", "std"),
        statistic("Worst 10 %", "mean of the worst 10 % of the clients", "worst_decile"),
    ]
    if document["kind"] == "run":
        deciles = [
            statistic("Worst", "score of the worst client", "worst"),
            statistic("Largest 10 %", "mean of the 10 % of the clients with the most data", "largest_decile"),
            statistic("Smallest 10 %", "mean of the 10 % of the clients with the least data", "smallest_decile"),
        ]
        return [mean, interval, *spread, *deciles]
    difference = column(
        "Difference",
        "interval of the difference from the best method, and p-value of the paired test with Holm's correction",
        lambda one: _difference(one, percent),
        wide=True,
    )
    gains = [
        column(
            "Better / worse off",
            "percentage of clients that do better, and worse, than with the better of Local and FedAvg",
            _shares,
            wide=True,
        ),
        column("Jain", "Jain's index of how evenly the gains are distributed; 1 is even", _jain),
    ]
    costs = [
        column("Sent", "bytes sent up and down by all clients during the run", _bytes_sent),
        column("Time", "measured time of a run", lambda one: Cell(format_duration(one["seconds"]))),
    ]
    return [mean, interval, difference, *spread, *gains, *costs]


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
