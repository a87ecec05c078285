"""Draw figures with matplotlib: the colours and markers of the page, in sizes for a paper.

The same numbers give the same bytes.
"""

import io
import re
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from importlib import import_module, resources
from importlib.util import find_spec
from typing import Any

from bespokefl.core.errors import InputError
from bespokefl.report.figures import GREY, Figure

Numbers = Mapping[str, Any]
Canvas = Any  # matplotlib.figure.Figure
Draw = Callable[[Canvas, Figure, Numbers], None]

WIDTH, HALF_WIDTH, HEIGHT = 6.5, 4.4, 3.3  # inches: a full line of a page, a smaller figure
DPI = 300
MARKERS: dict[str, Any] = {
    "circle": "o",
    "square": "s",
    "diamond": "D",
    "triangle-up": "^",
    "star": "*",
    "cross": "P",
    "triangle-down": "v",
    "pentagon": "p",
    "x": "X",
    "hexagon": "h",
    "bowtie": [(-1, 0.8), (0, 0), (1, 0.8), (1, -0.8), (0, 0), (-1, -0.8), (-1, 0.8)],
    "hourglass": [(-0.8, 1), (0, 0), (-0.8, -1), (0.8, -1), (0, 0), (0.8, 1), (-0.8, 1)],
}
DASHES: dict[str, Any] = {
    "solid": "-",
    "dash": (0, (5, 2)),
    "dot": (0, (1, 1.5)),
    "dashdot": (0, (5, 2, 1, 2)),
    "longdash": (0, (9, 3)),
    "longdashdot": (0, (9, 3, 1.5, 3)),
}
STYLE: dict[Any, Any] = {
    "svg.hashsalt": "bespokefl",  # otherwise ids are random
    "svg.fonttype": "path",  # the same on every machine, whatever fonts it has
    "pdf.fonttype": 42,  # text stays text, as journals require
    "font.family": ["Liberation Sans", "Arial", "Helvetica", "DejaVu Sans"],
    "font.size": 9,
    "axes.titlesize": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": "#5b646d",
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#e3e5e2",
    "grid.linewidth": 0.6,
    "lines.linewidth": 1.5,
    "lines.markersize": 5,
    "legend.frameon": False,
    "legend.fontsize": 8,
    "legend.handlelength": 2.8,
}


def draw(figure: Figure, numbers: Numbers, formats: Sequence[str], state: str = "") -> dict[str, bytes]:
    """Return a figure in each of the formats "svg", "pdf" and "png"; `state` is written below it."""
    if not formats:
        return {}
    check_matplotlib()
    import matplotlib
    from matplotlib.figure import Figure as CanvasFigure

    kinds: dict[str, Draw] = {
        **import_module("bespokefl.report.export.plots").DRAW,
        **import_module("bespokefl.report.export.method_plots").DRAW,
    }
    with matplotlib.rc_context(STYLE | {"font.family": _fonts()}):
        canvas = CanvasFigure(figsize=(HALF_WIDTH if figure.half else WIDTH, HEIGHT), layout="constrained")
        kinds[figure.kind](canvas, figure, numbers)
        if state:
            canvas.supxlabel(state, x=0.995, ha="right", fontsize=7.5, style="italic", color=colours()["soft"])
        return {one: _saved(canvas, one) for one in formats}


def _saved(canvas: Canvas, kind: str) -> bytes:
    target = io.BytesIO()
    dates = {"svg": {"Date": None}, "pdf": {"CreationDate": None}, "png": {}}[kind]
    canvas.savefig(target, format=kind, dpi=DPI, metadata=dates)
    return target.getvalue()


@cache
def _fonts() -> list[str]:
    """Return the fonts that are installed, so that matplotlib does not warn about others."""
    from matplotlib import font_manager

    known = set(font_manager.get_font_names())
    return [name for name in STYLE["font.family"] if name in known] or ["sans-serif"]


@cache
def colours() -> dict[str, str]:
    """Return the colours of the page in light mode, by their names in page.css."""
    css = resources.files("bespokefl.report").joinpath("templates", "page.css").read_text(encoding="utf-8")
    return dict(reversed(re.findall(r"--([\w-]+): (#[0-9a-f]{6});", css)))  # the first value of a name is the light one


def colour(method: Numbers) -> str:
    """Return the colour of a method."""
    return colours()["grey" if method["colour"] == GREY else f"c{method['colour']}"]


def marker(method: Numbers, **more: Any) -> dict[str, Any]:
    """Return the marker of a method as arguments of matplotlib."""
    hollow, name = method["symbol"].endswith("-open"), method["symbol"].removesuffix("-open")
    fill = "white" if hollow else colour(method)
    return {"marker": MARKERS[name], "markerfacecolor": fill, "markeredgecolor": colour(method), **more}


def shown(numbers: Numbers) -> list[Mapping[str, Any]]:
    """Return the methods of a figure, best first: those that the page shows at first."""
    return [numbers["methods"][at] for at in numbers["shown"]]


def score_label(numbers: Numbers, followed: bool = False) -> str:
    """Return the label of an axis with scores."""
    about = numbers["followed"] if followed else numbers
    return f"{about['title']}{', %' if about['percent'] else ''}"


def outer_legend(canvas: Canvas, axes: Any) -> None:
    """Put the legend beside the axes, where it covers no data."""
    handles, labels = axes.get_legend_handles_labels()
    canvas.legend(handles, [shortened(one) for one in labels], loc="outside right upper")


def shortened(name: str, most: int = 30) -> str:
    """Return a name that fits beside a figure; `$` starts mathematics in matplotlib."""
    return (name if len(name) <= most else name[: most - 1] + "…").replace("$", r"\$")


def check_matplotlib() -> None:
    """Raise an InputError if matplotlib is not installed."""
    if find_spec("matplotlib") is None:
        raise InputError('figures as files need matplotlib, which is not installed; pip install "bespokefl[figures]".')
