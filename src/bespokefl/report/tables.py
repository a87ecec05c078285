"""The tables of a page, in plain HTML: they can be read without scripts, on a phone, and on paper."""

from collections.abc import Callable, Mapping, Sequence
from html import escape
from typing import Any

import numpy as np

from bespokefl.report.figures import gains, scores
from bespokefl.report.source import Document
from bespokefl.report.style import Look

NONE = "–"
MOST_CLIENTS = 2000  # lines of the clients' table
UNITS = ("B", "kB", "MB", "GB", "TB")
Cell = Callable[[Mapping[str, Any]], str]


def short(value: float | None, percent: bool) -> str:
    if value is None:
        return NONE
    return f"{100 * value:.1f}" if percent else f"{value:.4g}"


def error_of(value: float, percent: bool) -> str:
    """With a second decimal where the first would say nothing."""
    return f"{100 * value:.2f}" if percent and value < 0.00095 else short(value, percent)


def size(num_bytes: float | None) -> str:
    if num_bytes is None:
        return NONE
    value, unit = float(num_bytes), 0
    while value >= 999.5 and unit < len(UNITS) - 1:
        value, unit = value / 1000, unit + 1
    return "0" if value == 0 else f"{value:.3g} {UNITS[unit]}"


def duration(seconds: float | None) -> str:
    if seconds is None:
        return NONE
    if seconds < 60:
        return f"{seconds:.2g} s" if seconds < 9.95 else f"{seconds:.0f} s"
    minutes = seconds / 60
    return f"{minutes:.3g} min" if minutes < 90 else f"{minutes / 60:.3g} h"


def name(method: Mapping[str, Any], look: Look) -> str:
    return f'{look.picture()}<span class="name">{escape(method["name"])}</span>'


def ranking(document: Document, methods: Sequence[Document], looks: Sequence[Look]) -> str:
    """The critical table: one line for each method, best first."""
    score, percent, single = document["score"], document["score"] == "accuracy", document["kind"] == "run"
    reach = _reach([method["figures"][score] for method in methods])
    best = next((one["figures"][score]["mean"] for one in methods if one["figures"]["best"]), None)
    several = len(document["seeds"]) > 1

    columns: list[tuple[str, str, Cell]] = [  # heading, what it means, what stands there
        (
            f"{score.capitalize()}{', %' if percent else ''}",
            "mean over clients" + (" ± standard error over seeds" if several else "; one seed, so no standard error"),
            lambda one: _score(one["figures"], score, percent),
        ),
        (
            f"{100 * (1 - document['level']):.0f} % interval",
            "of the mean: clients" + (" and seeds" if several else "") + " drawn anew",
            lambda one: _whisker(one["figures"][score], reach, best, percent),
        ),
        ("SD", "between clients", lambda one: short(one["figures"][score]["std"], percent)),
        (
            "Worst 10 %",
            "mean over the tenth of the clients that fares worst",
            lambda one: short(one["figures"][score]["worst_decile"], percent),
        ),
    ]
    if single:
        columns += [
            ("Worst", "client", lambda one: short(one["figures"][score]["worst"], percent)),
            (
                "Largest 10 %",
                "the clients with most data",
                lambda one: short(one["figures"][score]["largest_decile"], percent),
            ),
            (
                "Smallest 10 %",
                "the clients with least data",
                lambda one: short(one["figures"][score]["smallest_decile"], percent),
            ),
        ]
    else:
        columns.insert(
            2, ("To the best", "interval of the difference; p of the paired test, Holm", _difference(percent))
        )
        columns += [
            (
                "Better / worse off",
                "share of clients with more, with less than the better of Local and FedAvg, in per cent",
                _shares,
            ),
            (
                "Jain",
                "index of how evenly the gains are spread; 1 is even",
                lambda one: _jain(one["figures"]),
            ),
            (
                "Sent",
                "up and down, all clients together, the whole run",
                lambda one: size(_sum(one["figures"]["up_bytes"], one["figures"]["down_bytes"])),
            ),
            ("Time", "of a run, measured", lambda one: duration(one["figures"]["seconds"])),
        ]
    head = "".join(
        f'<th scope="col" role="columnheader"><abbr title="{escape(meaning)}">{escape(heading)}</abbr></th>'
        for heading, meaning, _ in columns
    )
    lines = []
    for method, look in zip(methods, looks, strict=True):
        figures = method["figures"]
        kind = "best" if figures["best"] else "tie" if figures["tie"] else "baseline" if method["baseline"] else ""
        mark = '<span class="tag">best</span>' if figures["best"] else ""
        mark = mark or ('<span class="tag">tie</span>' if figures["tie"] else "")
        about = f' title="{escape(str(method["about"]))}"' if method["about"] else ""
        cells = "".join(
            f'<td role="cell" data-head="{escape(heading)}"{_wider(heading)}>{cell(method)}</td>'
            for heading, _, cell in columns
        )
        lines.append(
            f'<tr role="row" class="{kind}"><th scope="row" role="rowheader"{about}>{name(method, look)}{mark}</th>'
            f"{cells}</tr>"
        )
    meanings = "".join(
        f"<div><dt>{escape(heading)}</dt><dd>{escape(meaning)}</dd></div>" for heading, meaning, _ in columns
    )
    return (
        f'<table class="ranking" role="table"><thead role="rowgroup"><tr role="row"><th scope="col" '
        f'role="columnheader">{"Model" if single else "Method"}</th>{head}</tr></thead>'
        f'<tbody role="rowgroup">{"".join(lines)}</tbody></table>'
        f'<details class="meanings"><summary>What the columns mean</summary><dl>{meanings}</dl></details>'
    )


def _wider(heading: str) -> str:
    """Columns that need more room where the table is narrow."""
    return ' class="wider"' if heading.endswith("interval") or heading in ("To the best", "Better / worse off") else ""


def _score(figures: Mapping[str, Any], score: str, percent: bool) -> str:
    found = figures[score]
    error = "" if found["sem"] is None else f' <span class="sem">± {error_of(found["sem"], percent)}</span>'
    return f'<span class="mean">{short(found["mean"], percent)}</span>{error}'


def _reach(figures: Sequence[Mapping[str, Any]]) -> tuple[float, float]:
    """From where to where the intervals go."""
    ends = [end for one in figures for end in (one["interval"] or [one["mean"]]) if end is not None]
    if not ends:
        return 0.0, 1.0
    low, high = min(ends), max(ends)
    room = 0.04 * (high - low) or 0.01
    return low - room, high + room


def _whisker(found: Mapping[str, Any], reach: tuple[float, float], best: float | None, percent: bool) -> str:
    if found["interval"] is None or found["mean"] is None:
        return NONE
    low, high = found["interval"]

    def at(value: float) -> float:
        return 100 * (value - reach[0]) / (reach[1] - reach[0])

    line = "" if best is None else f'<i class="line" style="left:{at(best):.1f}%"></i>'
    return (
        f'<span class="range">{short(low, percent)} to {short(high, percent)}</span>'
        f'<span class="whisker" aria-hidden="true">{line}<i class="span" style="left:{at(low):.1f}%;'
        f'width:{at(high) - at(low):.1f}%"></i><i class="dot" style="left:{at(found["mean"]):.1f}%"></i></span>'
    )


def _difference(percent: bool) -> Cell:
    def cell(method: Mapping[str, Any]) -> str:
        figures = method["figures"]
        if figures["difference"] is None:
            return NONE
        low, high = (f"{100 * end:+.1f}" if percent else f"{end:+.3g}" for end in figures["difference"])
        p = figures["adjusted"]
        said = "" if p is None else f' <span class="p">{"p &lt; .001" if p < 0.001 else f"p = {p:.2g}"}</span>'
        return f'<span class="range">{low} to {high}</span>{said}'.replace("-", "−")

    return cell


def _shares(method: Mapping[str, Any]) -> str:
    gain = method["figures"]["gain"]
    if gain is None or gain["improved_share"] is None:
        return NONE
    better, worse = gain["improved_share"], gain["decreased_share"]
    return (
        f"{better:.0f} / {worse:.0f}"
        f'<span class="shares" aria-hidden="true"><i class="better" style="width:{better:.1f}%"></i>'
        f'<i class="same" style="width:{max(0.0, 100 - better - worse):.1f}%"></i>'
        f'<i class="worse" style="width:{worse:.1f}%"></i></span>'
    )


def _jain(figures: Mapping[str, Any]) -> str:
    found = ((figures.get("fairness") or {}).get("improved") or {}).get("jain")
    return NONE if found is None else f"{found:.2f}"


def _sum(*values: float | None) -> float | None:
    return None if any(one is None for one in values) else sum(one for one in values if one is not None)


def clients(document: Document, methods: Sequence[Document]) -> str:
    """Every client: what it has without a method, and what serves it best."""
    score, percent = document["score"], document["score"] == "accuracy"
    sign = 1.0 if document["higher_is_better"] else -1.0
    names, train = document["clients"]["names"], document["clients"]["train"]
    groups = document["clients"]["groups"]
    found = {method["name"]: scores(method, score) for method in methods}
    stacked = np.stack([sign * one for one in found.values()])
    filled = np.where(np.isnan(stacked), -np.inf, stacked)
    first, blank = filled.argmax(0), np.isneginf(filled.max(0))
    shown = [method["name"] for method in methods if method["baseline"]]
    if document["kind"] == "run":
        shown = [method["name"] for method in methods]
    heads = ["Client", *(["True group"] if groups is not None else []), "Training examples", *shown]
    if document["kind"] == "comparison":
        heads += ["Best served by", "with", "gain"]
    measured = {method["name"]: gains(method) for method in methods}
    labels = [method["name"] for method in methods]
    lines = []
    for at, client in enumerate(names[:MOST_CLIENTS]):
        cells = [f"{train[at]}"] + [_one(found[one][at], percent) for one in shown]
        if groups is not None:
            cells.insert(0, escape(str(groups[at])))
        if document["kind"] == "comparison":
            best = labels[first[at]]
            gain = measured[best]
            cells += (
                [NONE] * 3
                if blank[at]
                else [
                    escape(best),
                    _one(found[best][at], percent),
                    NONE if gain is None else _signed(gain[at], percent),
                ]
            )
        lines.append(f'<tr><th scope="row">{escape(client)}</th>{"".join(f"<td>{one}</td>" for one in cells)}</tr>')
    head = "".join(f'<th scope="col">{escape(one)}</th>' for one in heads)
    rest = len(names) - MOST_CLIENTS
    more = f"<p>The first {MOST_CLIENTS} of {len(names)} clients; clients.csv has them all.</p>" if rest > 0 else ""
    whom = "The only client" if len(names) == 1 else f"All {len(names)} clients"
    return (
        f'<details id="clients"><summary>{whom} as a table</summary>{more}<div class="wide" '
        f'tabindex="0" role="region" aria-label="All clients"><table class="plain"><thead><tr>{head}</tr></thead>'
        f"<tbody>{''.join(lines)}</tbody></table></div></details>"
    )


def _one(value: float, percent: bool) -> str:
    return NONE if np.isnan(value) else short(float(value), percent)


def _signed(value: float, percent: bool) -> str:
    if np.isnan(value):
        return NONE
    return (f"{100 * value:+.1f}" if percent else f"{value:+.3g}").replace("-", "−")
