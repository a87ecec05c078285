"""Methods compared on the same clients: who is better off, with which method, and how sure that is.

compare.json   everything below, for the report and for other programs
clients.csv    one line per method, seed and client
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from bespokefl import methods
from bespokefl.core.errors import InputError, count
from bespokefl.core.files import unwritten
from bespokefl.metrics import improvement
from bespokefl.metrics.significance import Standing, standing
from bespokefl.metrics.vectors import Array
from bespokefl.metrics.verdict import Verdict, best_performing, fairest
from bespokefl.workflows.compare import notes as comparison_notes
from bespokefl.workflows.compare.document import document, rounded
from bespokefl.workflows.compare.statistics import LEVEL, figures
from bespokefl.workflows.results import run_directory, score_tables
from bespokefl.workflows.results.result import Result

FILE, TABLE = "compare.json", "clients.csv"
LOCAL, FEDAVG = BASELINES = ("local", "fedavg")

Page = dict[str, Any]


@dataclass
class Entry:
    """A method and its runs, by seed."""

    name: str  # as it is called here; no two are called the same
    method: str
    hyper: Mapping[str, Any]
    runs: dict[int, Result] = field(default_factory=dict)
    failed: dict[int, str] = field(default_factory=dict)  # runs that ended with a sentence
    tuned: Page | None = None
    about: str = ""
    citation: str = ""

    @property
    def counts(self) -> bool:
        """Whether there are figures: a method that fails with some seeds has none."""
        return bool(self.runs) and not self.failed

    @property
    def is_baseline(self) -> bool:
        return self.method in BASELINES


@dataclass(frozen=True)
class ComparisonMetadata:
    """What a comparison is of, beside its methods."""

    data: Page  # name, split, split_hash, split_seed, clients, shape, labels
    model: str
    config: Page  # what all runs have in common
    config_text: str
    groups: tuple[int, ...] | None = None
    seeds: tuple[int, ...] = ()  # that were asked for
    left_out: tuple[tuple[str, str], ...] = ()  # methods that cannot be run on these clients, and why
    notes: tuple[str, ...] = ()
    command: str | None = None
    interrupted: bool = False
    planned: int | None = None  # runs; None where those that were given are all


class Comparison:
    """Methods × seeds × clients, and what follows from them. `print(comparison)` shows the table."""

    def __init__(self, entries: Sequence[Entry], facts: ComparisonMetadata, keep: object = None) -> None:
        self.entries = {entry.name: entry for entry in sorted(entries, key=_place)}
        self.facts = facts
        self.path: Path | None = None  # where it was saved
        self._keep = keep  # a temporary folder lives as long as this does
        self.first = next(run for entry in self.entries.values() for run in entry.runs.values())
        self.names = self.first.names  # the clients
        self.sizes = self.first.sizes
        self.score = "accuracy" if "accuracy" in self.first.personal else "loss"
        self.higher_is_better = self.score == "accuracy"

    # -- looking at it

    @property
    def methods(self) -> list[str]:
        """The methods in canonical order: the baselines, then as `bespoke methods` lists them."""
        return list(self.entries)

    @property
    def interrupted(self) -> bool:
        return self.facts.interrupted

    @cached_property
    def seeds(self) -> list[int]:
        """The seeds that all methods have finished."""
        own = [set(entry.runs) for entry in self.entries.values() if entry.counts]
        return sorted(set.intersection(*own)) if own else []

    def result(self, method: str, seed: int) -> Result:
        """One of its runs."""
        runs = self.entries[method].runs if method in self.entries else {}
        if seed not in runs:
            raise InputError(f"the comparison has no run of {method!r} with seed {seed}; it has {self.methods}.")
        return runs[seed]

    def scores(self, method: str, measure: str = "", kind: str = "personal") -> Array | None:
        """A measure of every client, (seeds, clients), NaN where it has none; None where there is no such measure."""
        entry = self.entries[method]
        kept = [entry.runs[seed] for seed in self.seeds or sorted(entry.runs)]
        found = [run.personal if kind == "personal" else run.global_ for run in kept]
        name = measure or self.score
        if not found or any(one is None or name not in one for one in found):
            return None
        return np.stack([one[name] for one in found if one is not None])

    @cached_property
    def gains(self) -> dict[str, Array]:
        """The quantum of improvement, P_i − max(G_i, L_i), (seeds, clients), of all methods but the baselines."""
        local, common = (self._baseline(name) for name in (LOCAL, FEDAVG))
        if local is None or common is None or not self.seeds:
            return {}
        with_figures = [name for name, entry in self.entries.items() if entry.counts and not entry.is_baseline]
        found = {}
        for name in with_figures:
            own, *beside = (self.known_scores(one) for one in (name, common.name, local.name))
            found[name] = improvement.quantum(own, *beside, higher_is_better=self.higher_is_better)
        return found

    @cached_property
    def standing(self) -> Standing | None:
        """Who has the best mean, and who cannot be told from it; None where methods have no seed in common."""
        scores = self._compared
        return standing(scores, level=LEVEL, higher_is_better=self.higher_is_better) if scores else None

    @cached_property
    def best(self) -> Verdict:
        """The best performing method, in words."""
        if not self._compared:
            return Verdict(None, sentence=f"No method can be called best: {self._why_nothing}.")
        told = {"higher_is_better": self.higher_is_better, "percent": bool(self.unit)}
        return best_performing(self._compared, self.gains or None, level=LEVEL, **told)

    @cached_property
    def fairest(self) -> Verdict:
        """The fairest method, in words."""
        if not self._compared or not self.gains:
            why = (
                self._why_nothing
                if not self._compared
                else "gains are over local and fedavg, and "
                + ("nothing else was run" if self._baseline(LOCAL) and self._baseline(FEDAVG) else "not both were run")
            )
            return Verdict(None, sentence=f"No method can be called fairest: {why}.")
        return fairest(self.gains)

    @property
    def notes(self) -> list[str]:
        """What a reader of the figures has to know, one sentence each."""
        return comparison_notes.notes(self)

    @cached_property
    def figures(self) -> dict[str, Page | None]:
        """Each method in numbers, None for one that failed or has no runs yet."""
        found = {name: figures(self, name) if entry.counts else None for name, entry in self.entries.items()}
        sign = -1 if self.higher_is_better else 1
        means = {name: one[self.score]["mean"] for name, one in found.items() if one is not None}
        order = sorted((name for name, mean in means.items() if mean is not None), key=lambda name: sign * means[name])
        for rank, name in enumerate(order, start=1):
            one = found[name]
            assert one is not None
            one["rank"] = rank
        return found

    @property
    def ranking(self) -> list[str]:
        """All methods, the best mean first, those without figures last."""
        ranks = {name: one["rank"] if one else None for name, one in self.figures.items()}
        return sorted(self.entries, key=lambda name: (ranks[name] is None, ranks[name] or 0))

    def page(self) -> Page:
        """What compare.json holds."""
        return document(self)

    @property
    def clients(self) -> list[dict[str, Any]]:
        """One dict per method, seed and client, as in clients.csv."""
        rows = []
        for name, entry in self.entries.items():
            for seed, run in sorted(entry.runs.items()):
                gains = self.gain_of(entry, seed)
                for at, line in enumerate(run.clients):
                    group = {} if self.facts.groups is None else {"group": self.facts.groups[at]}
                    gain = None if gains is None else gains[at]
                    rows.append({"method": name, "seed": seed} | line | group | {"gain": gain})
        return rows

    @property
    def unit(self) -> str:
        """What people read scores in."""
        return score_tables.unit(self.score)

    def told(self, value: float | None) -> str:
        """A score, or its error, as people read it."""
        return score_tables.format_score(value, self.score)

    def __repr__(self) -> str:
        data = self.facts.data
        seeds = f"seed{'s' * (len(self.seeds) != 1)} {self.seeds_in_words}"
        lines = [f"{count(len(self.entries), 'method')} on {data['name']}, {data['split']}, {seeds}"]
        for name in self.ranking:
            one = self.figures[name]
            if one is None:
                lines.append(f"  {name}: {'failed' if self.entries[name].failed else 'not trained'}")
                continue
            mean, sem = one[self.score]["mean"], one[self.score]["sem"]
            error = "" if sem is None else f" ± {self.told(sem)}"
            told = "undefined" if mean is None else f"{self.told(mean)}{error}{self.unit}"
            mark = "  (best)" if one["best"] else "  (tie)" if one["tie"] else ""
            lines.append(f"  {name}: mean {self.score} {told}{mark}")
        return "\n".join([*lines, self.best.sentence, self.fairest.sentence])

    # -- on disk

    def save(self, path: str | PathLike[str]) -> Path:
        """Write compare.json and clients.csv."""
        target = Path(path)
        try:
            target.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise unwritten(path, error) from None
        self.path = target
        run_directory.write_text(target / TABLE, score_tables.csv_text(self.clients))
        run_directory.write_text(
            target / FILE, json.dumps(rounded(self.page()), ensure_ascii=False, allow_nan=False) + "\n"
        )
        return target

    # -- how it is worked out

    def known_scores(self, method: str) -> Array:
        """The scores of a method that has runs."""
        found = self.scores(method)
        assert found is not None
        return found

    def _baseline(self, method: str) -> Entry | None:
        return next((one for one in self.entries.values() if one.method == method and one.counts), None)

    @cached_property
    def _compared(self) -> dict[str, Array]:
        """The scores of all methods that can be compared; none where there is no seed, or no client, in common."""
        if not self.seeds:
            return {}
        found = {name: self.known_scores(name) for name, entry in self.entries.items() if entry.counts}
        return {name: one for name, one in found.items() if not np.isnan(one).all()}

    @property
    def _why_nothing(self) -> str:
        if not any(entry.counts for entry in self.entries.values()):
            return "none could be trained"
        return "no client has test data" if self.seeds else "there is no seed that all have finished"

    @property
    def seeds_in_words(self) -> str:
        """The seeds that figures are of."""
        return ", ".join(map(str, self.seeds)) if self.seeds else "that each method has"

    def gain_of(self, entry: Entry, seed: int) -> Array | None:
        """Every client's gain in one run; None where there is nothing to measure it against."""
        local, common = (self._baseline(name) for name in (LOCAL, FEDAVG))
        if entry.is_baseline or local is None or common is None or not {seed} <= {*local.runs} & {*common.runs}:
            return None
        beside = (one.runs[seed].personal[self.score] for one in (common, local))
        own = entry.runs[seed].personal[self.score]
        return improvement.quantum(own, *beside, higher_is_better=self.higher_is_better)


def _place(entry: Entry) -> tuple[int, str]:
    order = list(methods.REGISTRY)
    return (order.index(entry.method) if entry.method in order else len(order)), entry.name
