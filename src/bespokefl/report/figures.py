"""The figures of a page: what each is called, how to read it, and the numbers that it is drawn from.

page.js draws them; here is only what it needs, rounded to what can be seen.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from html import escape
from typing import Any

import numpy as np

from bespokefl.metrics import standard_error
from bespokefl.metrics.fairness import LOWER_IS_FAIRER
from bespokefl.report.source import Document
from bespokefl.report.style import Look

MOST_POINTS = 150  # of a curve: more cannot be told apart
MOST_SHOWN = 5  # methods that are drawn at first, besides what they are measured against
MEASURES = {
    "jain": "Jain's index",
    "cosine_similarity": "Cosine similarity",
    "entropy": "Entropy",
    "average_variance": "Average variance",
}


@dataclass(frozen=True)
class Figure:
    """One figure, or the reason why it is not there."""

    kind: str  # what page.js draws
    key: str  # its place among the page's numbers, and in addresses
    title: str
    words: str  # how to read it
    label: str  # what it shows, for those who cannot see it
    controls: str = ""  # HTML
    data: dict[str, Any] = field(default_factory=dict)
    missing: str = ""  # why it is left out
    half: bool = False  # two stand beside each other where there is room

    def html(self) -> str:
        head = f"<h3>{escape(self.title)}</h3>"
        place = f'id="{self.key}" class="figure{" half" if self.half else ""}"'
        if self.missing:
            return f'<figure {place}>{head}<p class="missing">Left out: {escape(self.missing)}</p></figure>'
        return (
            f"<figure {place}>{head}<figcaption>{escape(self.words)}</figcaption>{self.controls}"
            f'<p class="says" aria-live="polite"></p><div class="plot" role="img" data-kind="{self.kind}" '
            f'data-key="{self.key}" aria-label="{escape(self.label)}"></div></figure>'
        )


def paired(found: Sequence[Figure]) -> list[Figure]:
    """A narrow figure without a neighbour becomes wide."""
    listed: list[Figure] = []
    waiting = False  # for a neighbour
    for at, one in enumerate(found):
        narrow = one.half and not one.missing
        if narrow and not waiting:
            follows = at + 1 < len(found) and found[at + 1].half and not found[at + 1].missing
            narrow = waiting = follows
        else:
            waiting = False
        listed.append(replace(one, half=narrow))
    return listed


def rounded(values: Any, percent: bool) -> Any:
    """Two decimals of a percentage, five digits of anything else; None for what is not there."""
    if isinstance(values, np.ndarray | list | tuple):
        return [rounded(one, percent) for one in values]
    if values is None or not np.isfinite(values):
        return None
    short = round(100 * float(values), 2) if percent else float(f"{values:.5g}")
    return int(short) if short == int(short) else short


def table(rows: Sequence[Sequence[float | None]]) -> np.ndarray:
    return np.array([[np.nan if one is None else one for one in row] for row in rows], dtype=np.float64)


def mean(rows: np.ndarray) -> np.ndarray:
    """Over seeds; NaN where there is none."""
    there = ~np.isnan(rows)
    num = there.sum(0)
    found = np.full(rows.shape[1], np.nan)
    np.divide(np.where(there, rows, 0.0).sum(0), num, out=found, where=num > 0)
    return found


def finished(method: Mapping[str, Any]) -> list[Document]:
    return [run for run in method["runs"] if not run.get("failed")]


def scores(method: Mapping[str, Any], score: str) -> np.ndarray:
    """Each client's, mean over seeds."""
    return mean(table([run["personal"][score] for run in finished(method)]))


def gains(method: Mapping[str, Any]) -> np.ndarray | None:
    """Each client's, mean over seeds; None where nothing is there to be measured against."""
    found = [run["gain"] for run in finished(method) if run.get("gain") is not None]
    return mean(table(found)) if found else None


def numbers(document: Document, methods: Sequence[Document], looks: Sequence[Look]) -> dict[str, Any]:
    """Everything that is drawn, for the methods given, best first."""
    score = document["score"]
    percent = score == "accuracy"
    listed = []
    for method, look in zip(methods, looks, strict=True):
        gained = gains(method)
        figures = method["figures"]
        fair = (figures.get("fairness") or {}).get("improved") or {}
        listed.append(
            {
                "name": method["name"],
                "colour": look.colour,
                "symbol": look.symbol,
                "dash": look.dash,
                "baseline": method["baseline"],
                "scores": rounded(scores(method, score), percent),
                "gains": None if gained is None else rounded(gained, percent),
                "fair": [rounded(fair.get(measure), False) for measure in MEASURES],
                "curve": curve(method, score, percent, [system["name"] for system in document["systems"]]),
            }
        )
    ahead = [at for at, one in enumerate(listed) if not one["baseline"]]
    return {
        "score": score,
        "percent": percent,
        "higher": document["higher_is_better"],
        "kind": document["kind"],
        "seeds": len(document["seeds"]),
        "clients": document["clients"]["names"],
        "sizes": document["clients"]["train"],
        "systems": [system["name"] for system in document["systems"]],
        "measures": [[name, key in LOWER_IS_FAIRER] for key, name in MEASURES.items()],
        "methods": listed,
        "references": [at for at, one in enumerate(listed) if one["baseline"]],
        "shown": sorted([at for at, one in enumerate(listed) if one["baseline"]] + ahead[:MOST_SHOWN]),
        "focus": ahead[0] if ahead else 0,
    }


def curve(method: Mapping[str, Any], score: str, percent: bool, systems: Sequence[str]) -> dict[str, Any] | None:
    """The score in every round that was evaluated, mean over seeds, with its standard error, and what it had cost."""
    histories = [run["history"] for run in finished(method) if run.get("history")]
    at: dict[int, list[tuple[int, int]]] = {}  # round -> which histories, and where in them
    for which, history in enumerate(histories):
        for place, (number, value) in enumerate(zip(history["round"], history[score], strict=True)):
            if value is not None:
                at.setdefault(number, []).append((which, place))
    if not at:
        return None
    chosen = sorted(at)
    if len(chosen) > MOST_POINTS:
        chosen = [chosen[k] for k in np.unique(np.linspace(0, len(chosen) - 1, MOST_POINTS).round().astype(int))]

    def column(*path: str) -> list[list[float]]:
        columns = []
        for history in histories:
            found = history
            for step in path:
                found = found[step]
            columns.append(found)
        return [[columns[which][place] for which, place in at[number]] for number in chosen]

    values = column(score)
    sent = [np.add(up, down).mean() for up, down in zip(column("up_bytes"), column("down_bytes"), strict=True)]
    timed = all(history.get("model_time") for history in histories)
    return {
        "round": chosen,
        "mean": rounded([float(np.mean(one)) for one in values], percent),
        "sem": rounded([standard_error(one) for one in values], percent),
        "bytes": [round(float(one)) for one in sent],
        "time": [
            [rounded(float(np.mean(one)), False) for one in column("model_time", system)] if timed else None
            for system in systems
        ],
    }


def switch(name: str, words: str, choices: Mapping[str, str]) -> str:
    """Radio buttons in a row; the first is chosen."""
    buttons = "".join(
        f'<label><input type="radio" name="{name}" value="{escape(value)}"{" checked" if at == 0 else ""}>'
        f"<span>{escape(said)}</span></label>"
        for at, (value, said) in enumerate(choices.items())
    )
    return f'<fieldset class="switch scripted"><legend>{escape(words)}</legend>{buttons}</fieldset>'


def choice(name: str, words: str, options: Mapping[str, str], more: str = "") -> str:
    listed = "".join(f'<option value="{escape(value)}">{escape(said)}</option>' for value, said in options.items())
    return f'<label class="choice scripted">{escape(words)} <select name="{name}"{more}>{listed}</select></label>'


def general(document: Document, drawn: Mapping[str, Any]) -> list[tuple[str, str, list[Figure]]]:
    """The sections that every page has: heading, words, figures."""
    methods, percent = drawn["methods"], drawn["percent"]
    what = "accuracy" if percent else "loss"
    kind = document["kind"]
    seeds = drawn["seeds"]
    if not any(value is not None for method in methods for value in method["scores"]):
        untested = (
            "no client has a test figure of its own yet." if not document["finished"] else "no client has test data."
        )
        return [
            ("Over the rounds", "", [_curves(drawn, what, seeds)]),
            ("Client by client", "", [Figure("scatter", "clients-figures", "Every client", "", "", missing=untested)]),
        ]
    names = [method["name"] for method in methods]
    return [
        ("Over the rounds", "", [_curves(drawn, what, seeds)]),
        ("Client by client", _clients_words(drawn), _clients(drawn, what, names)),
        ("Spread and fairness", "", _spread(drawn, what, kind)),
    ]


def _curves(drawn: Mapping[str, Any], what: str, seeds: int) -> Figure:
    there = [one["curve"] for one in drawn["methods"] if one["curve"] is not None]
    missing = "" if there else "no round was evaluated; choose eval_every of at least 1."
    timed = any(one is not None for curve in there for one in curve["time"])
    axes = {"round": "rounds", "bytes": "data sent"} | ({"time": "model time"} if timed else {})
    systems = {str(at): name for at, name in enumerate(drawn["systems"])}
    controls = switch("axis", "Against", axes)
    if timed:
        controls += choice("system", "in a system with", systems, " hidden")
    band = "; the band is one standard error over seeds" if seeds > 1 else "; one seed, so there is no band"
    return Figure(
        "curves",
        "curves",
        f"{what.capitalize()} against what it costs",
        f"Mean over clients, each on its own test data{band}. Model time is counted in T, the time of sending one "
        "model down to the clients.",
        f"Lines: mean {what} of each method against rounds, data sent or model time.",
        f'<div class="controls">{controls}</div>',
        missing=missing,
    )


def _clients_words(drawn: Mapping[str, Any]) -> str:
    over = "" if drawn["seeds"] == 1 else f" A client's figure is its mean over {drawn['seeds']} seeds."
    if drawn["kind"] == "run":
        against = ", against what it has from the common one" if drawn["references"] else ""
        return f"Every point is a client: what it has from its own model{against}."
    return "Every point is a client: what it has from a method, against what it has without one." + over


def _clients(drawn: Mapping[str, Any], what: str, names: Sequence[str]) -> list[Figure]:
    side = "above" if drawn["higher"] else "below"
    found = [
        Figure(
            "scatter",
            f"against-{at}",
            f"Against {names[reference]}",
            f"Clients {side} the diagonal are better off. The larger the marker, the more training data.",
            f"Points: {what} of each client against what it has with {names[reference]}.",
            data={"reference": reference},
            half=True,
        )
        for at, reference in enumerate(drawn["references"])
    ]
    if drawn["kind"] == "run" and not found:
        missing = "the method has no global model to compare with; bespoke compare runs Local and FedAvg beside it."
        found = [Figure("scatter", "against-0", "Against a common model", "", "", missing=missing)]
    sizes = np.array(drawn["sizes"])
    same = f"every client has {sizes[0]} training examples." if len(np.unique(sizes)) == 1 else ""
    found.append(
        Figure(
            "size",
            "size",
            f"{what.capitalize()} against local data",
            "Lines: mean over clients with about as many training examples. Faint points: the clients, with "
            + ("their own models." if drawn["kind"] == "run" else "the method chosen above."),
            f"Lines: mean {what} of each method against the number of a client's training examples.",
            missing=same,
        )
    )
    return found


def _spread(drawn: Mapping[str, Any], what: str, kind: str) -> list[Figure]:
    gained = [one for one in drawn["methods"] if one["gains"] is not None]
    fair = [one for one in gained if any(value is not None for value in one["fair"])]
    alone = "this is a single run; bespoke compare runs Local and FedAvg beside it." if kind == "run" else ""
    nobody = "no method was measured against both Local and FedAvg yet."
    return [
        Figure(
            "histogram",
            "histogram",
            f"Clients by {what}",
            "How many clients have which figure, a row for each method on one scale. The marker is the mean.",
            f"Histograms of the clients' {what}, one for each method.",
            half=True,
        ),
        Figure(
            "density",
            "density",
            "Clients by what they gain",
            "Density of the gain over the better of Local and FedAvg (QoI). Right of the line is better off.",
            "Densities of the clients' gains, one for each method.",
            missing="" if gained else alone or nobody,
            half=True,
        ),
        Figure(
            "fairness",
            "fairness",
            "How evenly the gains are spread",
            "Four measures of the gains of the clients that are better off. Longer is fairer, but for the variance, "
            "where shorter is. The fairest is outlined.",
            "Bars: four measures of fairness for each method.",
            missing="" if fair else alone or (nobody if not gained else "no client is better off with any method."),
        ),
    ]
