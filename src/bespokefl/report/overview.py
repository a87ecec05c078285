"""The verdicts and the references of a page."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from bespokefl.core.errors import count
from bespokefl.metrics.metric import metric_of
from bespokefl.report.document import Document, client_scores, finished_runs, oriented
from bespokefl.report.figures import MethodStyle
from bespokefl.report.tables import format_error, format_score


@dataclass(frozen=True)
class Card:
    """A verdict: a winner, one number in large type, and a sentence."""

    title: str
    winner: str
    figure: str
    sentence: str
    style: MethodStyle | None = None  # of the winner, if it is a method
    shares: tuple[float, float] | None = None  # percentages of clients that are better and worse off


def verdict_cards(document: Document, methods: Sequence[Document], styles: Sequence[MethodStyle]) -> list[Card]:
    """Return the headline: the best method, the fairest one, and how many clients are better off."""
    cards = []
    by_name = {method["name"]: (method, style) for method, style in zip(methods, styles, strict=True)}
    score, percent = document["score"], metric_of(document["score"]).percent
    for key, title in (("best", "Best performing"), ("fairest", "Fairest")):
        verdict = document["verdicts"].get(key)
        if verdict is None:
            continue
        if key == "best" and not verdict.get("conclusive", True):  # earlier versions did not write it
            title = "Best mean"
        if verdict["method"] not in by_name:
            cards.append(Card(title, "none", "", verdict["sentence"]))
            continue
        winner, style = by_name[verdict["method"]]
        if key == "best":
            statistics = winner["figures"][score]
            error = "" if statistics["sem"] is None else f" ± {format_error(statistics['sem'], percent)}"
            figure = f"{format_score(statistics['mean'], percent)}{error}{' %' if percent else ''}"
        else:
            statistics = winner["figures"][score]
            worst, deviation = (statistics[name] for name in ("worst_decile", "std"))
            figure = f"worst 10 %: {format_score(worst, percent)}, SD {format_score(deviation, percent)}"
        cards.append(Card(title, winner["name"], figure, verdict["sentence"], style))
    return [*cards, *_better_off(document, methods)]


def _better_off(document: Document, methods: Sequence[Document]) -> list[Card]:
    """Return a card that says how many clients are better off with the best method than with the baselines."""
    gains = {
        method["name"]: method["figures"]["gain"]
        for method in methods
        if (method["figures"]["gain"] or {}).get("improved_share") is not None
    }
    if not gains:
        return []
    best = (document["verdicts"].get("best") or {}).get("method")
    name = best if best in gains else next(iter(gains))
    better, worse = gains[name]["improved_share"], gains[name]["decreased_share"]
    scores = oriented([client_scores(one, document["score"]) for one in methods], document["higher_is_better"])
    tested = np.isfinite(scores.max(0))
    baseline = np.array([one["baseline"] for one in methods])
    unimproved = int(((scores[baseline].max(0) >= scores[~baseline].max(0)) & tested).sum())
    total = int(tested.sum())
    sentence = (
        f"With {name}, {better:.0f} % of the clients are better off than with the better of Local and FedAvg, and "
        f"{worse:.0f} % are worse off. "
    )
    sentence += (
        f"For {unimproved} of {count(total, 'client')}, no method is better than both Local and FedAvg."
        if unimproved
        else "For every client, some method is better than both Local and FedAvg."
    )
    answer = "All clients" if better == 100 else "No client is worse off" if worse == 0 else "Not all clients"
    figure = f"{better:.0f} % better, {worse:.0f} % worse"
    return [Card("Better off?", answer, figure, sentence, shares=(better, worse))]


def tuning_state(document: Document) -> str:
    """Return "untuned" or "partly tuned", or nothing if all methods are tuned or it is unknown."""
    return str(document.get("tuning_state", "untuned" if document.get("untuned") else ""))


def warnings(document: Document) -> list[tuple[str, str]]:
    """Return what limits the results, a word and a sentence each: unfinished, untuned, or with one seed only."""
    single, found = document["kind"] == "run", []
    runs = [run for method in document["methods"] for run in finished_runs(method)]
    if not document["finished"] and single:
        run = runs[0]
        done = f"the run stopped after {run['rounds_done']} of {run['rounds_planned']} rounds."
        found.append(("Unfinished", f"{done} These are the results so far."))
    elif not document["finished"]:
        stopped = sum(bool(run.get("interrupted")) for run in runs)
        planned = document.get("planned", len(document["methods"]) * len(document["seeds"]))
        parts = f", {stopped} of them stopped before its last round" if stopped else ""
        sentence = f"{len(runs)} of {planned} runs are available{parts}. These are the results so far; the same "
        found.append(("Unfinished", f"{sentence}command continues the comparison."))
    if document.get("untuned"):
        state = tuning_state(document)
        found.append((state.capitalize(), "tuning may change the order of the methods."))
    if not single and len(document["seeds"]) == 1:
        sentence = "One seed: there is no standard error, and the randomness of training is not accounted for."
        found.append(("", sentence))
    return found


def bibtex(document: Document, citations: Mapping[str, str]) -> str:
    """Return the BibTeX entries of the methods, each once."""
    entries = (method["citation"] or citations.get(method["method"], "") for method in document["methods"])
    return "\n\n".join(dict.fromkeys(entry.strip() for entry in entries if entry))
