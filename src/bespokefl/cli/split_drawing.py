"""Draws a split as an HTML page: one bubble for each client and class, and the statistics."""

from html import escape

import numpy as np

from bespokefl.core.errors import count
from bespokefl.data import split_statistics
from bespokefl.data.clients import Clients

CELL, MARGIN = 22, 90  # pixels
COLOURS = ("#2b6cb0", "#c05621", "#2f855a", "#6b46c1", "#b83280", "#975a16", "#2c7a7b", "#4a5568")  # of the groups


def statistics(clients: Clients) -> list[tuple[str, str, str]]:
    """How different the clients are: name, value and meaning of each statistic."""
    found = split_statistics.measure(clients)
    sizes = f"{found.smallest} / {found.median:g} / {found.largest}"
    rows: list[tuple[str, float | str | None, str, str]] = [
        ("label distance", found.label_distance, ".3f", "mean over pairs; 0: same proportions, 1: no class in common"),
        ("effective classes", found.effective_classes, ".2f", f"mean over clients, of {clients.classes}"),
        ("size Gini", found.size_gini, ".3f", "0: equal sizes, near 1: one client has nearly all examples"),
        ("sizes", sizes, "", "training examples of the smallest, the median and the largest client"),
        ("without test", found.untested or None, "", "clients without test examples"),
    ]
    return [(name, format(value, form), meaning) for name, value, form, meaning in rows if value is not None]


def heading(clients: Clients) -> str:
    """A one-line summary of the split."""
    names = ("training", "validation", "test")
    parts = (f"{len(part.indices)} {name}" for name, part in zip(names, clients.parts, strict=True))
    return (
        f"{clients.data_name}, {clients.split_name}, seed {clients.seed}: {count(len(clients), 'client')}, "
        f"{', '.join(parts)} examples, hash {clients.hash[:12]}"
    )


def page(clients: Clients) -> str:
    """A self-contained HTML page."""
    rows = "".join(
        f"<tr><th>{escape(name)}</th><td>{escape(value)}</td><td>{escape(meaning)}</td></tr>\n"
        for name, value, meaning in statistics(clients)
    )
    return (
        '<!doctype html>\n<html lang="en"><meta charset="utf-8">\n'
        f"<title>{escape(clients.split_name)}</title>\n"
        "<style>body{font:14px sans-serif;margin:2em}th{text-align:left;padding-right:1em}"
        "td{padding-right:1em}text{font:11px sans-serif}</style>\n"
        f"<h1>{escape(heading(clients))}</h1>\n<table>\n{rows}</table>\n{_bubbles(clients)}</html>\n"
    )


def _bubbles(clients: Clients) -> str:
    """The drawing as SVG."""
    counts = split_statistics.class_counts(clients)
    num, classes = counts.shape
    width, height = MARGIN + classes * CELL, MARGIN + num * CELL
    largest = counts.max()
    drawn = []
    names = clients.label_names or ("all",)
    for label, name in enumerate(names):
        x = MARGIN + (label + 0.5) * CELL
        drawn.append(f'<text x="{x}" y="{MARGIN - 8}" transform="rotate(-60 {x} {MARGIN - 8})">{escape(name)}</text>')
    for client, name in enumerate(clients.names):
        y = MARGIN + (client + 0.5) * CELL
        drawn.append(f'<text x="{MARGIN - 8}" y="{y + 4}" text-anchor="end">{escape(name)}</text>')
        group = 0 if clients.groups is None else clients.groups[client]
        colour = COLOURS[group % len(COLOURS)]
        for label in np.flatnonzero(counts[client]).tolist():
            # the area is proportional to the count
            radius = max(CELL / 2 * (counts[client, label] / largest) ** 0.5, 1)
            tooltip = f"{name}, {names[label]}: {counts[client, label]}"
            drawn.append(
                f'<circle cx="{MARGIN + (label + 0.5) * CELL}" cy="{y}" r="{radius:.1f}" fill="{colour}">'
                f"<title>{escape(tooltip)}</title></circle>"
            )
    return f'<svg width="{width}" height="{height}" role="img">\n' + "\n".join(drawn) + "\n</svg>\n"
