"""The page of a diagnosis: what each client can expect, who resembles whom, and why a method is recommended."""

import json
import os
import shlex
from collections.abc import Mapping
from html import escape
from pathlib import Path
from typing import Any

import numpy as np

from bespokefl.core.errors import InputError
from bespokefl.core.files import write_text
from bespokefl.report.figures import Figure, paired, rounded
from bespokefl.report.frame import framed
from bespokefl.report.maps import collaboration_map, shared
from bespokefl.report.words import card

SOURCE, NAME, FORMAT = "diagnosis.json", "diagnosis.html", "bespoke-diagnosis-1"
KINDS = {
    "label": ("Label skew", "how far shares of the classes are apart, beyond chance"),
    "size": ("Size disparity", "Gini coefficient of the numbers of training examples"),
    "feature": ("Feature shift", "part of the variance within a class that lies between clients, labels matched"),
    "concept": ("Concept shift", "the same as labels are, where matching them explains it"),
    "shift": ("Feature or concept shift", "the same, where labels are too skewed to tell which of both it is"),
}


def is_one(source: Path) -> bool:
    """Whether this is a diagnosis, or the folder of one."""
    return source.name == SOURCE or (source / SOURCE).is_file()


def write(source: str | os.PathLike[str], target: str | os.PathLike[str] | None = None) -> Path:
    """Write the page of a diagnosis, diagnosis.html beside its diagnosis.json if not told otherwise."""
    origin = Path(source)
    place = origin / SOURCE if origin.is_dir() else origin
    path = place.with_name(NAME) if target is None else Path(target)
    write_text(path, html(read(place)))
    return path


def read(place: Path) -> dict[str, Any]:
    try:
        found = json.loads(place.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        reason = (error.strerror if isinstance(error, OSError) else None) or error
        raise InputError(f"expected a diagnosis in {str(place)!r}, which cannot be read: {reason}.") from None
    if not isinstance(found, dict) or found.get("format") != FORMAT:
        raise InputError(f"expected a diagnosis in {str(place)!r}, got something else; bespoke diagnose writes one.")
    return found


def html(found: Mapping[str, Any]) -> str:
    figures = _figures(found)
    title = f"{found['about']['data']}, {found['about']['split']}"
    numbers = {
        "score": "accuracy",
        "percent": False,
        "higher": True,
        "kind": "diagnosis",
        "seeds": 1,
        "clients": [one["name"] for one in found["clients"]],
        "sizes": [one["examples"] for one in found["clients"]],
        "systems": [],
        "measures": [],
        "methods": [],
        "references": [],
        "shown": [],
        "focus": 0,
        "parts": {one.key: one.data for one in figures if one.data},
    }
    return framed(f"Diagnosis: {title}", _body(found, title, figures), numbers)


def _body(found: Mapping[str, Any], title: str, figures: list[Figure]) -> str:
    about, advised = found["about"], found["recommendation"]
    facts = [("data", about["data"]), ("split", about["split"]), ("clients", about["clients"])]
    facts += [("model", about["model"]), ("steps of each fit", about["steps"]), ("seed", about["seed"])]
    listed = "".join(f"<div><dt>{escape(key)}</dt><dd>{escape(str(value))}</dd></div>" for key, value in facts)
    gains = np.array([one["gain"] for one in found["clients"]])
    alone = sum(one["advice"] == "stay alone" for one in found["clients"])
    how = ", ".join(KINDS[name][0].lower() for name in found["present"]).capitalize()
    cards = [
        card("Recommended", escape(advised["method"]), escape(advised["flags"]), " ".join(advised["reasons"])),
        card(
            "Expected gain",
            f"{np.median(gains):.2f} ×",
            f"{len(gains) - alone} of {len(gains)} clients have something to gain",
            "The median client's variance alone, over its variance with the others. 1 × is nothing to gain.",
        ),
        card("How they differ", how or "Not at all", "", str(found["sentences"][0])),
    ]
    sentences = "".join(f"<li>{escape(one)}</li>" for one in found["sentences"])
    return "\n".join(
        [
            '<a class="skip" href="#clients">To the clients</a>',
            f'<header><p class="kind">A diagnosis</p><h1>{escape(title)}</h1><dl class="facts">{listed}</dl></header>',
            f'<main><div class="cards">{"".join(cards)}</div>',
            '<section id="words"><h2>In words</h2>',
            f'<ul class="remarks">{sentences}</ul>',
            f"<p>Also worth trying: {escape(', '.join(advised['alternatives']))}.</p></section>",
            f'<section id="kinds"><h2>Which kinds of difference</h2>{_kinds(found)}</section>',
            "<noscript><p class=missing>The figures below need JavaScript; the tables do not.</p></noscript>",
            '<section id="figures"><h2>Who resembles whom</h2>',
            f'<div class="figures">{"".join(one.html() for one in paired(figures))}</div></section>',
            f'<section id="clients"><h2>Client by client</h2>{_clients(found)}</section>',
            f'<section id="repeat"><h2>How to repeat it</h2>{_repeat(about)}</section></main>',
            f"<footer><p>Written by Bespoke {escape(str(about['versions'].get('bespokefl', '')))}.</p></footer>",
        ]
    )


def _bar(share: float, kind: str = "better") -> str:
    return f'<span class="shares"><i class="{kind}" style="width:{100 * min(max(share, 0.0), 1.0):.1f}%"></i></span>'


def _kinds(found: Mapping[str, Any]) -> str:
    rows = []
    for name, (word, meaning) in KINDS.items():
        value = found["kinds"].get(name)
        there = "yes" if name in found["present"] else "no" if value is not None else "cannot be told"
        figure = "–" if value is None else f"{value:.2f}{_bar(value)}"
        said = f'<span class="sem">{escape(meaning)}</span>'
        rows.append(f"<tr><th scope=row>{word}<br>{said}</th><td>{there}</td><td>{figure}</td></tr>")
    return (
        '<table class="plain"><thead><tr><th scope=col>kind</th><th scope=col>there</th><th scope=col>figure, 0 to 1'
        f"</th></tr></thead><tbody>{''.join(rows)}</tbody></table>"
    )


def _clients(found: Mapping[str, Any]) -> str:
    grouped = found["likeness"] in ("groups", "partly")
    largest = max(one["gain"] for one in found["clients"])
    heads = ["client", "gain", "advice", "examples", *(["group"] if grouped else []), "with all", "paper's GAIN"]
    rows = []
    for one in sorted(found["clients"], key=lambda one: -one["gain"]):
        share = np.log(one["gain"]) / max(np.log(largest), 1e-9)
        cells = [f"{one['gain']:.2f}{_bar(float(share))}", escape(one["advice"]), str(one["examples"])]
        cells += [str(one["group"] + 1)] if grouped else []
        cells += [f"{one['gain_with_all']:.2f}", f"{one['paper_gain']:.2f}"]
        cells.append(escape(", ".join(one["nearest"])) or "nobody")
        name = f"<th scope=row>{escape(one['name'])}</th>"
        rows.append(f"<tr>{name}{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>")
    top = "".join(f"<th scope=col>{escape(head)}</th>" for head in [*heads, "resembles most"])
    return (
        "<p>Gain: how many times less variance a client's model has when it learns from others as well as can be "
        "(exact Bayes, the better of everybody and its own group); bars are logarithmic. The paper's GAIN is Self-FL's "
        "own figure, with everybody; it is never below the exact one, and never says that one may stay alone.</p>"
        f'<div class="wide"><table class="plain flat"><thead><tr>{top}</tr></thead>'
        f"<tbody>{''.join(rows)}</tbody></table></div>"
    )


def _figures(found: Mapping[str, Any]) -> list[Figure]:
    weights = np.array(found["collaboration"], dtype=np.float64)
    groups = np.array([one["group"] for one in found["clients"]])
    words = "Row: a client. Column: the weight that User-Centric FL's rule gives to another, from the short fits."
    words += " Frames: the groups found." if shared(groups) else ""
    figures = [collaboration_map("map", weights, groups, found["true_groups"], words)]
    if len(found["silhouettes"]) > 1:
        grouped = found["likeness"] in ("groups", "partly")
        chosen = found["streams"] if grouped else None
        told = {"noun": "groups", "taken": "are suggested"}
        data = {"values": rounded(found["silhouettes"], False), "chosen": chosen, **told}
        words = "The higher, the better the clients fall into so many groups, by the short fits."
        label = "Line: silhouette against the number of groups."
        figures.append(Figure("silhouette", "groups", "How many groups", words, label, data=data, half=True))
    survey = found["survey"]
    if survey is not None and len(survey["silhouettes"]) > 1:
        data = {"values": rounded(survey["silhouettes"], False), "chosen": None, "noun": "streams"}
        words = "The same by User-Centric FL's own first round, which has only the gradients at the start."
        label = "Line: silhouette against the number of streams, by gradients at the start."
        title = "How many streams, by the survey alone"
        figures.append(Figure("silhouette", "survey", title, words, label, data=data, half=True))
    gains = [one["gain"] for one in found["clients"]]
    data = {"said": "gain", "values": rounded(gains, False)}
    words = "How many clients can expect which gain; 1 is none."
    label = "Histogram of the clients' expected gains."
    figures.append(Figure("latest", "gains", "Expected gains", words, label, data=data, half=True))
    return figures


def _repeat(about: Mapping[str, Any]) -> str:
    words = ["bespoke", "diagnose"]
    for name, value in about.get("config", {}).items():
        words += [f"--{name.replace('_', '-')}", str(value)]
    words += ["--steps", str(about["steps"]), "--lr", f"{about['lr']:g}"]
    command = shlex.join(words) if "config" in about else "It was made in Python, by bespokefl.diagnose."
    sent = sum(about["sent"].values())
    versions = ", ".join(f"{name} {number}" for name, number in about["versions"].items())
    return (
        f'<div class="code"><pre>{escape(command)}</pre></div><p>Split {escape(about["split_hash"][:12])}; '
        f"{escape(versions)}. It took {about['seconds']:.1f} s, and a client would send {sent:,} numbers.</p>"
    )
