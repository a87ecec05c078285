"""How a method looks wherever it appears: a colour, a marker and a dash, told apart without colour, too.

Colours are Okabe and Ito's, which the colour-blind tell apart. The two methods that all are measured against are grey.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

MARKERS = ("circle", "square", "diamond", "triangle-up", "star", "cross", "triangle-down", "pentagon", "x", "hexagon")
DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot")
NUM_COLOURS = 6  # page.css: --c0 … --c5, and --grey
GREY = -1
REACH = 6.5  # of a marker in its picture of 16 by 16


@dataclass(frozen=True)
class Look:
    """Of one method."""

    colour: int
    marker: str
    dash: str
    hollow: bool

    @property
    def symbol(self) -> str:
        """The marker as Plotly calls it."""
        return self.marker + ("-open" if self.hollow else "")

    def picture(self) -> str:
        """The marker as a small SVG, for text and tables."""
        colour = "grey" if self.colour == GREY else f"c{self.colour}"
        kind = "hollow" if self.hollow else "full"
        return (
            f'<svg class="marker {colour} {kind}" viewBox="0 0 16 16" aria-hidden="true" focusable="false">'
            f"{_outline(self.marker)}</svg>"
        )


def looks(baselines: Sequence[bool]) -> list[Look]:
    """One for each method, in the order of their rank; True where it is what others are measured against."""
    found, greys, others = [], 0, 0
    for baseline in baselines:
        if baseline:
            found.append(Look(GREY, ("bowtie", "hourglass")[greys % 2], ("dot", "dash")[greys % 2], hollow=True))
            greys += 1
            continue
        dash = DASHES[(others + others // NUM_COLOURS) % len(DASHES)]
        marker = MARKERS[others % len(MARKERS)]
        found.append(Look(others % NUM_COLOURS, marker, dash, hollow=others >= len(MARKERS)))
        others += 1
    return found


def _outline(marker: str) -> str:
    if marker == "circle":
        return '<circle cx="8" cy="8" r="5.5"/>'
    if marker in ("bowtie", "hourglass"):
        corners = [(-6.5, -5.0), (0.0, 0.0), (6.5, -5.0), (6.5, 5.0), (0.0, 0.0), (-6.5, 5.0)]
        points = corners if marker == "bowtie" else [(y, x) for x, y in corners]
    elif marker in ("x", "cross"):
        a, b = 6.5, 2.0
        corners = [(-b, -a), (b, -a), (b, -b), (a, -b), (a, b), (b, b), (b, a), (-b, a), (-b, b), (-a, b), (-a, -b)]
        corners.append((-b, -b))
        turn = math.pi / 4 if marker == "x" else 0.0
        points = [
            (x * math.cos(turn) - y * math.sin(turn), x * math.sin(turn) + y * math.cos(turn)) for x, y in corners
        ]
    elif marker == "star":
        reaches = (REACH, REACH * 0.42)
        points = [_corner(k / 10, reaches[k % 2]) for k in range(10)]
    else:
        num = {"square": 4, "diamond": 4, "triangle-up": 3, "triangle-down": 3, "pentagon": 5, "hexagon": 6}[marker]
        turn = {"square": 1 / 8, "triangle-down": 1 / 2, "hexagon": 1 / 12}.get(marker, 0.0)
        points = [_corner(k / num + turn, REACH) for k in range(num)]
    return f'<polygon points="{" ".join(f"{8 + x:.1f},{8 + y:.1f}" for x, y in points)}"/>'


def _corner(share: float, reach: float) -> tuple[float, float]:
    """A point on a circle, from the top, clockwise."""
    angle = 2 * math.pi * share
    return reach * math.sin(angle), -reach * math.cos(angle)
