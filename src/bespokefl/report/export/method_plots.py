"""Figures that only some methods have, drawn with matplotlib."""

from collections.abc import Sequence
from itertools import pairwise, product
from typing import Any

import numpy as np

from bespokefl.report.export.drawing import Canvas, Draw, Numbers, colours
from bespokefl.report.figures import Figure

PATTERNS = ("", "//", "..", "xx", "--", "\\\\", "||", "++")
MAX_LABELS = 30  # clients with a name on the axes of a map


def _array(values: Sequence[Any]) -> np.ndarray:
    return np.array(values, dtype=np.float64)


def _ramp() -> Any:
    from matplotlib.colors import LinearSegmentedColormap

    return LinearSegmentedColormap.from_list("page", [colours()[name] for name in ("low", "middle", "high")])


def heat(canvas: Canvas, figure: Figure, numbers: Numbers) -> None:
    """The weights that clients give to each other."""
    canvas.set_figheight(3.7)
    data = figure.data
    weights = np.log10(np.maximum(_array(data["weights"]), 1)) - 2
    axes = canvas.add_subplot(xlabel="learns from", ylabel="client")
    image = axes.imshow(weights, cmap=_ramp(), vmin=-2, vmax=2, interpolation="nearest")
    bar = canvas.colorbar(image, ax=axes, ticks=[-2, -1, 0, 1, 2], shrink=0.9)
    bar.ax.set_yticklabels(["≤ .01 %", ".1 %", "1 %", "10 %", "100 %"])
    axes.grid(visible=False)
    names = [str(numbers["clients"][at])[:9] for at in data["order"]]
    if len(names) <= MAX_LABELS:
        axes.set_xticks(range(len(names)), names, rotation=90, fontsize=6.5)
        axes.set_yticks(range(len(names)), names, fontsize=6.5)
    else:
        axes.set(xticks=[], yticks=[])
    ends = [0, *data["bounds"], len(names)] if data["bounds"] else []
    for start, end in pairwise(ends):
        x = [start - 0.5, end - 0.5, end - 0.5, start - 0.5, start - 0.5]
        y = [start - 0.5, start - 0.5, end - 0.5, end - 0.5, start - 0.5]
        axes.plot(x, y, color=colours()["worse"], linewidth=1.5, clip_on=False)


def silhouette(canvas: Canvas, figure: Figure, numbers: Numbers) -> None:
    """Silhouette against the number of groups."""
    data = figure.data
    values = _array(data["values"])
    axes = canvas.add_subplot(xlabel=data["noun"], ylabel="silhouette")
    axes.plot(np.arange(1, len(values) + 1), values, color=colours()["c0"], marker="o", markersize=3)
    if data["chosen"]:
        chosen = data["chosen"]
        style = {"color": colours()["worse"], "marker": "*", "markersize": 11, "linestyle": "none"}
        axes.plot([chosen], [values[chosen - 1]], **style, label=f"{chosen} {data['verb']}")
        axes.legend()
    axes.xaxis.get_major_locator().set_params(integer=True)


def grid(canvas: Canvas, figure: Figure, numbers: Numbers) -> None:
    """Validation accuracy over λ and T, averaged over clients, and how many clients chose each."""
    data = figure.data
    shape = len(data["shares"]), len(data["temperatures"])
    means = np.ma.masked_invalid(_array(data["values"])).mean(0).filled(np.nan).reshape(shape).T
    chosen = np.bincount([one for one in data["chosen"] if one is not None], minlength=means.size).reshape(shape).T
    axes = canvas.add_subplot(xlabel="imitation weight λ", ylabel="temperature T")
    axes.imshow(means, cmap=_ramp(), origin="lower", aspect="auto")
    axes.grid(visible=False)
    axes.set_xticks(range(shape[0]), [f"{one:g}" for one in data["shares"]])
    axes.set_yticks(range(shape[1]), [f"{one:g}" for one in data["temperatures"]])
    middle = (np.nanmin(means) + np.nanmax(means)) / 2
    for t, s in product(range(shape[1]), range(shape[0])):
        text = "–" if np.isnan(means[t, s]) else f"{means[t, s]:.1f}"
        text += f"\nchosen by {chosen[t, s]}" if chosen[t, s] else ""
        ink = colours()["card" if means[t, s] > middle else "ink"]
        axes.text(s, t, text, ha="center", va="center", fontsize=7, color=ink)


def teachers(canvas: Canvas, figure: Figure, numbers: Numbers) -> None:
    """Number of clients by the round of their teacher."""
    _client_histogram(canvas, figure.data["rounds"], "round of the teacher", colours()["c0"])


def latest(canvas: Canvas, figure: Figure, numbers: Numbers) -> None:
    """Number of clients by their last value."""
    _client_histogram(canvas, figure.data["values"], figure.data["name"], colours()["c2"])


def track(canvas: Canvas, figure: Figure, numbers: Numbers) -> None:
    """A value of every client over the rounds."""
    data = figure.data
    low, middle, high = (_array(band) for band in data["bands"])
    axes = canvas.add_subplot(xlabel="round", ylabel=data["name"])
    for values in _array(data["values"]):
        known = ~np.isnan(values)
        axes.plot(np.array(data["round"])[known], values[known], color=colours()["grey"], alpha=0.35, linewidth=0.6)
    axes.fill_between(data["round"], low, high, color=colours()["c0"], alpha=0.2, linewidth=0)
    axes.plot(data["round"], middle, color=colours()["c0"], linewidth=2)
    axes.set_ylim(bottom=min(0, axes.get_ylim()[0]))


def confidence(canvas: Canvas, figure: Figure, numbers: Numbers) -> None:
    """Confidence against the number of training examples."""
    _client_scatter(canvas, numbers["sizes"], figure.data["values"], "training examples of a client", "confidence τ")


def makeup(canvas: Canvas, figure: Figure, numbers: Numbers) -> None:
    """Deviation against uncertainty."""
    label = "deviation from the global head, ‖μ − w‖²"
    _client_scatter(canvas, figure.data["deviation"], figure.data["trace"], label, "uncertainty, Tr Σ")


def clusters(canvas: Canvas, figure: Figure, numbers: Numbers) -> None:
    """Number of clients in each cluster, by their true group."""
    members, groups = figure.data["members"], figure.data["groups"]
    ids = sorted({one for one in members if one is not None})
    axes = canvas.add_subplot(ylabel="clients")
    below = np.zeros(len(ids))
    for at, group in enumerate(sorted(set(groups)) if groups else [None]):
        inside = [k for k in range(len(members)) if group is None or groups[k] == group]
        counts = _array([sum(members[k] == one for k in inside) for one in ids])
        label = None if group is None else f"true group {group}"
        fill = colours()[f"c{at % 6}"]
        style = {
            "color": fill,
            "alpha": 0.75,
            "hatch": PATTERNS[at % len(PATTERNS)],
            "edgecolor": "white",
            "linewidth": 0,
        }
        axes.bar([f"cluster {one + 1}" for one in ids], counts, 0.6, bottom=below, label=label, **style)
        below += counts
    axes.grid(axis="x", visible=False)
    axes.yaxis.get_major_locator().set_params(integer=True)
    if groups:
        canvas.legend(*axes.get_legend_handles_labels(), loc="outside right upper")


# -- Parts that several figures share


def _client_histogram(canvas: Canvas, values: Sequence[Any], label: str, fill: str) -> None:
    known = _array([one for one in values if one is not None])
    whole = bool((known == known.round()).all())
    step = max(1, int(np.ceil((np.ptp(known) + 1) / 30)))
    edges: Any = (
        np.arange(known.min() - 0.5, known.max() + step + 0.5, step) if whole else min(30, max(5, len(known) // 2))
    )
    axes = canvas.add_subplot(xlabel=label, ylabel="clients")
    axes.hist(known, edges, color=fill, alpha=0.75, rwidth=0.92)
    axes.yaxis.get_major_locator().set_params(integer=True)
    if whole:
        axes.xaxis.get_major_locator().set_params(integer=True)


def _client_scatter(canvas: Canvas, x: Sequence[Any], y: Sequence[Any], across: str, up: str) -> None:
    axes = canvas.add_subplot(xlabel=across, ylabel=up)
    axes.scatter(_array(x), _array(y), 22, color=colours()["c0"], alpha=0.65, linewidth=0)


DRAW: dict[str, Draw] = {
    "heat": heat,
    "silhouette": silhouette,
    "grid": grid,
    "teachers": teachers,
    "track": track,
    "latest": latest,
    "confidence": confidence,
    "makeup": makeup,
    "clusters": clusters,
}
