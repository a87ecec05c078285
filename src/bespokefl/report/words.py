"""What a page says before it shows anything: what was compared, the verdicts, and what a reader has to know."""

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

import numpy as np

from bespokefl.core.errors import count
from bespokefl.report.figures import finished, scores
from bespokefl.report.source import Document
from bespokefl.report.style import Look
from bespokefl.report.tables import error_of, name, short


def facts(document: Document) -> str:
    data = document["data"]
    rounds = document["config"].get("rounds")
    seeds = document["seeds"]
    found = [
        ("data", f"{data['name']}"),
        ("split", f"{data['split']}"),
        ("clients", f"{data['clients']}"),
        ("model", f"{document['model']}"),
        *([("rounds", f"{rounds}")] if rounds is not None else []),
        ("seed" if len(seeds) == 1 else "seeds", ", ".join(map(str, seeds)) or "none"),
    ]
    listed = "".join(f"<div><dt>{escape(key)}</dt><dd>{escape(value)}</dd></div>" for key, value in found)
    return f'<dl class="facts">{listed}</dl>'


def warnings(document: Document) -> str:
    """What changes how all the rest is to be read."""
    found = []
    if not document["finished"]:
        found.append(_unfinished(document))
    if document["kind"] == "comparison" and len(document["seeds"]) == 1:
        found.append("One seed: there is no standard error, and chance in training is not accounted for.")
    if not found:
        return ""
    return f'<div class="warning" role="note">{"".join(f"<p>{one}</p>" for one in found)}</div>'


def _unfinished(document: Document) -> str:
    if document["kind"] == "run":
        run = document["methods"][0]["runs"][0]
        return (
            f"<strong>Unfinished:</strong> the run stopped after {run['rounds_done']} of {run['rounds_planned']} "
            "rounds. This is what there is."
        )
    methods = document["methods"]
    planned = document.get("planned", len(methods) * len(document["seeds"]))
    there = sum(len(finished(method)) for method in methods)
    part = sum(bool(run.get("interrupted")) for method in methods for run in finished(method))
    stopped = f", {part} of them stopped before the last round" if part else ""
    return (
        f"<strong>Unfinished:</strong> {there} of {planned} runs are there{stopped}. This is what there is; the same "
        "command goes on with it."
    )


def verdicts(document: Document, methods: Sequence[Document], looks: Sequence[Look]) -> str:
    """The headline: who is best, who is fairest, and who is better off."""
    cards = []
    by_name = {method["name"]: (method, look) for method, look in zip(methods, looks, strict=True)}
    score, percent = document["score"], document["score"] == "accuracy"
    for key, title in (("best", "Best performing"), ("fairest", "Fairest")):
        verdict = document["verdicts"].get(key)
        if verdict is None:
            continue
        winner = by_name.get(verdict["method"])
        if winner is None:
            cards.append(card(title, "none", "", verdict["sentence"]))
            continue
        found = winner[0]["figures"][score]
        error = "" if found["sem"] is None else f" ± {error_of(found['sem'], percent)}"
        figure = f"{short(found['mean'], percent)}{error}{' %' if percent else ''}" if key == "best" else _sure(verdict)
        cards.append(card(title, name(*winner), figure, verdict["sentence"]))
    better = _better_off(document, methods)
    return f'<div class="cards">{"".join(cards)}{better}</div>' if cards or better else ""


def _sure(verdict: Mapping[str, Any]) -> str:
    votes = list(verdict["votes"].values())
    return f"{votes.count(verdict['method'])} of {len(votes)} measures" if votes else ""


def card(title: str, winner: str, figure: str, sentence: str) -> str:
    """A verdict; winner and figure are HTML."""
    large = f'<p class="figure-of">{figure}</p>' if figure else ""
    return (
        f'<section class="card"><h2>{escape(title)}</h2><p class="winner">{winner}</p>{large}'
        f"<p>{escape(sentence)}</p></section>"
    )


def _better_off(document: Document, methods: Sequence[Document]) -> str:
    """Whether every client is better off, and with what."""
    helped = [
        (method, method["figures"]["gain"])
        for method in methods
        if (method["figures"]["gain"] or {}).get("improved_share") is not None
    ]
    if not helped:
        return ""
    best = (document["verdicts"].get("best") or {}).get("method")
    method, gain = next((one for one in helped if one[0]["name"] == best), helped[0])
    better, worse = gain["improved_share"], gain["decreased_share"]
    sign = 1.0 if document["higher_is_better"] else -1.0
    stacked = np.stack([sign * scores(one, document["score"]) for one in methods])
    stacked = np.where(np.isnan(stacked), -np.inf, stacked)
    there = np.isfinite(stacked.max(0))
    basic = np.array([one["baseline"] for one in methods])
    alone = int(((stacked[basic].max(0) >= stacked[~basic].max(0)) & there).sum())
    total = int(there.sum())
    sentence = (
        f"With {method['name']}, {better:.0f} % of the clients have more than with the better of Local and FedAvg, and "
        f"{worse:.0f} % have less. "
    )
    sentence += (
        f"For {count(alone, 'client')} of {total} no method is better than Local or FedAvg."
        if alone
        else f"For each of the {total} clients some method is better than Local and FedAvg."
    )
    bar = (
        f'<span class="shares large" aria-hidden="true"><i class="better" style="width:{better:.1f}%"></i>'
        f'<i class="same" style="width:{max(0.0, 100 - better - worse):.1f}%"></i>'
        f'<i class="worse" style="width:{worse:.1f}%"></i></span>'
    )
    head = "Every client" if better == 100 else "Nobody is worse off" if worse == 0 else "Not everybody"
    return (
        f'<section class="card"><h2>Better off?</h2><p class="winner">{head}</p>'
        f'<p class="figure-of">{better:.0f} % better, {worse:.0f} % worse</p>{bar}<p>{escape(sentence)}</p></section>'
    )


def remarks(document: Document) -> str:
    """The notes, which tell failures and what was left out, too, and who is in no figure; one sentence each."""
    found = [str(one) for one in document["notes"]]
    for method in document["methods"]:
        if method["failed"]:
            found.append(f"{method['name']} is in no figure, as it failed.")
        elif method["figures"] is None:
            found.append(f"{method['name']} is in no figure, as none of its runs is there yet.")
    if not found:
        return ""
    return f'<ul class="remarks">{"".join(f"<li>{escape(one)}</li>" for one in found)}</ul>'


def repeat(document: Document) -> str:
    """How to get these figures once more."""
    data = document["data"]
    hashes = [("split", f"{data['split_hash']} (seed {data['split_seed']})")]
    rows = hashes + [(key, str(value)) for key, value in document["versions"].items()]
    listed = "".join(f"<div><dt>{escape(key)}</dt><dd><code>{escape(value)}</code></dd></div>" for key, value in rows)
    command = document["command"]
    first = _code("command", "The command", command) if command else "<p>It was called from Python.</p>"
    return (
        f"{first}{_code('config', 'The configuration', document['config_text'])}"
        f'<h3>Hashes and versions</h3><dl class="versions">{listed}</dl>{_hyper(document)}'
    )


def _code(key: str, title: str, text: str) -> str:
    return (
        f'<h3>{escape(title)}</h3><div class="code"><pre id="{key}" tabindex="0">{escape(text.strip())}</pre>'
        f'<button type="button" class="copy scripted" data-copy="{key}">copy</button></div>'
    )


def _hyper(document: Document) -> str:
    seen: dict[str, dict[str, Any]] = {}
    tuned: dict[str, str] = {}
    for method in document["methods"]:
        label = method["method"] if document["kind"] == "run" else method["name"]
        seen[label] = method["hyper"]
        if method["tuned"]:
            chosen = ", ".join(f"{key} = {value}" for key, value in method["tuned"]["chosen"].items())
            points = count(len(method["tuned"]["points"]), "point")
            tuned[label] = f"{chosen} was chosen by {method['tuned']['by'].replace('_', ' ')} among {points}."
    lines = "".join(
        f'<tr><th scope="row">{escape(label)}</th><td>'
        + (", ".join(f"<code>{escape(f'{key} = {value}')}</code>" for key, value in hyper.items()) or "none")
        + (f"<p>{escape(tuned[label])}</p>" if label in tuned else "")
        + "</td></tr>"
        for label, hyper in seen.items()
    )
    return (
        '<details><summary>Hyper-parameters as run</summary><table class="plain hyper"><thead><tr><th scope="col">'
        f'Method</th><th scope="col">Hyper-parameters</th></tr></thead><tbody>{lines}</tbody></table></details>'
    )


def references(document: Document, citations: Mapping[str, str]) -> str:
    """BibTeX of what was run."""
    found = dict.fromkeys(
        text.strip()
        for method in document["methods"]
        if (text := method["citation"] or citations.get(method["method"], ""))
    )
    if not found:
        return "<p>Nothing is known to be cited.</p>"
    return (
        '<div class="code"><pre id="bibtex" tabindex="0">' + escape("\n\n".join(found)) + "</pre>"
        '<button type="button" class="copy scripted" data-copy="bibtex">copy</button></div>'
    )
