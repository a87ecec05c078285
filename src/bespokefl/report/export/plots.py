"""The figures of every comparison, drawn with matplotlib."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from bespokefl.report.export.drawing import (
    DASHES,
    Canvas,
    Draw,
    Numbers,
    colour,
    colours,
    marker,
    outer_legend,
    score_label,
    shortened,
    shown,
)
from bespokefl.report.figures import Figure

ROW_HEIGHT = 0.42  # inches of one method in figures with a row for each
MAX_BINS = 24


def _array(values: Sequence[float | None]) -> np.ndarray:
    return np.array(values, dtype=np.float64)


def curves(canvas: Canvas, figure: Figure, numbers: Numbers) -> None:
    """Mean score over the rounds, with a band of one standard error."""
    axes = canvas.add_subplot(xlabel="round", ylabel=score_label(numbers, followed=True))
    for method in (one for one in shown(numbers) if one["curve"]):
        curve = method["curve"]
        mean, error = _array(curve["mean"]), np.nan_to_num(_array(curve["sem"]))
        style = {"color": colour(method), "linestyle": DASHES[method["dash"]], "label": method["name"]}
        step = max(1, len(mean) // 12)
        width = 1.1 if method["baseline"] else 1.6
        axes.plot(curve["round"], mean, **style, **marker(method), markevery=step, linewidth=width)
        if error.any():
            axes.fill_between(curve["round"], mean - error, mean + error, color=colour(method), alpha=0.15, linewidth=0)
    outer_legend(canvas, axes)


def convergence(canvas: Canvas, figure: Figure, numbers: Numbers) -> None:
    """Every client's score over the rounds, in one panel for each method."""
    methods = [one for one in shown(numbers) if one["client_curves"]]
    level = next((one for one in numbers["methods"] if one["constant"] and one["curve"]), None)
    columns = min(3, len(methods))
    rows = -(-len(methods) // columns)
    canvas.set_figheight(0.6 + 1.75 * rows)
    panels = canvas.subplots(rows, columns, sharex=True, sharey=True, squeeze=False).ravel()
    for axes, method in zip(panels, methods, strict=False):
        found = method["client_curves"]
        low, middle, high = (_array(band) for band in found["bands"])
        alpha = 0.5 if len(found["clients"]) <= 20 else 0.25
        axes.plot(found["round"], _array(found["values"]).T, color=colours()["grey"], alpha=alpha, linewidth=0.6)
        axes.fill_between(found["round"], low, high, color=colour(method), alpha=0.2, linewidth=0)
        axes.plot(found["round"], middle, color=colour(method), linewidth=2)
        if level is not None:
            axes.axhline(
                level["curve"]["mean"][0], color=colours()["ink"], linestyle=DASHES[level["dash"]], linewidth=1
            )
        axes.set_title(shortened(method["name"]))
    for axes in panels[len(methods) :]:
        axes.set_visible(False)
    below = "round" if level is None else f"round (long dashes: {level['name']}, mean)"
    canvas.supxlabel(below, fontsize=9)
    canvas.supylabel(score_label(numbers, followed=True), fontsize=9)


def scatter(canvas: Canvas, figure: Figure, numbers: Numbers) -> None:
    """Every client's score with the best method against its score with a baseline."""
    canvas.set_figheight(3.6)
    base, own = numbers["methods"][figure.data["reference"]], numbers["methods"][numbers["focus"]]
    x, y, sizes = _array(base["scores"]), _array(own["scores"]), _array(numbers["sizes"])
    gain = np.round((y - x) * (1 if numbers["higher"] else -1), 6)
    unit = ", %" if numbers["percent"] else ""
    axes = canvas.add_subplot(
        xlabel=f"with {shortened(base['name'])}{unit}", ylabel=f"with {shortened(own['name'])}{unit}", aspect="equal"
    )
    known = [*x[~np.isnan(x)], *y[~np.isnan(y)]]
    levels = [(one, np.nanmean(_array(one["scores"]))) for one in numbers["methods"] if one["constant"]]
    low, high = _extent([*known, *(value for _, value in levels)])
    axes.axline((low, low), slope=1, color=colours()["grey"], linestyle=DASHES["dash"], linewidth=1)
    kinds = [
        ("better off", gain > 0, "o", colours()["better"], colours()["better"]),
        ("the same", gain == 0, "D", "none", colours()["grey"]),
        ("worse off", gain < 0, "v", colours()["worse"], colours()["worse"]),
    ]
    for word, some, mark, face, edge in kinds:
        if some.any():
            area = 12 + 60 * sizes[some] / sizes.max()
            label = f"{word}: {int(some.sum())} of {int((~np.isnan(gain)).sum())}"
            axes.scatter(x[some], y[some], area, marker=mark, facecolor=face, edgecolor=edge, alpha=0.75, label=label)
    for method, value in levels:
        style = {"color": colours()["grey"], "linestyle": DASHES[method["dash"]], "linewidth": 0.9}
        axes.axhline(value, **style, label=method["name"])
        axes.axvline(value, **style)
    axes.set(xlim=(low, high), ylim=(low, high))
    outer_legend(canvas, axes)


def size(canvas: Canvas, figure: Figure, numbers: Numbers) -> None:
    """Mean score of clients with a similar number of training examples."""
    axes = canvas.add_subplot(xlabel="training examples of a client", ylabel=score_label(numbers))
    sizes = np.array(numbers["sizes"])
    bins = [
        part for part in np.array_split(np.argsort(sizes, kind="stable"), max(2, min(8, len(sizes) // 5))) if len(part)
    ]
    focus = numbers["methods"][numbers["focus"]]
    axes.scatter(sizes, _array(focus["scores"]), 14, color=colour(focus), alpha=0.35, linewidth=0)
    for method in shown(numbers):
        scores = _array(method["scores"])
        full = [part for part in bins if not np.isnan(scores[part]).all()]
        style = {"color": colour(method), "linestyle": DASHES[method["dash"]], "label": method["name"]}
        x = [np.exp(np.log(np.maximum(sizes[part], 0.5)).mean()) for part in full]
        axes.plot(x, [np.nanmean(scores[part]) for part in full], **style, **marker(method))
    if sizes.min() > 0 and sizes.max() > 4 * sizes.min():
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
        axes.xaxis.set_minor_formatter(lambda value, _: f"{value:g}" if str(f"{value:g}")[0] in "25" else "")
    outer_legend(canvas, axes)


def histogram(canvas: Canvas, figure: Figure, numbers: Numbers) -> None:
    """Number of clients by score, in one row for each method."""
    methods = shown(numbers)
    values = [_present(one["scores"]) for one in methods]
    every = np.concatenate(values)
    edges = np.histogram_bin_edges(every, bins=min(MAX_BINS, max(5, int(np.ptp(every) // 1) or 5)))
    counts = [np.histogram(one, edges)[0] for one in values]
    most = max(one.max() for one in counts)
    axes = _ridges(canvas, methods, score_label(numbers))
    for row, (method, own) in enumerate(zip(methods, counts, strict=True)):
        base = len(methods) - 1 - row
        axes.bar(
            edges[:-1], 0.86 * own / most, np.diff(edges) * 0.96, base, align="edge", color=colour(method), alpha=0.7
        )
        axes.plot(
            [values[row].mean()], [base], linestyle="none", clip_on=False, zorder=5, **marker(method, markersize=6)
        )


def density(canvas: Canvas, figure: Figure, numbers: Numbers) -> None:
    """Density of the clients' gains, in one row for each method."""
    methods = [one for one in shown(numbers) if one["gains"] and len(_present(one["gains"]))]
    gains = [_present(one["gains"]) for one in methods]
    every = np.concatenate(gains)
    least = 0.5 if numbers["percent"] else max(1e-6, np.ptp(every) / 100)
    widths = [max(least, 1.06 * one.std() * len(one) ** -0.2) for one in gains]  # Silverman's rule
    ends = [
        end for one, width in zip(gains, widths, strict=True) for end in (one.min() - 3 * width, one.max() + 3 * width)
    ]
    x = np.linspace(min(ends), max(ends), 300)
    heights = [
        np.exp(-(((x[:, None] - one) / width) ** 2) / 2).sum(1) / (len(one) * width * np.sqrt(2 * np.pi))
        for one, width in zip(gains, widths, strict=True)
    ]
    most = max(one.max() for one in heights)
    axes = _ridges(
        canvas, methods, f"gain over the better of Local and FedAvg{', points' if numbers['percent'] else ''}"
    )
    for row, (method, own) in enumerate(zip(methods, heights, strict=True)):
        base = len(methods) - 1 - row
        axes.fill_between(x, base, base + 0.9 * own / most, color=colour(method), alpha=0.3, linewidth=0)
        axes.plot(x, base + 0.9 * own / most, color=colour(method), linewidth=1.2)
        axes.plot(
            [gains[row].mean()], [base], linestyle="none", clip_on=False, zorder=5, **marker(method, markersize=6)
        )
    axes.axvline(0, color=colours()["ink"], linestyle=DASHES["dash"], linewidth=1)


def fairness(canvas: Canvas, figure: Figure, numbers: Numbers) -> None:
    """Four measures of how evenly the gains are distributed, as bars."""
    methods = [one for one in shown(numbers) if one["gains"]]
    canvas.set_figheight(0.9 + 0.25 * len(methods))
    rows = np.arange(len(methods))[::-1]
    for axes, (at, (name, lower)) in zip(
        canvas.subplots(1, 4, sharey=True), enumerate(numbers["measures"]), strict=True
    ):
        values = _array([one["fair"][at] for one in methods])
        rated = [
            value for value, one in zip(values, methods, strict=True) if not one["constant"] and not np.isnan(value)
        ]
        best = (min if lower else max)(rated) if rated else None
        edges = [
            colours()["ink"] if v == best and not one["constant"] else "none"
            for v, one in zip(values, methods, strict=True)
        ]
        axes.barh(rows, np.nan_to_num(values), 0.7, color=[colour(one) for one in methods], alpha=0.65)
        axes.barh(rows, np.nan_to_num(values), 0.7, color="none", edgecolor=edges, linewidth=1.2)
        for row, value in zip(rows, values, strict=True):
            axes.annotate(
                "n/a" if np.isnan(value) else f"{value:.3g}",
                (0, row),
                (3, 0),
                textcoords="offset points",
                va="center",
                fontsize=7.5,
            )
        axes.set_title(f"{name}{chr(10)}(lower is fairer)" if lower else name, fontsize=8.5)
        axes.set(yticks=rows, yticklabels=[shortened(one["name"], 22) for one in methods])
        axes.tick_params(axis="x", labelsize=7)
        axes.tick_params(axis="y", length=0)
        axes.locator_params(axis="x", nbins=3)
        axes.grid(axis="y", visible=False)


# -- Parts that several figures share


def _extent(values: Sequence[float], room: float = 0.06) -> tuple[float, float]:
    low, high = min(values), max(values)
    more = (high - low) * room or abs(high) * 0.05 or 1.0
    return low - more, high + more


def _present(values: Sequence[float | None]) -> np.ndarray:
    found = _array(values)
    known: np.ndarray = found[~np.isnan(found)]
    return known


def _ridges(canvas: Canvas, methods: Sequence[Mapping[str, Any]], label: str) -> Any:
    canvas.set_figheight(0.7 + ROW_HEIGHT * len(methods))
    axes = canvas.add_subplot(xlabel=label)
    rows = range(len(methods))
    axes.set(
        yticks=[len(methods) - 1 - row for row in rows], yticklabels=[shortened(one["name"], 24) for one in methods]
    )
    axes.set_ylim(-0.2, len(methods))
    axes.tick_params(axis="y", length=0)
    return axes


DRAW: dict[str, Draw] = {
    "curves": curves,
    "convergence": convergence,
    "scatter": scatter,
    "size": size,
    "histogram": histogram,
    "density": density,
    "fairness": fairness,
}
