"""What limits the verdict of a comparison: untuned methods, a constant predictor as good as they are, unequal work."""

from dataclasses import replace
from typing import TYPE_CHECKING

from bespokefl.core.errors import listing
from bespokefl.metrics.mixed_model import estimate
from bespokefl.metrics.verdict import Verdict
from bespokefl.metrics.work import unequal
from bespokefl.workflows.compare.statistics import LEVEL, constant_figures
from bespokefl.workflows.results.score_tables import constant_title

if TYPE_CHECKING:
    from bespokefl.workflows.compare.result import Comparison


UNTUNED, PARTLY_TUNED = "untuned", "partly tuned"


def reservations(found: "Comparison") -> list[str]:
    """Return why no method can be called best or fairest, whatever their order is."""
    return [*_of_tuning(found), *_of_constant(found)]


def _of_tuning(found: "Comparison") -> list[str]:
    untuned, unknown = found.untuned_methods, found.methods_of_unknown_tuning
    trained = {name for name, entry in found.entries.items() if not entry.failed}
    sentences = []
    if untuned and trained <= {*untuned}:
        sentences.append("the methods are untuned, and tuning may change the order")
    elif untuned:
        verb = "is" if len(untuned) == 1 else "are"
        sentences.append(f"{listing(untuned, len(untuned))} {verb} not tuned, and tuning may change the order")
    if unknown:
        names, verb = listing(unknown, len(unknown)), "was" if len(unknown) == 1 else "were"
        whether = "the methods were" if trained <= {*unknown} else f"{names} {verb}"
        sentences.append(f"it is unknown whether {whether} tuned, so that this is a statement about these runs only")
    return sentences


def _of_constant(found: "Comparison") -> list[str]:
    """Return that the best mean is not significantly better than majority class or mean value."""
    constant, standing = constant_figures(found), found.standing
    if constant is None or standing is None or found.score not in constant or found.constant is None:
        return []
    sign = 1.0 if found.higher_is_better else -1.0
    leads = sign * (found.known_scores(standing.best) - found.constant[found.score])
    lead = estimate(leads.mean(0), level=LEVEL)  # over clients: a constant predictor has no seeds
    if lead is None or lead.interval[0] > 0:
        return []
    title, mean = constant_title(constant), found.format_score(constant[found.score]["mean"])
    close = found.score == "accuracy" and lead.mean <= standing.margin
    other = "; --metric balanced_accuracy or auc may tell more" if close else ""
    return [
        f"the best mean is not significantly better than that of the {title} ({mean}{found.unit}), which ignores all "
        f"features{other}"
    ]


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
