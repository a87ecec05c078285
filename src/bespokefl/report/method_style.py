"""How each method looks in figures and tables: a colour, a marker and a dash that differ without colour, too.

Colours are those of Okabe and Ito, which colour-blind readers can tell apart. The two baselines are grey.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

MARKERS = ("circle", "square", "diamond", "triangle-up", "star", "cross", "triangle-down", "pentagon", "x", "hexagon")
DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot")
NUM_COLOURS = 6  # page.css: --c0 … --c5, and --grey
GREY = -1
RADIUS = 6.5  # of a marker in its picture of 16 by 16
POLYGONS = {  # marker -> number of corners, rotation in turns
    "square": (4, 1 / 8),
    "diamond": (4, 0.0),
    "triangle-up": (3, 0.0),
    "triangle-down": (3, 1 / 2),
    "pentagon": (5, 0.0),
    "hexagon": (6, 1 / 12),
}


@dataclass(frozen=True)
class MethodStyle:
    """The look of one method."""

    colour: int
    marker: str
    dash: str
    hollow: bool

    @property
    def plotly_symbol(self) -> str:
        """The marker's name in Plotly."""
        return self.marker + ("-open" if self.hollow else "")

    @property
    def css_class(self) -> str:
        """The classes of the marker's picture."""
        return f"{'grey' if self.colour == GREY else f'c{self.colour}'} {'hollow' if self.hollow else 'full'}"

    @property
    def outline(self) -> str:
        """The corners of the marker as an SVG polygon; a circle has none."""
        return " ".join(f"{8 + x:.1f},{8 + y:.1f}" for x, y in _corners(self.marker))


def assign_styles(baselines: Sequence[bool]) -> list[MethodStyle]:
    """Return a style for each method, in the order of their rank; `baselines` says which are baselines."""
    styles, num_grey, num_coloured = [], 0, 0
    for baseline in baselines:
        if baseline:
            marker, dash = (("bowtie", "dot"), ("hourglass", "dash"))[num_grey % 2]
            styles.append(MethodStyle(GREY, marker, dash, hollow=True))
            num_grey += 1
            continue
        dash = DASHES[(num_coloured + num_coloured // NUM_COLOURS) % len(DASHES)]
        marker = MARKERS[num_coloured % len(MARKERS)]
        styles.append(MethodStyle(num_coloured % NUM_COLOURS, marker, dash, hollow=num_coloured >= len(MARKERS)))
        num_coloured += 1
    return styles


def _corners(marker: str) -> list[tuple[float, float]]:
    if marker in ("bowtie", "hourglass"):
        corners = [(-6.5, -5.0), (0.0, 0.0), (6.5, -5.0), (6.5, 5.0), (0.0, 0.0), (-6.5, 5.0)]
        return corners if marker == "bowtie" else [(y, x) for x, y in corners]
    if marker in ("x", "cross"):
        a, b = 6.5, 2.0
        corners = [(-b, -a), (b, -a), (b, -b), (a, -b), (a, b), (b, b), (b, a), (-b, a), (-b, b), (-a, b), (-a, -b)]
        corners.append((-b, -b))
        turn = math.pi / 4 if marker == "x" else 0.0
        return [(x * math.cos(turn) - y * math.sin(turn), x * math.sin(turn) + y * math.cos(turn)) for x, y in corners]
    if marker == "star":
        return [_on_circle(k / 10, RADIUS * (0.42 if k % 2 else 1.0)) for k in range(10)]
    num, turn = POLYGONS.get(marker, (0, 0.0))
    return [_on_circle(k / num + turn, RADIUS) for k in range(num)]


def _on_circle(turn: float, radius: float) -> tuple[float, float]:
    """Return a point on a circle, clockwise from the top."""
    angle = 2 * math.pi * turn
    return radius * math.sin(angle), -radius * math.cos(angle)
