"""What limits the verdict of a comparison: methods that are untuned, and methods that computed more than others."""

from dataclasses import replace
from typing import TYPE_CHECKING

from bespokefl.core.errors import listing
from bespokefl.metrics.verdict import Verdict
from bespokefl.metrics.work import unequal

if TYPE_CHECKING:
    from bespokefl.workflows.compare.result import Comparison


UNTUNED, PARTLY_TUNED = "untuned", "partly tuned"


def reservations(found: "Comparison") -> list[str]:
    """Return why no method can be called best or fairest, whatever the scores are."""
    untuned = found.untuned_methods
    if found.tuning_state == UNTUNED:
        return ["the methods are untuned, and tuning may change the order"]
    if untuned:
        verb = "is" if len(untuned) == 1 else "are"
        names = listing(untuned, len(untuned))
        return [f"{names} {verb} not tuned, and tuning may change the order"]
    if found.metadata.tuning is not None and found.metadata.tuning["tuned"] is None:
        return ["it is unknown whether the methods were tuned, so that this is a statement about these runs only"]
    return []


def marked(found: "Comparison", verdict: Verdict) -> Verdict:
    """Return the verdict with a sentence that begins with "Untuned" or "Partly tuned" if the methods are."""
    state = found.tuning_state
    return replace(verdict, sentence=f"{state.capitalize()}: {verdict.sentence}") if state else verdict


def qualified(found: "Comparison", verdict: Verdict) -> Verdict:
    """Return the verdict, marked, with a sentence that says if the methods differ in their work."""
    return replace(verdict, sentence=" ".join([marked(found, verdict).sentence, *work_sentences(found)]))


def work_sentences(found: "Comparison") -> list[str]:
    """Return which methods computed more or less than the others, if it is more than a few percent."""
    every = {name: one["work"] for name, one in found.figures.items() if one is not None}
    work = {name: one for name, one in every.items() if one is not None}
    if len(work) < 2:
        return []
    factors = unequal({name: one["gradients"] for name, one in work.items()})
    heads = {name: one["head_gradients"] / max(1, one["gradients"]) for name, one in work.items()}
    heads = {name: factor for name, factor in heads.items() if factor > 0}
    parts = []
    if factors:
        listed = listing([f"{value:.2g} times as large for {name}" for name, value in factors.items()])
        parts.append(f"compared with most methods, the number of gradients is {listed}")
    if heads:
        listed = listing([f"{name} ({value:.2g} times its other gradients)" for name, value in heads.items()])
        parts.append(f"gradients of the head alone are computed in addition by {listed}")
    return [f"The work differs: {'; '.join(parts)}."] if parts else []
