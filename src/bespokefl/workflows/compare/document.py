"""compare.json: a comparison as plain values, for the report and other programs."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import numpy as np

from bespokefl.core.errors import count, listing
from bespokefl.metrics import round_records
from bespokefl.metrics.communication import SYSTEMS
from bespokefl.workflows.compare.statistics import LEVEL, constant_figures, kept_measures
from bespokefl.workflows.results import score_tables
from bespokefl.workflows.results.result import Result
from bespokefl.workflows.results.score_tables import Scores

if TYPE_CHECKING:
    from bespokefl.workflows.compare.result import Comparison, Entry

FORMAT = 1
DIGITS = 8  # significant digits of the figures
# Rounds kept in compare.json: of the history, of what a method itself recorded, and of the scores of single clients.
MAX_ROUNDS, MAX_METHOD_ROUNDS, MAX_CLIENT_ROUNDS = 400, 60, 25


def document(found: "Comparison") -> dict[str, Any]:
    """Return the content of compare.json."""
    metadata = found.metadata
    return {
        "format": FORMAT,
        "title": title(found),
        "command": metadata.command,
        "finished": found.finished,
        "score": found.score,
        "higher_is_better": found.higher_is_better,
        "level": LEVEL,
        "margin": found.standing and found.standing.margin,  # differences up to this count as equal
        "planned": metadata.planned or sum(len(entry.runs) for entry in found.entries.values()),
        "seeds": found.seeds,
        "data": metadata.data,
        "model": metadata.model,
        "budget": metadata.budget,
        "untuned": found.untuned,
        "tuning_state": found.tuning_state,
        "tuning": metadata.tuning,
        "config": metadata.config,
        "config_text": metadata.config_text,
        "versions": found.first.about["versions"],
        "systems": [asdict(system) for system in SYSTEMS],
        "clients": {"names": found.names, "groups": metadata.groups, **found.sizes},
        "methods": [_method(found, entry) for entry in found.entries.values()],
        "constant": _constant(found),
        "left_out": [{"method": method, "reason": reason} for method, reason in metadata.left_out],
        "verdicts": {"best": asdict(found.best), "fairest": asdict(found.fairest)},
        "description": found.description,
        "notes": found.notes,
    }


def title(found: "Comparison") -> str:
    """Return the title of a comparison, which says if it is untuned or partly tuned."""
    data = found.metadata.data
    untuned = f"{found.tuning_state.capitalize()} comparison: " if found.untuned else ""
    return f"{untuned}{count(len(found.methods), 'method')} on {data['name']}, {data['split']}"


def _constant(found: "Comparison") -> dict[str, Any] | None:
    """Return the scores of the constant predictors, which do not depend on method and seed."""
    figures = constant_figures(found)
    if figures is None or found.constant is None:
        return None
    scores = {name: found.constant[name] for name in figures}
    return {"name": score_tables.constant_title(figures), "figures": figures, "personal": scores}


def _method(found: "Comparison", entry: "Entry") -> dict[str, Any]:
    first = min(entry.runs, default=None)
    failed: dict[int, dict[str, Any]] = {
        seed: {"seed": seed, "folder": None, "failed": error, "notes": []} for seed, error in entry.failed.items()
    }
    runs = {seed: _run(found, entry, seed, details=seed == first) for seed in entry.runs}
    return {
        "name": entry.name,
        "method": entry.method,
        "about": entry.about,
        "citation": entry.citation,
        "hyper": entry.hyper,
        "tuned": entry.tuned,
        "baseline": entry.is_baseline,
        "failed": entry.failed[min(entry.failed)] if entry.failed else None,
        "figures": found.figures[entry.name],
        "client_curves": _client_curves(found, entry),
        "runs": [(runs | failed)[seed] for seed in sorted(runs | failed)],
    }


def _client_curves(found: "Comparison", entry: "Entry") -> dict[str, Any] | None:
    """Return every client's score in the evaluated rounds, averaged over seeds; None if the runs do not have it."""
    runs = [entry.runs[seed].client_scores for seed in found.seeds or sorted(entry.runs) if seed in entry.runs]
    rounds = sorted(set.intersection(*({line["round"] for line in lines} for lines in runs))) if runs else []
    if not rounds:
        return None
    if len(rounds) > MAX_CLIENT_ROUNDS:
        rounds = [rounds[at] for at in np.linspace(0, len(rounds) - 1, MAX_CLIENT_ROUNDS).round().astype(int)]
    by_round = [{line["round"]: line for line in lines} for lines in runs]
    score = (
        found.score
        if found.score in by_round[0][rounds[0]]
        else next(name for name in ("accuracy", "loss") if name in by_round[0][rounds[0]])
    )
    values = np.array([[lines[number][score] for lines in by_round] for number in rounds], dtype=np.float64)
    means = np.ma.masked_invalid(values).mean(1).filled(np.nan)
    return {"score": score, "round": rounds, "values": means}


def _run(found: "Comparison", entry: "Entry", seed: int, *, details: bool) -> dict[str, Any]:
    run = entry.runs[seed]
    path = run.path
    if path is not None and found.path is not None and path.resolve().is_relative_to(found.path.resolve()):
        path = path.resolve().relative_to(found.path.resolve())

    def kept(scores: Scores) -> Scores:
        return {name: scores[name] for name in kept_measures(found.score) if name in scores}

    return {
        "seed": seed,
        "folder": None if path is None else str(path),
        "failed": None,
        "interrupted": run.interrupted,
        "rounds_done": run.about["rounds_done"],
        "rounds_planned": run.about["rounds_planned"],
        "personal": kept(run.personal),
        "global": None if run.global_ is None else kept(run.global_),
        "gain": found.gain_of(entry, seed),
        "history": history(run),
        "seconds": run.timing["seconds"],
        "notes": run.notes,
        "details": method_records(run) if details else None,
    }


def history(run: Result) -> dict[str, Any]:
    """Return a run's rounds in columns, with at most MAX_ROUNDS of them."""
    scored = [at for at, line in enumerate(run.rounds) if "personal" in line]
    all_rounds = len(run.rounds) <= MAX_ROUNDS or len(scored) < 2
    columns = round_records.history(run.rounds, run.about.get("initial"))
    first = len(columns["round"]) - len(run.rounds)  # 1 if round 0 was evaluated
    rows = [*range(first), *(first + at for at in (range(len(run.rounds)) if all_rounds else scored))]
    return _thinned(columns, rows, MAX_ROUNDS)


def method_records(run: Result) -> dict[str, Any] | None:
    """Return what the method itself recorded, by name: per round, and per round and client."""
    found = round_records.method_records(run.rounds, run.client_rounds, run.names)
    if not any(found.values()):
        return None
    return {
        kind: {name: _thinned(one, range(len(one["round"])), MAX_METHOD_ROUNDS) for name, one in records.items()}
        for kind, records in found.items()
    }


def _thinned(columns: Mapping[str, Any], rows: Sequence[int], most: int) -> dict[str, Any]:
    """Keep at most this many of the rows, evenly spaced, including the first and the last."""
    if len(rows) > most:
        rows = [rows[at] for at in np.linspace(0, len(rows) - 1, most).round().astype(int)]
    return {  # a column that is None stays None
        name: _thinned(one, rows, most) if isinstance(one, Mapping) else one and [one[at] for at in rows]
        for name, one in columns.items()
    }


def rounded(value: Any) -> Any:
    """Return a value as JSON holds it, floats rounded to a few digits."""
    if type(value) is float and math.isfinite(value):
        return float(f"{value:.{DIGITS}g}")
    if isinstance(value, np.ndarray):
        value = value.tolist()
    if isinstance(value, dict):
        return {str(key): rounded(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [rounded(one) for one in value]
    return score_tables.plain(value)


def remarks(found: "Comparison") -> list[str]:
    """Return the remarks on a comparison: seeds, missing and failed runs, methods left out, notes of the runs."""
    sentences = [*(found.metadata.tuning or {}).get("sentences", ()), *found.metadata.notes]
    if len(found.seeds) == 1:
        sentences.append(
            "One seed: there is no standard error, and intervals and tests are over clients only; give --seeds 5."
        )
    missing = [
        f"{name} with seed {seed}"
        for name, entry in found.entries.items()
        for seed in found.metadata.seeds
        if seed not in entry.runs and seed not in entry.failed
    ]
    if missing:
        sentences.append(f"Not finished: {listing(missing)}. The figures are of the seeds {found.seeds_in_words}.")
    elif found.entries and not found.seeds:
        sentences.append("The methods have no seed in common: each has its own figures, and nothing is tested.")
    elif any(set(entry.runs) != set(found.seeds) for entry in found.entries.values() if entry.has_figures):
        sentences.append(f"Figures are of the seeds that all methods have: {found.seeds_in_words}.")
    for name, entry in found.entries.items():
        sentences += [f"{name} failed with seed {seed}: {error}" for seed, error in sorted(entry.failed.items())]
        stopped = [seed for seed, run in entry.runs.items() if run.interrupted]
        if stopped:
            about = entry.runs[stopped[0]].about
            done = f"{about['rounds_done']} of {about['rounds_planned']} rounds"
            sentences.append(f"{name} is unfinished with seed {listing(list(map(str, stopped)))}: {done}.")
    sentences += [f"{method} is left out: {reason}" for method, reason in found.metadata.left_out]
    return [*sentences, *_of_runs(found)]


def _of_runs(found: "Comparison") -> list[str]:
    """Return the notes of the runs; a note that not all runs have names those that do."""
    runs_with: dict[str, list[str]] = {}
    for name, entry in found.entries.items():
        for seed, run in sorted(entry.runs.items()):
            for note in run.notes:
                if not note.startswith("Interrupted after round"):
                    runs_with.setdefault(note, []).append(f"{name} with seed {seed}")
    num_runs = sum(len(entry.runs) for entry in found.entries.values())
    return [note if len(runs) == num_runs else f"{listing(runs)}: {note}" for note, runs in runs_with.items()]
