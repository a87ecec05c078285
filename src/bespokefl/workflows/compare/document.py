"""compare.json: a comparison as plain values, for the report and other programs."""

import math
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import numpy as np

from bespokefl.core.errors import count
from bespokefl.metrics.communication import SYSTEMS
from bespokefl.workflows.compare.history import history, method_records
from bespokefl.workflows.compare.statistics import LEVEL, TEST, VALIDATION
from bespokefl.workflows.results import score_tables
from bespokefl.workflows.results.score_tables import Scores

if TYPE_CHECKING:
    from bespokefl.workflows.compare.result import Comparison, Entry

FORMAT = 1
DIGITS = 8  # significant digits of the figures


def document(found: "Comparison") -> dict[str, Any]:
    """Return the content of compare.json."""
    facts = found.facts
    return {
        "format": FORMAT,
        "title": f"{count(len(found.methods), 'method')} on {facts.data['name']}, {facts.data['split']}",
        "command": facts.command,
        "finished": not facts.interrupted
        and not any(run.interrupted for entry in found.entries.values() for run in entry.runs.values()),
        "score": found.score,
        "higher_is_better": found.higher_is_better,
        "level": LEVEL,
        "planned": facts.planned or sum(len(entry.runs) for entry in found.entries.values()),
        "seeds": found.seeds,
        "data": facts.data,
        "model": facts.model,
        "config": facts.config,
        "config_text": facts.config_text,
        "versions": found.first.about["versions"],
        "systems": [asdict(system) for system in SYSTEMS],
        "clients": {"names": found.names, "groups": facts.groups, **found.sizes},
        "methods": [_method(found, entry) for entry in found.entries.values()],
        "left_out": [{"method": method, "reason": reason} for method, reason in facts.left_out],
        "verdicts": {"best": asdict(found.best), "fairest": asdict(found.fairest)},
        "notes": found.notes,
    }


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
        "runs": [(runs | failed)[seed] for seed in sorted(runs | failed)],
    }


def _run(found: "Comparison", entry: "Entry", seed: int, *, details: bool) -> dict[str, Any]:
    run = entry.runs[seed]
    path = run.path
    if path is not None and found.path is not None and path.resolve().is_relative_to(found.path.resolve()):
        path = path.resolve().relative_to(found.path.resolve())

    def kept(scores: Scores) -> Scores:
        return {name: scores[name] for name in (*TEST, *VALIDATION) if name in scores}

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
