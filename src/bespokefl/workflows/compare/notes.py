"""What a reader of a comparison's figures has to know, one sentence each."""

from typing import TYPE_CHECKING

from bespokefl.core.errors import listing

if TYPE_CHECKING:
    from bespokefl.workflows.compare.result import Comparison


def notes(found: "Comparison") -> list[str]:
    """What a reader of the figures has to know, one sentence each."""
    said = list(found.facts.notes)
    if len(found.seeds) == 1:
        said.append(
            "One seed: there is no standard error, and the intervals and tests are over clients only; give --seeds."
        )
    lacking = {
        name: [seed for seed in found.facts.seeds if seed not in entry.runs and seed not in entry.failed]
        for name, entry in found.entries.items()
    }
    if any(lacking.values()):
        runs = [f"{name} with seed {seed}" for name, missing in lacking.items() for seed in missing]
        said.append(f"Not finished: {listing(runs)}. The figures are of the seeds {found.seeds_in_words}.")
    elif found.entries and not found.seeds:
        said.append("The methods have no seed in common: each has its own figures, and nothing is tested.")
    elif any(set(entry.runs) != set(found.seeds) for entry in found.entries.values() if entry.counts):
        said.append(f"Figures are of the seeds that all methods have: {found.seeds_in_words}.")
    for name, entry in found.entries.items():
        for seed, sentence in sorted(entry.failed.items()):
            said.append(f"{name} failed with seed {seed}: {sentence}")
        stopped = [seed for seed, run in entry.runs.items() if run.interrupted]
        if stopped:
            run = entry.runs[stopped[0]]
            done = f"{run.about['rounds_done']} of {run.about['rounds_planned']} rounds"
            said.append(f"{name} is unfinished with seed {listing(list(map(str, stopped)))}: {done}.")
    said += [f"{method} is left out: {reason}" for method, reason in found.facts.left_out]
    return [*said, *_of_runs(found)]


def _of_runs(found: "Comparison") -> list[str]:
    """What the runs say: once what all of them do, else by whom."""
    told: dict[str, list[str]] = {}
    for name, entry in found.entries.items():
        for seed, run in sorted(entry.runs.items()):
            for note in run.notes:
                if not note.startswith("Interrupted after round"):
                    told.setdefault(note, []).append(f"{name} with seed {seed}")
    everybody = sum(len(entry.runs) for entry in found.entries.values())
    return [note if len(who) == everybody else f"{listing(who)}: {note}" for note, who in told.items()]
