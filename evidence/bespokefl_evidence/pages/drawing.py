"""Draw figures as SVG with matplotlib: the same data give the same bytes."""

import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

from bespokefl.core.errors import InputError

Draw = Callable[[Any], None]  # draws into a matplotlib Axes
PANEL = (4.6, 3.2)  # inches
MAX_COLUMNS = 3
STYLE: dict[Any, Any] = {
    "svg.hashsalt": "bespokefl",  # otherwise ids are random
    "svg.fonttype": "none",  # text stays text
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.alpha": 0.3,
    "lines.markersize": 3,
    "legend.frameon": False,
    "legend.fontsize": 7,
}


@dataclass(frozen=True)
class Panel:
    """One diagram of a figure."""

    title: str
    x: str
    y: str
    draw: Draw
    legend: bool = True


@dataclass(frozen=True)
class Drawing:
    """A figure with one or several diagrams."""

    file: str
    title: str
    panels: Sequence[Panel]

    def svg(self) -> str:
        """The figure as an SVG file."""
        check_matplotlib()
        import matplotlib
        from matplotlib.backends.backend_svg import FigureCanvasSVG
        from matplotlib.figure import Figure

        with matplotlib.rc_context(STYLE):
            columns = min(len(self.panels), MAX_COLUMNS)
            rows = -(-len(self.panels) // columns)
            figure = Figure(figsize=(PANEL[0] * columns, PANEL[1] * rows), layout="constrained")
            FigureCanvasSVG(figure)
            for at, panel in enumerate(self.panels):
                axes = figure.add_subplot(rows, columns, at + 1)
                axes.set(title=panel.title, xlabel=panel.x, ylabel=panel.y)
                panel.draw(axes)
                if panel.legend and axes.get_legend_handles_labels()[0]:
                    axes.legend()
            target = io.StringIO()
            figure.savefig(target, format="svg", metadata={"Date": None, "Creator": None})
        return "\n".join(line.rstrip() for line in target.getvalue().splitlines()) + "\n"


def check_matplotlib() -> None:
    """Raise an InputError if matplotlib is not installed."""
    if find_spec("matplotlib") is None:
        raise InputError('figures need matplotlib, and it is not installed; pip install "bespokefl[figures]".')
