"""The tables of a page: the ranking of the methods, and the scores of every client."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from bespokefl.metrics.metric import metric_of
from bespokefl.metrics.verdict import in_points
from bespokefl.report.constant_predictor import constant_method
from bespokefl.report.document import Document, client_gains, client_scores, oriented
from bespokefl.report.figures import MethodStyle, read_texts

MAX_CLIENT_ROWS = 2000
MISSING = "–"
TAGS = {"best": "best mean", "equal": "equal", "unclear": "too few to tell", "tie": "tie"}
BYTE_UNITS = ("B", "kB", "MB", "GB", "TB")


def ranking(document: Document, methods: Sequence[Document], styles: Sequence[MethodStyle]) -> dict[str, Any]:
    """Return the rows and columns of the ranking, the best method first."""
    score, several, rows = document["score"], len(document["seeds"]) > 1, []
    whiskers = _whiskers([method["figures"] for method in methods], score)
    for method, style, whisker in zip(methods, styles, whiskers, strict=True):
        figures = method["figures"]
        baseline = method["baseline"] or method.get("constant")
        kind = "best" if figures["best"] else "tie" if figures["tie"] else "baseline" if baseline else ""
        tag = TAGS.get(figures.get("relation") or kind, "")  # earlier versions wrote no relation
        about = {key: method[key] for key in ("name", "about", "figures")}
        rows.append(about | {"style": style, "kind": kind, "tag": tag, "whisker": whisker, "cells": {}})
    words = {
        "Score": metric_of(score).title[0].upper() + metric_of(score).title[1:],
        "unit": ", %" if metric_of(score).percent else "",
        "error": " ± standard error over seeds" if several else "; one seed, so no standard error",
        "confidence": f"{100 * (1 - document['level']):.0f}",
        "seeds": " and seeds" if several else "",
    }
    columns = [
        {"key": key, "wide": text.get("wide", False)}
        | {name: text[name].format(**words) for name in ("heading", "meaning")}
        for key, text in read_texts("ranking.toml").items()
        if text.get("only", document["kind"]) == document["kind"]
    ]
    for row in rows:
        row["cells"] = {column["key"]: cell(column["key"], row["figures"], score) for column in columns}
    return {"rows": rows, "columns": columns}


def cell(key: str, figures: Mapping[str, Any], score: str) -> tuple[str, str]:
    """Return the text of a cell of the ranking, and what stands beside it in small type: an error or a p-value."""
    scores, percent = figures[score], metric_of(score).percent
    work, gain = figures.get("work") or {}, figures.get("gain") or {}
    if key == "mean":
        error = "" if scores["sem"] is None else f"± {format_error(scores['sem'], percent)}"
        return format_score(scores["mean"], percent), error
    if key == "interval":
        ends = scores["interval"]
        return (MISSING if ends is None else " to ".join(format_score(end, percent) for end in ends)), ""
    if key == "difference":
        ends, p = figures["difference"], figures["adjusted"]
        text = MISSING if ends is None else " to ".join(format_difference(end, percent) for end in ends)
        return text, "" if ends is None or p is None else format_p(p)
    if key == "gain":
        better, worse = gain.get("improved_share"), gain.get("decreased_share")
        return (MISSING if better is None else f"{better:.0f} / {worse:.0f}"), ""
    if key == "jain":
        jain = ((figures.get("fairness") or {}).get("improved") or {}).get("jain")
        return (MISSING if jain is None else f"{jain:.2f}"), ""
    if key == "steps":
        return (f"{work['steps']:.3g}" if work else MISSING), ""
    if key == "gradients":
        head = f" + {format_amount(work['head_gradients'])}" if work.get("head_gradients") else ""
        return format_amount(work.get("gradients")) + head, ""
    if key == "bytes":
        up, down = figures["up_bytes"], figures["down_bytes"]
        return format_bytes(None if up is None or down is None else up + down), ""
    if key == "seconds":
        return format_duration(figures["seconds"]), ""
    return format_score(scores.get(key), percent), ""


def _whiskers(figures: Sequence[Mapping[str, Any]], score: str) -> list[dict[str, float | None] | None]:
    """Return the positions of the methods' confidence intervals on a scale that all share, in percent of its width."""
    all_scores = [one[score] for one in figures]
    ends = [end for one in all_scores for end in (one["interval"] or [one["mean"]]) if end is not None]
    low, high = (min(ends), max(ends)) if ends else (0.0, 1.0)
    margin = (0.04 * (high - low) or 0.01) if ends else 0.0

    def position(value: float) -> float:
        return 100 * (value - (low - margin)) / ((high + margin) - (low - margin))

    best_mean = next((one[score]["mean"] for one in figures if one["best"]), None)
    best = None if best_mean is None else position(best_mean)
    whiskers: list[dict[str, float | None] | None] = []
    for one in all_scores:
        if one["interval"] is None or one["mean"] is None:
            whiskers.append(None)
            continue
        start, end = map(position, one["interval"])
        whiskers.append({"best": best, "low": start, "width": end - start, "mean": position(one["mean"])})
    return whiskers


def clients(document: Document, methods: Sequence[Document]) -> dict[str, Any]:
    """Return the table of all clients: scores with the baselines and, in a comparison, the best method of each."""
    percent, comparison = metric_of(document["score"]).percent, document["kind"] == "comparison"
    constant = constant_method(document)
    names, groups = document["clients"]["names"], document["clients"]["groups"]
    scores = [client_scores(method, document["score"]) for method in methods]
    gains = [client_gains(method) for method in methods]
    ordered = oriented(scores, document["higher_is_better"])
    best, untested = ordered.argmax(0), np.isneginf(ordered.max(0))
    shown = [at for at, method in enumerate(methods) if method["baseline"] or not comparison]
    headings = ["Client", *(["True group"] if groups is not None else []), "Training examples"]
    headings += [methods[at]["name"] for at in shown] + ([] if constant is None else [constant["name"]])
    level = None if constant is None else client_scores(constant, document["score"])
    headings += ["Best method", "with it", "gain"] if comparison else []
    rows = []
    for client, name in enumerate(names[:MAX_CLIENT_ROWS]):
        cells = [] if groups is None else [str(groups[client])]
        cells += [str(document["clients"]["train"][client])]
        cells += [format_score(float(scores[at][client]), percent) for at in shown]
        cells += [] if level is None else [format_score(float(level[client]), percent)]
        if comparison and untested[client]:
            cells += [MISSING] * 3
        elif comparison:
            winner = best[client]
            gain = gains[winner]
            cells += [methods[winner]["name"], format_score(float(scores[winner][client]), percent)]
            cells.append(format_difference(None if gain is None else float(gain[client]), percent))
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


def format_p(value: float) -> str:
    """Return a p-value with its sign of equality."""
    return "p < .001" if value < 0.001 else f"p = {value:.2g}"


def format_margin(document: Document) -> str:
    """Return the differences that count as equal; earlier versions did not write them."""
    margin = document.get("margin")
    if margin is None:
        return "a margin"
    return f"±{in_points(margin) if metric_of(document['score']).percent else f'{margin:.3g}'}"


def format_difference(value: float | None, percent: bool) -> str:
    """Return a difference of scores with its sign."""
    if value is None or value != value:
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


def format_amount(number: float | None) -> str:
    """Return a large number with three significant digits and k, M, G or T."""
    if number is None:
        return MISSING
    value, unit = float(number), 0
    while value >= 999.5 and unit < 4:
        value, unit = value / 1000, unit + 1
    return f"{value:.3g}{('', ' k', ' M', ' G', ' T')[unit]}"


def format_duration(seconds: float | None) -> str:
    """Return a duration in seconds, minutes or hours."""
    if seconds is None:
        return MISSING
    if seconds < 60:
        return f"{seconds:.2g} s" if seconds < 9.95 else f"{seconds:.0f} s"
    minutes = seconds / 60
    return f"{minutes:.3g} min" if minutes < 90 else f"{minutes / 60:.3g} h"
