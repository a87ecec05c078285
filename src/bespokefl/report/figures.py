"""The figures that every comparison has, and the numbers they are drawn from.

page.js draws them in the browser; figures.toml has their texts. Numbers are rounded, which keeps the page small.
"""

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from importlib import resources
from itertools import count, cycle
from typing import Any

from bespokefl.metrics.fairness import LOWER_IS_FAIRER
from bespokefl.metrics.metric import metric_of
from bespokefl.report.curves import client_curves, curve, followed_score, level_line, rounded
from bespokefl.report.document import Document, client_gains, client_scores

MAX_METHODS_SHOWN = 5  # at first, besides the baselines
FAIRNESS_MEASURES = {
    "jain": "Jain's index",
    "cosine_similarity": "Cosine similarity",
    "entropy": "Entropy",
    "average_variance": "Average variance",
}
# Colours are those of Okabe and Ito, which colour-blind readers can tell apart; the two baselines are grey.
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


CONSTANT_STYLE = MethodStyle(GREY, "x", "longdash", hollow=False)  # of majority class or mean value


def assign_styles(baselines: Sequence[bool]) -> list[MethodStyle]:
    """Return a style for each method, in the order of their rank; `baselines` says which are baselines."""
    styles, greys, numbers = [], cycle((("bowtie", "dot"), ("hourglass", "dash"))), count()
    for baseline in baselines:
        if baseline:
            styles.append(MethodStyle(GREY, *next(greys), hollow=True))
            continue
        number = next(numbers)
        dash = DASHES[(number + number // NUM_COLOURS) % len(DASHES)]
        hollow = number >= len(MARKERS)
        styles.append(MethodStyle(number % NUM_COLOURS, MARKERS[number % len(MARKERS)], dash, hollow))
    return styles


@dataclass(frozen=True)
class Control:
    """A menu or a row of radio buttons; the first option is chosen."""

    kind: str  # "select" or "switch"
    name: str
    label: str
    options: Mapping[str, str]  # value -> text
    hidden: bool = False


@dataclass(frozen=True)
class Figure:
    """A figure, or the reason why it is left out."""

    kind: str  # the function in page.js that draws it
    key: str  # its key in the page's numbers, and its anchor
    title: str
    caption: str = ""
    description: str = ""
    half: bool = False
    controls: Sequence[Control] = ()
    data: Mapping[str, Any] = field(default_factory=dict)
    missing: str = ""  # why it is left out


def make_figure(
    kind: str, key: str, words: Mapping[str, str] | None = None, *, text: str = "", **content: Any
) -> Figure:
    """Return a figure with the texts of its kind, or of the entry `text` of figures.toml, filled in with `words`."""
    texts = read_texts("figures.toml")[text or kind]
    filled = {name: texts[name].format(**words or {}) for name in ("title", "caption", "description")}
    return Figure(kind, key, **filled, half=texts.get("half", False), **content)


@cache
def read_texts(name: str) -> dict[str, dict[str, Any]]:
    """Return the contents of a TOML file in templates/."""
    return tomllib.loads(resources.files("bespokefl.report").joinpath("templates", name).read_text(encoding="utf-8"))


@dataclass(frozen=True)
class Section:
    """A heading with figures."""

    title: str
    text: str
    figures: Sequence[Figure]
    per_client: bool = False  # has the search for a client and the table of all clients

    @property
    def arranged(self) -> list[Figure]:
        """The figures; a narrow figure that has no neighbour to share a row with takes the full width."""
        found: list[Figure] = []
        while len(found) < len(self.figures):
            first, *others = self.figures[len(found) : len(found) + 2]
            paired = others and all(one.half and not one.missing for one in (first, *others))
            found += [first, *others] if paired else [replace(first, half=False)]
        return found


def page_numbers(
    document: Document, methods: Sequence[Document], styles: Sequence[MethodStyle], *, fractions: bool = False
) -> dict[str, Any]:
    """Return the numbers that the figures share, for methods in the order of their rank.

    With `fractions`, scores that are shown in per cent are fractions, as in files.
    """
    score = document["score"]
    followed = followed_score(methods, score)
    percent, followed_percent = (metric_of(one).percent and not fractions for one in (score, followed))
    systems = [system["name"] for system in document["systems"]]
    listed = []
    for method, style in zip(methods, styles, strict=True):
        gains = client_gains(method)
        fairness = (method["figures"].get("fairness") or {}).get("improved") or {}
        listed.append(
            {
                "name": method["name"],
                "colour": style.colour,
                "symbol": style.plotly_symbol,
                "dash": style.dash,
                "baseline": method["baseline"] or bool(method.get("constant")),
                "constant": bool(method.get("constant")),
                "scores": rounded(client_scores(method, score), percent),
                "gains": None if gains is None else rounded(gains, percent),
                "fair": [rounded(fairness.get(measure)) for measure in FAIRNESS_MEASURES],
                "curve": None if method.get("constant") else curve(method, followed, followed_percent, systems),
                "client_curves": client_curves(method, _curves_percent(method) and not fractions),
            }
        )
    baselines = [at for at, method in enumerate(methods) if method["baseline"]]
    others = [at for at, method in enumerate(methods) if not method["baseline"] and not method.get("constant")]
    constants = [at for at, method in enumerate(methods) if method.get("constant")]
    for at in constants:
        listed[at]["curve"] = level_line(methods[at], followed, followed_percent, [one["curve"] for one in listed])
    return {
        "score": score,
        "title": metric_of(score).title,
        "percent": percent,
        "followed": {"score": followed, "title": metric_of(followed).title, "percent": followed_percent},
        "higher": document["higher_is_better"],
        "kind": document["kind"],
        "seeds": len(document["seeds"]),
        "clients": document["clients"]["names"],
        "sizes": document["clients"]["train"],
        "systems": systems,
        "measures": [[name, key in LOWER_IS_FAIRER] for key, name in FAIRNESS_MEASURES.items()],
        "methods": listed,
        "references": baselines,
        "shown": sorted(baselines + others[:MAX_METHODS_SHOWN] + constants),
        "focus": others[0] if others else 0,
    }


def _curves_percent(method: Document) -> bool:
    return metric_of((method.get("client_curves") or {}).get("score", "")).percent


def general_sections(document: Document, numbers: Mapping[str, Any]) -> list[Section]:
    """Return the sections that every page has."""
    curves = Section("Over the rounds", "", [_curves(numbers), *_convergence(numbers)])
    if not any(value is not None for method in numbers["methods"] for value in method["scores"]):
        reason = "no client has test data." if document["finished"] else "the clients have not been tested one by one."
        missing = Figure("scatter", "clients-figures", "Every client", missing=reason)
        return [curves, Section("Client by client", "", [missing])]
    return [
        curves,
        Section("Client by client", _per_client_text(numbers), _per_client(numbers), per_client=True),
        Section("Spread and fairness", "", _spread(numbers)),
    ]


def _score_words(numbers: Mapping[str, Any]) -> dict[str, str]:
    return _words(numbers["title"])


def _words(title: str) -> dict[str, str]:
    return {"score": title, "Score": title[0].upper() + title[1:]}


def _curves(numbers: Mapping[str, Any]) -> Figure:
    curves = [one["curve"] for one in numbers["methods"] if one["curve"] is not None]
    timed = any(times is not None for curve in curves for times in curve["time"])
    axes = {"round": "rounds", "bytes": "data sent"} | ({"time": "model time"} if timed else {})
    controls = [Control("switch", "axis", "Against", axes)]
    if timed:
        systems = {str(at): name for at, name in enumerate(numbers["systems"])}
        controls.append(Control("select", "system", "in a system with", systems, hidden=True))
    band = "the band is one standard error over seeds" if numbers["seeds"] > 1 else "one seed, so there is no band"
    missing = "" if curves else "no round was evaluated; set eval_every to at least 1."
    words = _words(numbers["followed"]["title"]) | {"band": band}
    return make_figure("curves", "curves", words, controls=controls, missing=missing)


def _convergence(numbers: Mapping[str, Any]) -> list[Figure]:
    """Return the figure of the clients' own curves; none if an earlier version wrote the runs."""
    curves = [one["client_curves"] for one in numbers["methods"] if one["client_curves"] is not None]
    if not curves:
        return []
    num, drawn = len(numbers["clients"]), len(curves[0]["clients"])
    lines = "the clients" if drawn == num else f"{drawn} of the {num} clients"
    words = _words(numbers["followed"]["title"]) | {"lines": lines}
    options = {str(at): one["name"] for at, one in enumerate(numbers["methods"]) if one["client_curves"]}
    controls = [Control("select", "converging", "Method", options)] if len(options) > 1 else []
    return [make_figure("convergence", "convergence", words, controls=controls)]


def _per_client_text(numbers: Mapping[str, Any]) -> str:
    score = numbers["title"]
    if numbers["kind"] == "run":
        against = f", against its {score} with the global model" if numbers["references"] else ""
        return f"Every point is a client: its {score} with its own model{against}."
    text = f"Every point is a client: its {score} with a method, against its {score} with a baseline."
    return text if numbers["seeds"] == 1 else f"{text} Scores are means over {numbers['seeds']} seeds."


def _per_client(numbers: Mapping[str, Any]) -> list[Figure]:
    words, single = _score_words(numbers), numbers["kind"] == "run"
    side = "above" if numbers["higher"] else "below"
    levels = [one["name"] for one in numbers["methods"] if one["constant"]]
    constant = f" Long dashes: the mean of the {levels[0]}." if levels else ""
    figures = []
    for at, baseline in enumerate(numbers["references"]):
        name = numbers["methods"][baseline]["name"]
        data = {"reference": baseline}
        figures.append(
            make_figure(
                "scatter", f"against-{at}", words | {"name": name, "side": side, "constant": constant}, data=data
            )
        )
    if single and not figures:
        missing = "the method has no global model to compare with; bespoke compare trains Local and FedAvg as well."
        figures.append(Figure("scatter", "against-0", "Against a global model", missing=missing))
    sizes = numbers["sizes"]
    same = f"every client has {sizes[0]} training examples." if len(set(sizes)) == 1 else ""
    models = "their own models" if single else "the method chosen above"
    return [*figures, make_figure("size", "size", words | {"models": models}, missing=same)]


def _spread(numbers: Mapping[str, Any]) -> list[Figure]:
    gained = [one for one in numbers["methods"] if one["gains"] is not None and not one["constant"]]
    no_gains = no_fairness = ""
    if not gained:
        no_gains = no_fairness = (
            "this is a single run; bespoke compare trains Local and FedAvg as well."
            if numbers["kind"] == "run"
            else "no method has been compared with both Local and FedAvg yet."
        )
    elif not any(value is not None for one in gained for value in one["fair"]):
        no_fairness = "no client is better off with any method."
    return [
        make_figure("histogram", "histogram", _score_words(numbers)),
        make_figure("density", "density", missing=no_gains),
        make_figure("fairness", "fairness", missing=no_fairness),
    ]
