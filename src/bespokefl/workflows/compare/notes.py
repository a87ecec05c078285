"""Remarks that a reader of a comparison's figures needs, one sentence each."""

from typing import TYPE_CHECKING

from bespokefl.core.errors import listing

if TYPE_CHECKING:
    from bespokefl.workflows.compare.result import Comparison


def notes(found: "Comparison") -> list[str]:
    """Return the remarks on a comparison: seeds, missing and failed runs, methods left out, notes of the runs."""
    sentences = list(found.facts.notes)
    if len(found.seeds) == 1:
        sentences.append(
            "One seed: there is no standard error, and intervals and tests are over clients only; give --seeds."
        )
    missing = [
        f"{name} with seed {seed}"
        for name, entry in found.entries.items()
        for seed in found.facts.seeds
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
    sentences += [f"{method} is left out: {reason}" for method, reason in found.facts.left_out]
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
