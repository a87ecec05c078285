"""The tables of a report as text: the results, their cost, and the hyper-parameters."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from bespokefl.core.errors import count
from bespokefl.metrics.metric import metric_of
from bespokefl.report import tables
from bespokefl.report.page import Contents

MARKS = {"best": "*", "equal": "=", "unclear": "?", "tie": "="}  # as in the terminal
COST = ("steps", "gradients", "bytes", "seconds")


@dataclass(frozen=True)
class TextTable:
    """A table with a caption; the first column of each row is its heading."""

    key: str
    caption: str
    headings: Sequence[str]
    rows: Sequence[Sequence[str]]
    bold: frozenset[int] = frozenset()  # rows with the best mean


def text_tables(found: Contents, *, narrow: bool = False) -> list[TextTable]:
    """Return the tables of a report; with `narrow`, intervals of the mean are left out beside those of differences."""
    ranking = found.ranking
    if ranking is None:
        return []
    keys = [column["key"] for column in ranking["columns"]]
    left_out = {"interval"} if narrow and "difference" in keys else set()
    shown = [key for key in keys if key not in (*COST, *left_out)]
    tables = [_ranking("results", f"{state(found)}{_caption(found)}", ranking, shown)]
    cost = [key for key in keys if key in COST]
    if cost:
        meaning = {column["key"]: f"{column['heading']}: {column['meaning']}." for column in ranking["columns"]}
        text = f"{state(found)}Work, communication and time of a run. {' '.join(meaning[key] for key in cost)}"
        tables.append(_ranking("cost", text, ranking, cost))
    return [*tables, _hyper(found)]


def state(found: Contents) -> str:
    """Return the words that every table and figure of an unfinished or untuned comparison starts with."""
    words = [word for word, _ in found.warnings if word]
    return f"{', '.join([words[0], *map(str.lower, words[1:])])}. " if words else ""


def _ranking(key: str, caption: str, ranking: Any, keys: Sequence[str]) -> TextTable:
    heading = {column["key"]: column["heading"] for column in ranking["columns"]}
    columns = [one for key in keys for one in ([heading[key], "p"] if key == "difference" else [heading[key]])]
    rows = []
    for row in ranking["rows"]:
        relation = row["figures"].get("relation") or row["kind"]
        cells = [" ".join(filter(None, (row["name"], MARKS.get(relation, ""))))]
        for key_of in keys:
            text, small = row["cells"][key_of]
            if key_of == "difference":
                cells += [text, small.removeprefix("p").removeprefix(" = ").strip() or tables.MISSING]
            else:
                cells.append(f"{text} {small}".strip())
        rows.append(cells)
    best = frozenset(at for at, row in enumerate(ranking["rows"]) if row["kind"] == "best")
    first = "Model" if "model" in str(rows[0][0]) else "Method"
    return TextTable(key, caption, [first, *columns], rows, best)


def _caption(found: Contents) -> str:
    document = found.document
    metric, seeds, data = metric_of(document["score"]), document["seeds"], document["data"]
    unit = " in per cent" if metric.percent else ""
    over = count(data["clients"], "client")
    if len(seeds) > 1:
        over += f" and {count(len(seeds), 'seed')}, ± standard error over seeds"
    text = f"Test {metric.title}{unit} on {data['name']}, {data['split']}: mean over {over}."
    if found.single:
        return text
    confidence = f"{100 * (1 - document['level']):.0f} %"
    return (
        f"{text} Difference: {confidence} interval of the difference from the best mean, by a mixed model with seeds "
        "and clients as random effects; the p-value, unlike the interval, is corrected for the number of methods. "
        "SD: standard deviation between clients. Better/worse off: per cent of clients that do better and worse than "
        "with the better of Local and FedAvg. "
        f"* best mean, = equal to it within {tables.format_margin(document)}, ? too few clients or seeds to tell; the "
        "others are significantly worse."
    )


def _hyper(found: Contents) -> TextTable:
    methods = found.document["methods"][:1] if found.single else found.document["methods"]
    rows = []
    for one in methods:
        tuned, values = one["tuned"], ", ".join(f"{key} = {value}" for key, value in one["hyper"].items())
        chosen = tables.MISSING
        if tuned:
            chosen = ", ".join(f"{key} = {value}" for key, value in tuned["chosen"].items())
            chosen += f" (of {count(len(tuned['points']), 'point')}"
            chosen += f"; on the edge: {', '.join(tuned['edge'])})" if tuned.get("edge") else ")"
        rows.append([one["method"] if found.single else one["name"], chosen, values or tables.MISSING])
    caption = f"{state(found)}Hyper-parameters: those that were chosen by tuning, and all of them."
    return TextTable("hyperparameters", caption, ["Method", "Tuned", "All"], rows)
