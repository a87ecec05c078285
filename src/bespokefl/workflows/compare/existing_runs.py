"""Compare runs on disk: single runs, or all runs of a comparison, including one that was killed."""

import json
from collections.abc import Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any

from bespokefl import methods as registry
from bespokefl.core.errors import InputError, listing
from bespokefl.metrics.metric import check_metric
from bespokefl.workflows.compare import budget, candidates, storage
from bespokefl.workflows.compare.plan import MAY_CHANGE, UNTUNED
from bespokefl.workflows.compare.result import FILE, Comparison, ComparisonMetadata, Entry, data_of
from bespokefl.workflows.results import run_directory, score_tables
from bespokefl.workflows.results.result import Result, load_run
from bespokefl.workflows.run import toml

# Settings that, with model and rounds, distinguish runs of one method.
LOCAL_TRAINING = ("participation", "batch_size", "local_epochs", "local_steps")
SETTINGS = (*LOCAL_TRAINING, "head", "local_blocks", "loss", "precision", "start")
NOT_TUNED, NOT_KNOWN, TUNED = STATES = ("not tuned", "of unknown origin, perhaps not tuned", "tuned")  # the worst first


def compare_runs(
    runs: Sequence[Result | str | PathLike[str]],
    *,
    metric: str | None = None,
    out: str | PathLike[str] | None = None,
    overwrite: bool = False,
) -> Comparison:
    """Compare existing runs of the same split; figures are of the seeds that all methods have.

    Parameters
    ----------
    runs : sequence of Result or path
        Results, directories of runs, or directories of comparisons. Runs that differ only in the seed belong to one
        method.
    metric : str, optional
        The score by which methods are tested and ranked. Default: accuracy, or loss for regression.
    out : path, optional
        Directory for compare.json and clients.csv; `overwrite` replaces a comparison there.

    Raises
    ------
    InputError
        If there are fewer than two runs, if they have different splits or clients, or if they have no such metric.
    """
    chosen = None if metric is None else check_metric(metric)
    if out is not None:
        run_directory.check(Path(out), overwrite, (FILE,), storage.KIND)
    results = [result for one in runs for result in _load(one)]
    if len(results) < 2:
        raise InputError(f"a comparison of runs needs at least two, got {len(results)}.")
    whole = [
        Path(one) for one in runs if not isinstance(one, Result) and run_directory.is_run(Path(one), storage.MARKERS)
    ]
    about = _about_comparison(whole[0], results) if len(whole) == len(runs) == 1 else {}
    found = _compare(results, metric=chosen, **about)
    if out is not None:
        found.save(out)
    return found


def compare_unfinished(path: Path) -> Comparison:
    """Compare the finished runs of a comparison that was killed."""
    plan = storage.read_plan(path)
    results = _finished_runs(path)
    if not results:
        raise InputError(
            f"the comparison in {str(path)!r} has no finished run yet; repeat the command that started it to resume."
        )
    methods, seeds = list(plan.get("methods", ())), tuple(plan.get("seeds", ()))
    started = {result.method for result in results}
    notes = [f"{name} has no finished run yet." for name in methods if name.partition(" (")[0] not in started]
    about = _about_comparison(path, results)
    about |= {"notes": [*notes, *about["notes"]], "metric": plan.get("metric"), "command": plan.get("command")}
    return _compare(results, seeds=seeds, interrupted=True, planned=len(methods) * len(seeds) or None, **about)


def _about_comparison(path: Path, results: Sequence[Result]) -> dict[str, Any]:
    """Return the budget, the planned rounds and the tuning of the comparison that all these runs belong to."""
    plan = storage.read_plan(path)
    equal, rounds = plan["config"].get("budget"), plan["config"].get("rounds")
    rounds = rounds or max(result.about["rounds"] for result in results)
    notes = []
    if equal in (budget.GRADIENTS, budget.TIME):
        names = {candidates.slug(name): name for name in plan.get("methods", ())}
        own = {names.get(_slug(result), _slug(result)): result.about["rounds"] for result in results}
        notes = budget.round_notes(own, rounds, equal)
    return {"budget": equal, "rounds": rounds, "notes": notes, "summary": _tuning_of_comparison(path)}


def _compare(
    results: Sequence[Result],
    notes: Sequence[str] = (),
    summary: Mapping[str, Any] | None = None,
    rounds: int | None = None,
    **metadata: Any,
) -> Comparison:
    """Put runs together; `summary` and `rounds` are how they were tuned and planned if they are of one comparison."""
    first = results[0]
    for other in results[1:]:
        if other.about["split_hash"] != first.about["split_hash"]:
            raise InputError(
                f"runs of different splits cannot be compared, got {_label(first)} of split "
                f"{first.about['split_hash'][:12]} and {_label(other)} of split {other.about['split_hash'][:12]}."
            )
        if other.names != first.names:
            raise InputError(
                f"runs of different clients cannot be compared, but {_label(first)} and {_label(other)} held back "
                "different newcomers."
            )
    entries, differing = _entries(results)
    own = rounds is not None  # of one comparison, whose budget and tuning say what differs
    differs = [f"The methods differ in more than the method: {differing}."] if differing and not own else []
    about = first.about
    settings = {name: value for name, value in about["settings"].items() if name not in MAY_CHANGE}
    config = {"rounds": rounds or about["rounds"], **settings}
    known = ComparisonMetadata(
        tuning={**_tuning_of(entries), **(summary or {}), "untuned": _in_state(entries, NOT_TUNED)},
        data=data_of(about),
        model=about["model"],
        config=config,
        config_text=toml.dumps({"data": about["data"], "split": about["split"], "model": about["model"], **config}),
        groups=_groups(first),
        notes=(*differs, *notes),
        **metadata,
    )
    return Comparison(entries, known)


def _entries(results: Sequence[Result]) -> tuple[list[Entry], str]:
    """Group runs that differ only in the seed into methods; also list the settings in which the methods differ."""
    groups: dict[str, list[Result]] = {}
    for result in results:
        groups.setdefault(score_tables.dumps([result.method, _settings(result), result.hyper]), []).append(result)
    firsts = [own[0] for own in groups.values()]
    settings = [_settings(one) for one in firsts]
    about = [own | score_tables.plain(one.hyper) for own, one in zip(settings, firsts, strict=True)]
    names = candidates.labels([one.method for one in firsts], about)
    entries = []
    for name, own in zip(names, groups.values(), strict=True):
        kind = registry.REGISTRY.get(own[0].method)  # plug-ins are not imported to read results
        summary, citation = ("", "") if kind is None else (kind.summary(), kind.citation)
        entry = Entry(name, own[0].method, own[0].hyper, about=summary, citation=citation)
        for result in own:
            seed = int(result.about["seed"])
            if seed in entry.runs:
                raise InputError(f"two runs are of {name} with seed {seed}; leave one of them out.")
            entry.runs[seed] = result
        choices = [_choice_of(result) for result in own]
        entry.tuned = choices[0] if all(one == choices[0] for one in choices) else None
        entries.append(entry)
    differing = [key for key in settings[0] if any(one[key] != settings[0][key] for one in settings)]
    values = (f"{key} ({', '.join(dict.fromkeys(str(one[key]) for one in settings))})" for key in differing)
    return entries, ", ".join(values)


def _settings(result: Result) -> dict[str, Any]:
    """Return everything that determines a run, except method and seed."""
    about = result.about
    found = {name: about[name] for name in ("model", "rounds")}
    found |= {name: about["settings"].get(name) or None for name in SETTINGS}  # earlier runs lack some
    return {name: score_tables.plain(value) for name, value in found.items()}


def _tuning_of(entries: Sequence[Entry]) -> dict[str, Any]:
    """Return whether all methods were tuned: runs of a comparison know it, single runs do not."""
    methods = {state: _in_state(entries, state) for state in STATES}
    untuned, unknown, tuned = methods.values()
    if not untuned and not unknown:
        known = [_tuning_of_run(result) for entry in entries for result in entry.runs.values()]
        sentences = [sentence for one in known if one is not None for sentence in one["sentences"]]
        return {"tuned": True, "untuned": [], "sentences": list(dict.fromkeys(sentences))}
    parts = [f"{state}: {listing(methods[state], len(entries))}" for state in (TUNED, *STATES[:2]) if methods[state]]
    whether = None if not untuned else bool(tuned)
    return {
        "tuned": whether,
        "untuned": untuned,
        "unknown": unknown,
        "sentences": [f"Hyper-parameters are {'; '.join(parts)}."],
    }


def _in_state(entries: Sequence[Entry], state: str) -> list[str]:
    """Return the methods in this state of tuning: that of the run which was tuned least."""
    states = {entry.name: {_state_of(result) for result in entry.runs.values()} for entry in entries}
    return [name for name, own in states.items() if min(own, key=STATES.index) == state]


def _state_of(result: Result) -> str:
    """Return whether a run was tuned by the comparison that it belongs to."""
    tuning = _tuning_of_run(result)
    if tuning is None:
        return NOT_KNOWN
    if "untuned" not in tuning:
        return TUNED if tuning["tuned"] else NOT_TUNED
    return NOT_TUNED if _slug(result) in map(candidates.slug, tuning["untuned"]) else TUNED


def _choice_of(result: Result) -> dict[str, Any] | None:
    """Return what the comparison that a run belongs to chose for its method by tuning; None if it chose nothing."""
    if result.path is None or result.path.parent.name != "runs":
        return None
    stored = storage.read_tuned(result.path.parent.parent)
    found = next((one for name, one in stored.items() if candidates.slug(name) == _slug(result)), None)
    return None if found is None else found["tuned"]


def _slug(result: Result) -> str:
    """Return the name of the method as in the directory of a run of a comparison, METHOD-SEED."""
    assert result.path is not None
    return result.path.name.removesuffix(f"-{result.about['seed']}")


def _tuning_of_run(result: Result) -> dict[str, Any] | None:
    """Return how the comparison that a run belongs to was tuned; None if that is unknown."""
    if result.path is None or result.path.parent.name != "runs":
        return None
    return _tuning_of_comparison(result.path.parent.parent)


def _tuning_of_comparison(path: Path) -> dict[str, Any] | None:
    if not run_directory.is_run(path, storage.MARKERS):
        return None
    found = storage.read_tuning_summary(path)
    if found is None and storage.read_plan(path)["config"].get("tune") is False:
        return {"tuned": False, "sentences": [UNTUNED]}
    return found


def _load(run: Result | str | PathLike[str]) -> list[Result]:
    """Return one run, or all runs of a comparison."""
    if isinstance(run, Result):
        return [run]
    path = Path(run)
    if run_directory.is_run(path, storage.MARKERS):
        return _finished_runs(path)
    if run_directory.is_unfinished(path) and not run_directory.is_run(path):
        raise InputError(f"the run in {str(path)!r} is unfinished; bespoke resume {path} resumes it.")
    return [load_run(path)]


def _finished_runs(path: Path) -> list[Result]:
    """Load the runs of a comparison; names that start with a dot are of runs that were being written when it died."""
    return [load_run(one) for one in sorted((path / "runs").glob("[!.]*")) if run_directory.is_run(one)]


def _label(result: Result) -> str:
    return f"{result.method} with seed {result.about['seed']}" if result.path is None else repr(str(result.path))


def _groups(result: Result) -> tuple[int, ...] | None:
    """Return the clients' true groups if the split of the run knows them."""
    if result.path is None or not (result.path / run_directory.SPLIT_FILE).is_file():
        return None
    split = json.loads((result.path / run_directory.SPLIT_FILE).read_text(encoding="utf-8"))
    if split["groups"] is None:
        return None
    known = dict(zip(split["names"], split["groups"], strict=True))
    return tuple(known[name] for name in result.names)
