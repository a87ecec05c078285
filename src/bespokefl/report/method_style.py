"""How each method looks in figures and tables: a colour, a marker and a dash that differ without colour, too.

Colours are those of Okabe and Ito, which colour-blind readers can tell apart. The two baselines are grey.
"""

from collections.abc import Sequence
from dataclasses import dataclass

MARKERS = ("circle", "square", "diamond", "triangle-up", "star", "cross", "triangle-down", "pentagon", "x", "hexagon")
DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot")
NUM_COLOURS = 6  # page.css: --c0 … --c5, and --grey; macros.html draws the markers
GREY = -1


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
