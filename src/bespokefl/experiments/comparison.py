"""Methods compared on the same clients: who is better off, with which method, and how sure that is.

compare.json   everything below, for the report and for other programs
clients.csv    one line per method, seed and client
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from bespokefl import methods
from bespokefl.core.errors import InputError, listing
from bespokefl.experiments import folder, tables
from bespokefl.experiments.result import Result
from bespokefl.metrics import fairness, improvement, spread, standard_error, summarize
from bespokefl.metrics.communication import SYSTEMS, times
from bespokefl.metrics.significance import Interval, Standing, bootstrap, standing
from bespokefl.metrics.vectors import Array
from bespokefl.metrics.verdict import Verdict, best_performing, fairest

FORMAT = 1
FILE, TABLE = "compare.json", "clients.csv"
LOCAL, FEDAVG = BASELINES = ("local", "fedavg")
LEVEL = 0.05  # of significance
DIGITS = 8  # of the figures in compare.json
MOST_ROUNDS, MOST_NOTES = 400, 60  # rounds of a history, and of a method's own notes, that compare.json holds
TEST, VALIDATION = ("accuracy", "loss", "f1", "precision", "recall"), ("validation_accuracy", "validation_loss")
CERTAIN = ("accuracy", "loss", "f1")  # those that get an interval
# What every line of rounds.jsonl has; all else are the method's own notes.
EVERY_ROUND = {
    *("round", "phase", "trained", "reported", "up_bytes", "down_bytes", "down_streams", "up_models", "workload"),
    *("seconds", "personal", "global"),
}
IMPROVEMENTS = (
    improvement.improved_share,
    improvement.decreased_share,
    improvement.median_improvement,
    improvement.mean_improvement,
    improvement.median_decrease,
    improvement.mean_decrease,
)

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


@dataclass(frozen=True)
class Facts:
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


class Comparison:
    """Methods × seeds × clients, and what follows from them. `print(comparison)` shows the table."""

    def __init__(self, entries: Sequence[Entry], facts: Facts, keep: object = None) -> None:
        self.entries = {entry.name: entry for entry in sorted(entries, key=_place)}
        self.facts = facts
        self.path: Path | None = None  # where it was saved
        self._keep = keep  # a temporary folder lives as long as this does
        self._first = next(run for entry in self.entries.values() for run in entry.runs.values())
        self.names = self._first.names  # the clients
        self.sizes = self._first.sizes
        self.score = "accuracy" if "accuracy" in self._first.personal else "loss"
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
        with_figures = [name for name, entry in self.entries.items() if entry.counts and not _is_baseline(entry)]
        found = {}
        for name in with_figures:
            own, *beside = (self._scores(one) for one in (name, common.name, local.name))
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
        return best_performing(self._compared, self.gains or None, level=LEVEL, higher_is_better=self.higher_is_better)

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
        found = list(self.facts.notes)
        if len(self.seeds) == 1:
            found.append(
                "One seed: there is no standard error, and the intervals and tests are over clients only; give --seeds."
            )
        lacking = {
            name: [seed for seed in self.facts.seeds if seed not in entry.runs and seed not in entry.failed]
            for name, entry in self.entries.items()
        }
        if any(lacking.values()):
            runs = [f"{name} with seed {seed}" for name, missing in lacking.items() for seed in missing]
            found.append(f"Not finished: {listing(runs)}. The figures are of the seeds {self._seeds_in_words}.")
        elif self.entries and not self.seeds:
            found.append("The methods have no seed in common: each has its own figures, and nothing is tested.")
        elif any(set(entry.runs) != set(self.seeds) for entry in self.entries.values() if entry.counts):
            found.append(f"Figures are of the seeds that all methods have: {self._seeds_in_words}.")
        for name, entry in self.entries.items():
            for seed, sentence in sorted(entry.failed.items()):
                found.append(f"{name} failed with seed {seed}: {sentence}")
            stopped = [seed for seed, run in entry.runs.items() if run.interrupted]
            if stopped:
                run = entry.runs[stopped[0]]
                done = f"{run.about['rounds_done']} of {run.about['rounds_planned']} rounds"
                found.append(f"{name} is unfinished with seed {listing(list(map(str, stopped)))}: {done}.")
        found += [f"{method} is left out: {reason}" for method, reason in self.facts.left_out]
        return [*found, *self._notes_of_runs()]

    @cached_property
    def figures(self) -> dict[str, Page | None]:
        """Each method in numbers, None for one that failed or has no runs yet."""
        found = {name: self._figures(name) if entry.counts else None for name, entry in self.entries.items()}
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
        facts = self.facts
        names = self.methods
        return {
            "format": FORMAT,
            "title": f"{len(names)} method{'s' * (len(names) > 1)} on {facts.data['name']}, {facts.data['split']}",
            "command": facts.command,
            "finished": not facts.interrupted
            and not any(run.interrupted for entry in self.entries.values() for run in entry.runs.values()),
            "score": self.score,
            "higher_is_better": self.higher_is_better,
            "level": LEVEL,
            "seeds": self.seeds,
            "data": facts.data,
            "model": facts.model,
            "config": facts.config,
            "config_text": facts.config_text,
            "versions": self._first.about["versions"],
            "systems": [asdict(system) for system in SYSTEMS],
            "clients": {"names": self.names, "groups": facts.groups, **self.sizes},
            "methods": [self._method(entry) for entry in self.entries.values()],
            "left_out": [{"method": method, "reason": reason} for method, reason in facts.left_out],
            "verdicts": {"best": asdict(self.best), "fairest": asdict(self.fairest)},
            "notes": self.notes,
        }

    @property
    def clients(self) -> list[dict[str, Any]]:
        """One dict per method, seed and client, as in clients.csv."""
        rows = []
        for name, entry in self.entries.items():
            for seed, run in sorted(entry.runs.items()):
                gains = self._gain(entry, seed)
                for at, line in enumerate(run.clients):
                    group = {} if self.facts.groups is None else {"group": self.facts.groups[at]}
                    gain = None if gains is None else gains[at]
                    rows.append({"method": name, "seed": seed} | line | group | {"gain": gain})
        return rows

    def __repr__(self) -> str:
        data = self.facts.data
        lines = [f"{len(self.entries)} methods on {data['name']}, {data['split']}, seeds {self._seeds_in_words}"]
        for name in self.ranking:
            one = self.figures[name]
            if one is None:
                lines.append(f"  {name}: {'failed' if self.entries[name].failed else 'not trained'}")
                continue
            mean, sem = one[self.score]["mean"], one[self.score]["sem"]
            told = "undefined" if mean is None else f"{mean:.4f}" + ("" if sem is None else f" ± {sem:.4f}")
            mark = "  (best)" if one["best"] else "  (tie)" if one["tie"] else ""
            lines.append(f"  {name}: mean {self.score} {told}{mark}")
        return "\n".join([*lines, self.best.sentence, self.fairest.sentence])

    # -- on disk

    def save(self, path: str | PathLike[str]) -> Path:
        """Write compare.json and clients.csv, and the runs where they are in another folder."""
        target = Path(path)
        try:
            target.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(f"cannot write to {str(path)!r}: {error.strerror or error}.") from None
        self.path = target
        folder.write_text(target / TABLE, tables.csv_text(self.clients))
        folder.write_text(target / FILE, json.dumps(_rounded(self.page()), ensure_ascii=False, allow_nan=False) + "\n")
        return target

    # -- how it is worked out

    def _scores(self, method: str) -> Array:
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
        found = {name: self._scores(name) for name, entry in self.entries.items() if entry.counts}
        return {name: one for name, one in found.items() if not np.isnan(one).all()}

    @property
    def _why_nothing(self) -> str:
        if not any(entry.counts for entry in self.entries.values()):
            return "none could be trained"
        return "no client has test data" if self.seeds else "there is no seed that all have finished"

    @property
    def _seeds_in_words(self) -> str:
        return ", ".join(map(str, self.seeds)) if self.seeds else "that each method has"

    def _notes_of_runs(self) -> list[str]:
        """What the runs say: once what all of them do, else by whom."""
        told: dict[str, list[str]] = {}
        for name, entry in self.entries.items():
            for seed, run in sorted(entry.runs.items()):
                for note in run.notes:
                    if not note.startswith("Interrupted after round"):
                        told.setdefault(note, []).append(f"{name} with seed {seed}")
        everybody = sum(len(entry.runs) for entry in self.entries.values())
        return [note if len(who) == everybody else f"{listing(who)}: {note}" for note, who in told.items()]

    def _method(self, entry: Entry) -> Page:
        first = min(entry.runs, default=None)
        failed: dict[int, Page] = {
            seed: {"seed": seed, "folder": None, "failed": said, "notes": []} for seed, said in entry.failed.items()
        }
        runs = {seed: self._run(entry, seed, details=seed == first) for seed in entry.runs}
        return {
            "name": entry.name,
            "method": entry.method,
            "about": entry.about,
            "citation": entry.citation,
            "hyper": entry.hyper,
            "tuned": entry.tuned,
            "baseline": _is_baseline(entry),
            "failed": entry.failed[min(entry.failed)] if entry.failed else None,
            "figures": self.figures[entry.name],
            "runs": [(runs | failed)[seed] for seed in sorted(runs | failed)],
        }

    def _run(self, entry: Entry, seed: int, *, details: bool) -> Page:
        run = entry.runs[seed]
        place = run.path
        if place is not None and self.path is not None and place.resolve().is_relative_to(self.path.resolve()):
            place = place.resolve().relative_to(self.path.resolve())
        kept = (*TEST, *VALIDATION)
        return {
            "seed": seed,
            "folder": None if place is None else str(place),
            "failed": None,
            "interrupted": run.interrupted,
            "rounds_done": run.about["rounds_done"],
            "rounds_planned": run.about["rounds_planned"],
            "personal": {name: run.personal[name] for name in kept if name in run.personal},
            "global": None
            if run.global_ is None
            else {name: run.global_[name] for name in kept if name in run.global_},
            "gain": self._gain(entry, seed),
            "history": history(run),
            "seconds": run.timing["seconds"],
            "notes": run.notes,
            "details": own_notes(run) if details else None,
        }

    def _gain(self, entry: Entry, seed: int) -> Array | None:
        local, common = (self._baseline(name) for name in (LOCAL, FEDAVG))
        if _is_baseline(entry) or local is None or common is None or not {seed} <= {*local.runs} & {*common.runs}:
            return None
        beside = (one.runs[seed].personal[self.score] for one in (common, local))
        own = entry.runs[seed].personal[self.score]
        return improvement.quantum(own, *beside, higher_is_better=self.higher_is_better)

    def _figures(self, name: str) -> Page:
        entry = self.entries[name]
        runs = [entry.runs[seed] for seed in self.seeds or sorted(entry.runs)]
        train = self.sizes["train"]
        of_kind: dict[str, Page] = {}
        for kind in ("personal", "global"):
            found = {measure: self.scores(name, measure, kind) for measure in (*TEST, *VALIDATION)}
            of_kind[kind] = {
                measure: over_clients(one, train, higher_is_better=not measure.endswith("loss"))
                | {"interval": _interval(one) if kind == "personal" and measure in CERTAIN else None}
                for measure, one in found.items()
                if one is not None
            }
        gains, own = self.gains.get(name), self._scores(name)
        per_client = None if gains is None else _per_client(gains)
        place = self.standing
        return {
            **of_kind["personal"],
            "global": of_kind["global"] or None,
            "gain": None
            if gains is None
            else {"mean": _mean(gains), "interval": _interval(gains)}
            | {one.__name__: one(gains) for one in IMPROVEMENTS},
            "fairness": {
                "score": fairness.measures(_per_client(own)),
                **({"improved": None, "decreased": None} if per_client is None else fairness.of_gains(per_client)),
            },
            **{way: _mean([run.communication[way] for run in runs]) for way in ("up_bytes", "down_bytes")},
            "streams": _mean([_number(run.communication.get("streams")) for run in runs]),
            "model_time": _times(runs),
            "seconds": _mean([run.timing["seconds"] for run in runs]),
            "rank": None,
            "best": place is not None and name == place.best,
            "tie": place is not None and name in place.ties,
            "p_value": None if place is None else place.p_values.get(name),
            "adjusted": None if place is None else place.adjusted.get(name),
            "difference": None if place is None or name == place.best else _interval(own - self._scores(place.best)),
        }


def over_clients(scores: Array, sizes: Array, *, higher_is_better: bool) -> Page:
    """A measure, (seeds, clients), in numbers: each worked out per seed, then averaged over the seeds."""
    seeds = [
        summarize(one, sizes, higher_is_better)
        | {"largest_decile": spread.largest_decile(one, sizes), "smallest_decile": spread.smallest_decile(one, sizes)}
        for one in scores
    ]
    found: Page = {name: _mean([_number(one[name]) for one in seeds]) for name in seeds[0]}
    return found | {"sem": standard_error([_number(one["mean"]) for one in seeds])}


def history(run: Result) -> Page:
    """A run's rounds in columns; what was sent, and how long it took, up to each of them."""
    rounds = run.rounds
    if len(rounds) > MOST_ROUNDS:
        scored = [at for at, line in enumerate(rounds) if "personal" in line]
        kept = _thinned(scored if len(scored) > 1 else range(len(rounds)), MOST_ROUNDS)
    else:
        kept = list(range(len(rounds)))

    def column(values: Sequence[Any]) -> list[Any]:
        return [values[at] for at in kept]

    def total(name: str) -> list[Any]:
        return column(np.cumsum([line[name] for line in rounds]).tolist())

    def means(kind: str, measure: str) -> list[float | None]:
        return column([(line.get(kind) or {}).get(measure) for line in rounds])

    known = all("down_streams" in line for line in rounds)
    return {
        "round": column([line["round"] for line in rounds]),
        "phase": column([line["phase"] for line in rounds]),
        "accuracy": means("personal", "test_accuracy"),
        "loss": means("personal", "test_loss"),
        "validation_accuracy": means("personal", "validation_accuracy"),
        "validation_loss": means("personal", "validation_loss"),
        "global_accuracy": means("global", "test_accuracy"),
        "global_loss": means("global", "test_loss"),
        "up_bytes": total("up_bytes"),
        "down_bytes": total("down_bytes"),
        "model_time": {one.name: column(np.cumsum(times(rounds, one)).tolist()) for one in SYSTEMS} if known else None,
        "seconds": total("seconds"),
    }


def own_notes(run: Result) -> Page | None:
    """What the method itself wrote down, by name: of rounds, and of rounds and clients."""
    of_rounds: dict[str, dict[int, Any]] = {}
    for line in run.rounds:
        for name, value in line.items():
            if name not in EVERY_ROUND:
                of_rounds.setdefault(name, {})[line["round"]] = value
    position = {client: at for at, client in enumerate(run.names)}
    of_clients: dict[str, dict[int, list[Any]]] = {}
    for row in run.client_rounds:
        for name, value in row.items():
            if name not in ("round", "client"):
                everybody = of_clients.setdefault(name, {}).setdefault(row["round"], [None] * len(position))
                everybody[position[row["client"]]] = value
    if not of_rounds and not of_clients:
        return None
    return {"rounds": _columns(of_rounds), "clients": _columns(of_clients)}


def _columns(found: Mapping[str, Mapping[int, Any]]) -> Page:
    kept = {name: _thinned(sorted(values), MOST_NOTES) for name, values in found.items()}
    return {name: {"round": rounds, "values": [found[name][at] for at in rounds]} for name, rounds in kept.items()}


def _thinned(values: Sequence[int], most: int) -> list[int]:
    """At most so many of them, evenly, the first and the last among them."""
    if len(values) <= most:
        return list(values)
    return [values[at] for at in np.linspace(0, len(values) - 1, most).round().astype(int)]


def _per_client(scores: Array) -> Array:
    """Means over seeds, (clients,); NaN for a client without a value."""
    there = ~np.isnan(scores)
    total, count = np.where(there, scores, 0.0).sum(0), there.sum(0)
    means: Array = np.divide(total, count, out=np.full(scores.shape[1], np.nan), where=count > 0)
    return means


def _interval(scores: Array) -> Interval | None:
    return bootstrap(scores, level=1 - LEVEL)


def _number(value: Any) -> float:
    return math.nan if value is None else float(value)


def _mean(values: Any) -> float | None:
    array = np.asarray(values, dtype=np.float64)
    known = array[~np.isnan(array)]
    return float(known.mean()) if known.size else None


def _times(runs: Sequence[Result]) -> dict[str, float | None] | None:
    found = [run.communication.get("model_time") for run in runs]
    if any(not isinstance(one, Mapping) for one in found):
        return None
    return {system.name: _mean([_number(one[system.name]) for one in found]) for system in SYSTEMS}  # type: ignore[index]


def _is_baseline(entry: Entry) -> bool:
    return entry.method in BASELINES


def _place(entry: Entry) -> tuple[int, str]:
    order = list(methods.REGISTRY)
    return (order.index(entry.method) if entry.method in order else len(order)), entry.name


def _rounded(value: Any) -> Any:
    """As JSON has it, floats to a few digits."""
    if type(value) is float and math.isfinite(value):
        return float(f"{value:.{DIGITS}g}")
    if isinstance(value, np.ndarray):
        value = value.tolist()
    if isinstance(value, dict):
        return {str(key): _rounded(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_rounded(one) for one in value]
    return tables.plain(value)
