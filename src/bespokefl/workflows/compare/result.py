"""The result of a comparison: which method serves the clients best, and how certain that is.

compare.json   the whole result, for the report and other programs
clients.csv    one line per method, seed and client
methods.csv    one line per method: score, work, bytes and seconds
"""

import json
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from bespokefl import methods
from bespokefl.core.errors import InputError
from bespokefl.metrics import improvement
from bespokefl.metrics.client_values import Array
from bespokefl.metrics.metric import METRICS, SHARES, choose_metric
from bespokefl.metrics.significance import EQUAL, UNCLEAR, Standing, standing
from bespokefl.metrics.verdict import Verdict, best_performing, fairest
from bespokefl.workflows.compare.description import describe
from bespokefl.workflows.compare.document import document, remarks, rounded, title
from bespokefl.workflows.compare.qualification import PARTLY_TUNED, UNTUNED, marked, qualified, reservations
from bespokefl.workflows.compare.statistics import BEST, LEVEL, constant_figures, figures
from bespokefl.workflows.results import run_directory, score_tables
from bespokefl.workflows.results.frames import client_round_lines, frame, of_run, round_lines
from bespokefl.workflows.results.result import Result

if TYPE_CHECKING:
    from pandas import DataFrame

FILE, TABLE, METHODS_TABLE = "compare.json", "clients.csv", "methods.csv"
LOCAL, FEDAVG = BASELINES = ("local", "fedavg")
MARKS_IN_WORDS = {BEST: "  (best mean)", EQUAL: "  (equal)", UNCLEAR: "  (too few clients or seeds to tell)"}


@dataclass
class Entry:
    """A method and its runs by seed."""

    name: str  # unique in the comparison
    method: str
    hyper: Mapping[str, Any]
    runs: dict[int, Result] = field(default_factory=dict)
    failed: dict[int, str] = field(default_factory=dict)  # errors of failed runs
    tuned: dict[str, Any] | None = None
    about: str = ""
    citation: str = ""

    @property
    def has_figures(self) -> bool:
        """Whether there are figures: a method that fails with some seed has none."""
        return bool(self.runs) and not self.failed

    @property
    def is_baseline(self) -> bool:
        """Whether the method is one of those that gains are measured against."""
        return self.method in BASELINES


@dataclass(frozen=True)
class ComparisonMetadata:
    """Data, model and settings of a comparison."""

    data: dict[str, Any]  # name, split, split_hash, split_seed, clients, shape, labels
    model: str
    config: dict[str, Any]  # settings of all runs
    config_text: str
    groups: tuple[int, ...] | None = None
    seeds: tuple[int, ...] = ()  # requested
    left_out: tuple[tuple[str, str], ...] = ()  # methods that cannot run on these clients, and why
    notes: tuple[str, ...] = ()
    command: str | None = None
    interrupted: bool = False
    planned: int | None = None  # number of runs; None: those given are all
    budget: str | None = None  # what was equal for all methods; None: unknown
    tuning: dict[str, Any] | None = None  # whether methods are tuned, and how; None: unknown
    metric: str | None = None  # compared; None: accuracy, or loss for regression


def data_of(about: Mapping[str, Any]) -> dict[str, Any]:
    """Return the `data` of `ComparisonMetadata` from the description of a run."""
    data = {name: about[name] for name in ("split", "split_hash", "split_seed", "clients")}
    return {"name": about["data"], **data, **{name: about["examples"][name] for name in ("shape", "labels")}}


class Comparison:
    """Scores of methods × seeds × clients, with gains, tests and verdicts. `print(comparison)` shows the table.

    `entries` are the methods by name, `names` and `sizes` the clients and their numbers of examples, `score` the test
    score compared (`metadata.metric`; by default "accuracy", or "loss" for regression), `constant` the clients' scores
    with their majority class or mean value, `metadata` data, model and settings, and `path` the directory that the
    comparison was saved to.
    """

    def __init__(self, entries: Sequence[Entry], metadata: ComparisonMetadata, keep: object = None) -> None:
        self.entries = {entry.name: entry for entry in sorted(entries, key=_position)}
        self.metadata = metadata
        self.path: Path | None = None
        self._keep = keep  # a temporary directory that lives as long as this object
        self.first = next(run for entry in self.entries.values() for run in entry.runs.values())
        self.names = self.first.names
        self.sizes = self.first.sizes
        runs = [run for entry in self.entries.values() for run in entry.runs.values()]
        self.constant = next((run.constant for run in runs if run.constant is not None), None)
        known = set.intersection(*({*run.personal} & {*METRICS} for run in runs))
        self.score = choose_metric(metadata.metric, known)
        self.higher_is_better = METRICS[self.score].higher_is_better

    @property
    def facts(self) -> ComparisonMetadata:
        """The former name of `metadata`."""
        warnings.warn("Comparison.facts is now Comparison.metadata", FutureWarning, stacklevel=2)
        return self.metadata

    @property
    def methods(self) -> list[str]:
        """Names of the methods: baselines first, then in the order of `bespoke methods`."""
        return list(self.entries)

    @property
    def interrupted(self) -> bool:
        """Whether the comparison was interrupted before all runs ended."""
        return self.metadata.interrupted

    @property
    def finished(self) -> bool:
        """Whether all runs ended with their last round."""
        runs = [run for entry in self.entries.values() for run in entry.runs.values()]
        return not self.metadata.interrupted and not any(run.interrupted for run in runs)

    @property
    def untuned_methods(self) -> list[str]:
        """Names of the methods that are known to have hyper-parameters that were not tuned."""
        tuning = self.metadata.tuning or {"tuned": None}
        names = tuning.get("untuned", self.methods if tuning["tuned"] is False else ())
        return [name for name in self.methods if name in names]

    @property
    def methods_of_unknown_tuning(self) -> list[str]:
        """Names of the methods of which it is unknown whether they were tuned."""
        tuning = self.metadata.tuning or {"tuned": False}
        names = tuning.get("unknown", self.methods if tuning["tuned"] is None else ())
        return [name for name in self.methods if name in names]

    @property
    def untuned(self) -> bool:
        """Whether it is known that some or all methods have hyper-parameters that were not tuned."""
        return bool(self.untuned_methods)

    @property
    def tuning_state(self) -> str:
        """What titles and verdicts say about the tuning: "untuned", "partly tuned", or nothing."""
        untuned = {*self.untuned_methods, *self.methods_of_unknown_tuning}
        tuned = [name for name, entry in self.entries.items() if name not in untuned and not entry.failed]
        return "" if not self.untuned else PARTLY_TUNED if tuned else UNTUNED

    @cached_property
    def seeds(self) -> list[int]:
        """Seeds that all methods have finished."""
        own = [set(entry.runs) for entry in self.entries.values() if entry.has_figures]
        return sorted(set.intersection(*own)) if own else []

    @property
    def seeds_in_words(self) -> str:
        """The seeds as text."""
        return ", ".join(map(str, self.seeds)) if self.seeds else "that each method has"

    def result(self, method: str, seed: int) -> Result:
        """Return one run by the name of its method and its seed; raise InputError if there is none."""
        runs = self.entries[method].runs if method in self.entries else {}
        if seed not in runs:
            raise InputError(f"the comparison has no run of {method!r} with seed {seed}; it has {self.methods}.")
        return runs[seed]

    def scores(self, method: str, measure: str = "", kind: str = "personal") -> Array | None:
        """Return a measure of every client.

        Parameters
        ----------
        measure : str
            Such as "accuracy" or "validation_loss"; by default the score compared.
        kind : {"personal", "global"}

        Returns
        -------
        ndarray of shape (seeds, clients) or None
            NaN where a client has no such score; None if the method has no such measure.
        """
        entry = self.entries[method]
        kept = [entry.runs[seed] for seed in self.seeds or sorted(entry.runs)]
        found = [run.personal if kind == "personal" else run.global_ for run in kept]
        name = measure or self.score
        if not found or any(one is None or name not in one for one in found):
            return None
        return np.stack([one[name] for one in found if one is not None])

    def known_scores(self, method: str) -> Array:
        """Return the scores of a method that has runs."""
        found = self.scores(method)
        assert found is not None
        return found

    @cached_property
    def gains(self) -> dict[str, Array]:
        """Quantum of improvement P_i − max(G_i, L_i), shape (seeds, clients), of all methods but the baselines."""
        if self._baselines is None or not self.seeds:
            return {}
        common, local = (self.known_scores(one.name) for one in self._baselines)
        return {
            name: improvement.quantum(self.known_scores(name), common, local, higher_is_better=self.higher_is_better)
            for name, entry in self.entries.items()
            if entry.has_figures and not entry.is_baseline
        }

    def gain_of(self, entry: Entry, seed: int) -> Array | None:
        """Return every client's gain in one run; None for baselines, and if a baseline lacks this seed."""
        baselines = self._baselines
        if entry.is_baseline or baselines is None or not all(seed in one.runs for one in baselines):
            return None
        own, common, local = (one.runs[seed].personal[self.score] for one in (entry, *baselines))
        return improvement.quantum(own, common, local, higher_is_better=self.higher_is_better)

    @cached_property
    def _baselines(self) -> tuple[Entry, Entry] | None:
        """FedAvg and Local, if both have figures."""
        known = {one.method: one for one in reversed(self.entries.values()) if one.has_figures}
        return (known[FEDAVG], known[LOCAL]) if {*BASELINES} <= known.keys() else None

    @cached_property
    def standing(self) -> Standing | None:
        """The method with the best mean, and how the others compare with it; None without a common seed."""
        scores = self._compared
        return standing(scores, level=LEVEL, higher_is_better=self.higher_is_better) if scores else None

    @cached_property
    def best(self) -> Verdict:
        """The method with the best mean; `conclusive` and the sentence say whether it can be called best."""
        if not self._compared:
            return Verdict(None, sentence=f"No method can be called best: {self._why_not_compared}.")
        verdict = best_performing(
            self._compared,
            self.gains or None,
            level=LEVEL,
            higher_is_better=self.higher_is_better,
            percent=bool(self.unit),
            bounds=(0.0, 1.0) if self.score in SHARES else None,
            reservations=reservations(self),
        )
        return qualified(self, verdict)

    @cached_property
    def fairest(self) -> Verdict:
        """The fairest method, with a sentence that explains it."""
        if self._compared and self.gains:
            verdict = fairest(
                self.gains,
                self._compared,
                higher_is_better=self.higher_is_better,
                percent=bool(self.unit),
                reservations=reservations(self),
            )
            return marked(self, verdict)
        why = self._why_not_compared
        if self._compared:
            missing = "nothing else was run" if self._baselines else "not both were run"
            why = f"gains are measured over local and fedavg, and {missing}"
        return Verdict(None, sentence=f"No method can be called fairest: {why}.")

    @cached_property
    def _compared(self) -> dict[str, Array]:
        """Scores of all methods that can be compared; empty without a common seed or without test data."""
        if not self.seeds:
            return {}
        found = {name: self.known_scores(name) for name, entry in self.entries.items() if entry.has_figures}
        return {name: one for name, one in found.items() if not np.isnan(one).all()}

    @property
    def _why_not_compared(self) -> str:
        if not any(entry.has_figures for entry in self.entries.values()):
            return "none could be trained"
        what = "data" if self.score in ("accuracy", "loss") else METRICS[self.score].title
        return f"no client has test {what}" if self.seeds else "there is no seed that all have finished"

    @property
    def notes(self) -> list[str]:
        """Remarks on the figures, one sentence each."""
        return remarks(self)

    @cached_property
    def figures(self) -> dict[str, dict[str, Any] | None]:
        """Figures of each method, as in compare.json; None for one that failed or has no runs yet."""
        found = {name: figures(self, name) if entry.has_figures else None for name, entry in self.entries.items()}
        sign = -1 if self.higher_is_better else 1
        known = [one for one in found.values() if one is not None and one[self.score]["mean"] is not None]
        for rank, one in enumerate(sorted(known, key=lambda one: sign * one[self.score]["mean"]), start=1):
            one["rank"] = rank
        return found

    @property
    def ranking(self) -> list[str]:
        """Names of all methods, the best mean first, those without figures last."""
        ranks = {name: one["rank"] if one else None for name, one in self.figures.items()}
        return sorted(self.entries, key=lambda name: (ranks[name] is None, ranks[name] or 0))

    @property
    def clients(self) -> list[dict[str, Any]]:
        """One dict per method, seed and client, as in clients.csv."""
        rows = []
        for name, entry in self.entries.items():
            for seed, run in sorted(entry.runs.items()):
                gains = self.gain_of(entry, seed)
                for at, line in enumerate(run.clients):
                    group = {} if self.metadata.groups is None else {"group": self.metadata.groups[at]}
                    gain = None if gains is None else gains[at]
                    rows.append({"method": name, "seed": seed} | line | group | {"gain": gain})
        return rows

    @property
    def table(self) -> list[dict[str, Any]]:
        """One dict per method, as in methods.csv: score, gradient steps and gradients, bytes and seconds.

        The last one is the constant predictor, majority class or mean value, which is not trained.
        """
        rows = []
        for name in self.ranking:
            one, tuned = self.figures[name], self.entries[name].tuned is not None
            if one is not None:
                work = one["work"] or dict.fromkeys(("steps", "gradients", "head_gradients", "final_gradients"))
                sent = {way: one[way] for way in ("up_bytes", "down_bytes", "seconds")}
                score = {self.score: one[self.score]["mean"], f"{self.score}_sem": one[self.score]["sem"]}
                rows.append({"method": name, "tuned": tuned, **score, **work, **sent})
        constant = constant_figures(self)
        if constant is not None and self.score in constant:
            title, mean = score_tables.constant_title(constant), constant[self.score]["mean"]
            rows.append(dict.fromkeys(rows[0] if rows else ()) | {"method": title, self.score: mean})
        return rows

    @property
    def description(self) -> str:
        """The methods paragraph: what was compared and how, in sentences for a paper."""
        return describe(self)

    def methods_frame(self) -> "DataFrame":
        """Return `table` as a pandas data frame: one row per method."""
        return frame(self.table)

    def clients_frame(self) -> "DataFrame":
        """Return `clients` as a pandas data frame: one row per method, seed and client."""
        return frame(self.clients)

    def rounds_frame(self) -> "DataFrame":
        """Return the rounds as a pandas data frame: one row per method, seed and round, from round 0.

        Scores are means over clients, None in rounds that were not evaluated; bytes and seconds are cumulative.
        """
        return frame([line for key, run in self._runs for line in of_run(key, round_lines(run))])

    def client_rounds_frame(self) -> "DataFrame":
        """Return every client's test scores as a pandas data frame: by method, seed, evaluated round and client.

        Empty if there are more than 1000 clients, of which a run records means only.
        """
        return frame([line for key, run in self._runs for line in of_run(key, client_round_lines(run))])

    @property
    def _runs(self) -> list[tuple[dict[str, Any], Result]]:
        """All runs, each with the columns that identify it."""
        return [
            ({"method": name, "seed": seed}, run)
            for name, entry in self.entries.items()
            for seed, run in sorted(entry.runs.items())
        ]

    def page(self) -> dict[str, Any]:
        """Return the content of compare.json."""
        return document(self)

    @property
    def unit(self) -> str:
        """The unit that scores are shown in."""
        return score_tables.unit(self.score)

    def format_score(self, value: float | None) -> str:
        """Format a score or its standard error for a table."""
        return score_tables.format_score(value, self.score)

    def __repr__(self) -> str:
        seeds = f"seed{'s' * (len(self.seeds) != 1)} {self.seeds_in_words}"
        lines = [f"{title(self)}, {seeds}"]
        for name in self.ranking:
            one = self.figures[name]
            if one is None:
                lines.append(f"  {name}: {'failed' if self.entries[name].failed else 'not trained'}")
                continue
            mean, sem = one[self.score]["mean"], one[self.score]["sem"]
            error = "" if sem is None else f" ± {self.format_score(sem)}"
            value = "undefined" if mean is None else f"{self.format_score(mean)}{error}{self.unit}"
            mark = MARKS_IN_WORDS.get(one["relation"], "")
            lines.append(f"  {name}: mean {METRICS[self.score].title} {value}{mark}")
        constant = constant_figures(self)
        if constant is not None and self.score in constant:
            value = constant[self.score]["mean"]
            mean = "undefined" if value is None else f"{self.format_score(value)}{self.unit}"
            lines.append(f"  {score_tables.constant_title(constant)}: mean {METRICS[self.score].title} {mean}")
        return "\n".join([*lines, self.best.sentence, self.fairest.sentence])

    def save(self, path: str | PathLike[str]) -> Path:
        """Write compare.json, clients.csv and methods.csv to a directory and return it."""
        self.path = Path(path)
        run_directory.write_text(self.path / TABLE, score_tables.csv_text(self.clients))
        run_directory.write_text(self.path / METHODS_TABLE, score_tables.csv_text(self.table))
        text = json.dumps(rounded(self.page()), ensure_ascii=False, allow_nan=False)
        run_directory.write_text(self.path / FILE, text + "\n")
        return self.path


def _position(entry: Entry) -> tuple[int, str]:
    order = list(methods.REGISTRY)
    return (order.index(entry.method) if entry.method in order else len(order)), entry.name
