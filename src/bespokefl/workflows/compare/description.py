"""The methods paragraph of a comparison: what was done, in sentences that can be used in a paper."""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from bespokefl.core.errors import count
from bespokefl.metrics.metric import METRICS, metric_of
from bespokefl.metrics.verdict import in_points
from bespokefl.workflows.compare.qualification import UNTUNED, work_sentences
from bespokefl.workflows.compare.statistics import LEVEL
from bespokefl.workflows.tune.duration import in_words
from bespokefl.workflows.tune.schedule import LOWER

if TYPE_CHECKING:
    from bespokefl.workflows.compare.result import Comparison, Entry

BUDGETS = {
    "steps": "All methods had at most the same number of local steps per client and round",
    "gradients": "All methods had at most the total number of gradients of FedAvg with all local steps, as far as "
    "whole rounds allow: methods that compute more ran fewer rounds",
    "time": "All methods had at most the processor time of FedAvg with all local steps, measured in short runs on one "
    "machine: methods whose rounds take longer ran fewer rounds",
    "none": "The work was not equalized: methods set their own numbers of local steps",
}


def describe(found: "Comparison") -> str:
    """Return the methods paragraph: data, training, budget, tuning, metric, tests and versions."""
    sentences = [*_state(found), _compared(found), _trained(found), *_budget(found), *_tuned(found), *_judged(found)]
    versions = found.first.about["versions"]
    others = " and ".join(f"{name} {versions[name]}" for name in ("torch", "python") if name in versions)
    if "bespokefl" in versions:
        sentences.append(f"The software was Bespoke {versions['bespokefl']}{others and f' with {others}'}.")
    return " ".join(sentences)


def _state(found: "Comparison") -> list[str]:
    """Return what keeps the comparison from being complete."""
    failed = [f"{name} ({count(len(one.failed), 'seed')})" for name, one in found.entries.items() if one.failed]
    sentences = []
    if not found.finished:
        runs = sum(not run.interrupted for entry in found.entries.values() for run in entry.runs.values())
        planned = found.metadata.planned or sum(len(entry.runs) for entry in found.entries.values())
        sentences.append(f"The comparison is unfinished: {runs} of {count(planned, 'run')} are complete.")
    if failed:
        sentences.append(f"Training failed for {_listed(failed)}.")
    return sentences


def _compared(found: "Comparison") -> str:
    data, total = found.metadata.data, {part: int(sizes.sum()) for part, sizes in found.sizes.items()}
    untuned = f"{found.tuning_state} " if found.untuned else ""
    return (
        f"We compared {len(found.methods)} {untuned}methods ({_listed(found.methods)}) on {data['name']}, split by "
        f"{data['split']} (split seed {data['split_seed']}) into {count(data['clients'], 'client')} with "
        f"{total['train']:,} training, {total['validation']:,} validation and {total['test']:,} test examples in total."
    )


def _trained(found: "Comparison") -> str:
    config, seeds = found.metadata.config, found.seeds
    share = config.get("participation")
    key = "local_steps" if config.get("local_steps") else "local_epochs"
    local = count(config[key], key.replace("_", " ").removesuffix("s")) + _own(found, key) if config.get(key) else ""
    parts = [
        f"the model {found.metadata.model}",
        f"for {count(config['rounds'], 'round')}{_own(found, 'rounds')}",
        "" if share is None else f"with {'all' if share == 1 else f'{100 * share:.3g} % of the'} clients in each round",
        local and f"{local} with batches of {config['batch_size']} examples",
    ]
    with_seeds = f"{count(len(seeds), 'seed')} ({_seeds(seeds)})" if seeds else "different seeds"
    same = " that determine initial weights, client draws and batches, the same for all methods" if seeds else ""
    privacy = "" if config.get("clip") is None else f" Uploads were clipped to {config['clip']}"
    noise = f", with noise of {config['noise']} times that" if privacy and config.get("noise") else ""
    text = f"Each method trained {', '.join(filter(None, parts))}, with {with_seeds}{same}."
    return text + (f"{privacy}{noise}." if privacy else "")


def _own(found: "Comparison", key: str) -> str:
    """Return which methods have another number of rounds, local epochs or local steps, in brackets."""
    runs = {name: next(iter(entry.runs.values())) for name, entry in found.entries.items() if entry.runs}
    own = {name: run.about.get(key, run.about["settings"].get(key)) for name, run in runs.items()}
    differs = [f"{name} {value}" for name, value in own.items() if value and value != found.metadata.config[key]]
    if key == "local_epochs":
        steps = {name: run.about["settings"].get("local_steps") for name, run in runs.items()}
        differs += [f"{name} {count(value, 'step')} instead" for name, value in steps.items() if value]
    return f" ({_listed(differs)})" if differs else ""


def _budget(found: "Comparison") -> list[str]:
    budget = found.metadata.budget
    if budget is None:
        return []
    differs = "" if budget == "none" else f" (budget {budget})"
    sentences = [f"{BUDGETS[budget]}{differs}." if budget in BUDGETS else f"The budget was equal {budget}."]
    work = {name: one["work"]["steps"] for name, one in found.figures.items() if one and one["work"]}
    steps = [value for value in work.values() if value is not None]
    if steps:
        low, high = f"{min(steps):.3g}", f"{max(steps):.3g}"
        made = low if low == high else f"{low} to {high}"
        sentences.append(f"A client that took part in a round computed {made} gradient steps on average.")
    return sentences + work_sentences(found)


def _tuned(found: "Comparison") -> list[str]:
    """Return how hyper-parameters were chosen: time, numbers of points, widened grids and best points on edges."""
    tuning = found.metadata.tuning
    entries = {name: one for name, one in found.entries.items() if one.tuned}
    if tuning is None and not entries:
        return []
    if tuning is not None and (found.methods_of_unknown_tuning or (not entries and found.tuning_state != UNTUNED)):
        return list(tuning["sentences"])
    if not entries:
        return ["The methods were not tuned: all have their given or default hyper-parameters."]
    rest = [name for name in found.entries if name not in entries]
    num_points = [len(one.tuned["points"]) for one in entries.values() if one.tuned]
    points = str(num_points[0]) if len(set(num_points)) == 1 else f"{min(num_points)} to {max(num_points)}"
    by = sorted({str(one.tuned["by"]) for one in entries.values() if one.tuned})
    scores = _listed([f"{one.partition('_')[0]} {metric_of(one).title}" for one in by])
    seconds, limit = (tuning or {}).get("seconds"), (tuning or {}).get("limit")
    time = "" if seconds is None else f", in {in_words(seconds)}"
    time += "" if limit is None else f" of at most {in_words(limit)} for all methods together"
    who = f"The hyper-parameters of {_listed(list(entries))}" if rest else "The hyper-parameters of every method"
    sentences = [f"{who} were chosen by {scores} from {points} points of a grid{time}; test data were not used."]
    sentences += _searched(found, entries)
    sentences += [f"{_listed(rest)} {'was' if len(rest) == 1 else 'were'} not tuned."] if rest else []
    widened = [_times(name, one) for name, one in entries.items() if one.tuned and one.tuned.get("widened")]
    if widened:
        sentences.append(f"Grids were widened where the best point lay on an edge: {_listed(widened)}.")
    on_edge = {name: one.tuned["edge"] for name, one in entries.items() if one.tuned and one.tuned.get("edge")}
    edges = [f"{name} ({_listed(keys)})" for name, keys in on_edge.items()]
    if edges:
        sentences.append(f"The best point still lies on an edge of what was tried for {_listed(edges)}.")
    return sentences


def _searched(found: "Comparison", entries: Mapping[str, "Entry"]) -> list[str]:
    """Return the stages of successive halving, and which other local steps were tried."""
    stages = (found.metadata.tuning or {}).get("stages", ())
    sentences = []
    if stages:
        rounds = [num for num, seeds in stages if seeds == 1]
        seeds = stages[-1][1]
        halving = ", the best third going on from one stage to the next (successive halving)" if len(rounds) > 1 else ""
        repeated = f", and the best of them by their mean over {seeds} seeds" if seeds > 1 else ""
        sentences.append(f"Points were compared after {_listed(rounds)} rounds{halving}{repeated}.")
    tried = {name: (one.tuned or {}).get("other_steps") or {} for name, one in entries.items()}
    steps = [f"{name} ({key.replace('_', ' ')} {value})" for name, own in tried.items() for key, value in own.items()]
    if steps:
        sentences.append(f"At the best point, another number of local steps was tried for {_listed(steps)}.")
    lowered = {name: (one.tuned or {}).get("lowered", 0) for name, one in entries.items()}
    divided = [f"{name} (by {LOWER**times})" for name, times in lowered.items() if times]
    if divided:
        sentences.append(
            f"Learning rates of grids of which no point could be trained were divided: {_listed(divided)}."
        )
    return sentences


def _times(name: str, entry: "Entry") -> str:
    number = (entry.tuned or {}).get("widened", 0)
    return f"{name} ({'once' if number == 1 else f'{number} times'})"


def _judged(found: "Comparison") -> list[str]:
    """Return what the scores are and how methods were tested."""
    metric, several, standing = METRICS[found.score], len(found.seeds) > 1, found.standing
    sentences = [
        f"We report test {metric.title}, averaged over clients, each on its own test data"
        + (", and over seeds, ± the standard error over seeds." if several else ".")
    ]
    if standing is not None and len(found.methods) > 1:
        effects = "seeds and clients" if several else "clients"
        margin = in_points(standing.margin) if metric.percent else f"{standing.margin:.3g}"
        num = len(standing.p_values)
        sentences.append(
            f"Methods were compared with the one that has the best mean by paired differences in a linear mixed model "
            f"with {effects} as random effects (two-sided, level {LEVEL:g}, Holm's correction for "
            f"{count(num, 'comparison')} and for the choice of the best); intervals within ±{margin} count as equal."
        )
    if found.gains:
        sentences.append(
            "A client's gain is its score minus the better of its scores with Local and FedAvg."
            if found.higher_is_better
            else "A client's gain is the better of its scores with Local and FedAvg minus its own."
        )
    return sentences


def _seeds(seeds: Sequence[int]) -> str:
    consecutive = len(seeds) > 2 and all(b - a == 1 for a, b in pairwise(seeds))
    return f"{seeds[0]} to {seeds[-1]}" if consecutive else ", ".join(map(str, seeds))


def _listed(names: Sequence[Any]) -> str:
    """Return all names, with "and" before the last one."""
    words = [str(name) for name in names]
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"
