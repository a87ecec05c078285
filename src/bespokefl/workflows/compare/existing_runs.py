"""Comparing runs that are there: single ones, or all of a comparison, also of one that was killed."""

import json
from collections.abc import Sequence
from os import PathLike
from pathlib import Path
from typing import Any

from bespokefl.core.errors import InputError
from bespokefl.workflows.compare import candidates
from bespokefl.workflows.compare import storage as compare_folder
from bespokefl.workflows.compare.plan import FREE
from bespokefl.workflows.compare.result import FILE, Comparison, ComparisonMetadata
from bespokefl.workflows.results import run_directory
from bespokefl.workflows.results.result import Result, load_run
from bespokefl.workflows.run import toml


def compare_runs(
    runs: Sequence[Result | str | PathLike[str]], *, out: str | PathLike[str] | None = None, overwrite: bool = False
) -> Comparison:
    """Compare runs that are there: results, folders of runs, or folders of comparisons, all of one split.

    Runs that differ in nothing but their seed are one method; figures are of the seeds that all methods have.
    """
    if out is not None:
        run_directory.check(Path(out), overwrite, (FILE,), compare_folder.WHAT)
    results = [result for one in runs for result in _loaded(one)]
    if len(results) < 2:
        raise InputError(f"a comparison of runs needs at least two, got {len(results)}.")
    found = _compared(results)
    if out is not None:
        found.save(out)
    return found


def compare_killed(place: Path) -> Comparison:
    """What there is of a comparison that was killed before it could say what came out."""
    plan = compare_folder.read_plan(place)
    results = _finished(place)
    if not results:
        raise InputError(
            f"the comparison in {str(place)!r} has no finished run yet; the command that began it goes on with it."
        )
    methods, seeds = list(plan.get("methods", ())), tuple(plan.get("seeds", ()))
    begun = {result.method for result in results}
    notes = [f"{name} has no finished run yet." for name in methods if name.partition(" (")[0] not in begun]
    told = {"command": plan.get("command"), "planned": len(methods) * len(seeds) or None}
    return _compared(results, seeds=seeds, notes=notes, interrupted=True, **told)


def _compared(results: Sequence[Result], notes: Sequence[str] = (), **told: Any) -> Comparison:
    first = results[0]
    for other in results[1:]:
        if other.about["split_hash"] != first.about["split_hash"]:
            raise InputError(
                f"runs of different splits cannot be compared, got {_called(first)} of split "
                f"{first.about['split_hash'][:12]} and {_called(other)} of split {other.about['split_hash'][:12]}."
            )
        if other.names != first.names:
            raise InputError(
                f"runs of different clients cannot be compared, but {_called(first)} and {_called(other)} held back "
                "different newcomers."
            )
    entries, differing = candidates.grouped(results)
    differs = [f"The methods differ in more than the method: {differing}."] if differing else []
    about, settings = first.about, first.about["settings"]
    config = {"rounds": about["rounds"], **{name: value for name, value in settings.items() if name not in FREE}}
    data = {name: about[name] for name in ("split", "split_hash", "split_seed", "clients")}
    facts = ComparisonMetadata(
        data={"name": about["data"], **data, **{name: about["examples"][name] for name in ("shape", "labels")}},
        model=about["model"],
        config=config,
        config_text=toml.dumps({"data": about["data"], "split": about["split"], "model": about["model"], **config}),
        groups=_groups(first),
        notes=(*differs, *notes),
        **told,
    )
    return Comparison(entries, facts)


def _loaded(run: Result | str | PathLike[str]) -> list[Result]:
    """The runs that are meant: one, or all of a comparison."""
    if isinstance(run, Result):
        return [run]
    path = Path(run)
    if run_directory.is_run(path, compare_folder.SIGNS):
        return _finished(path)
    if run_directory.is_unfinished(path) and not run_directory.is_run(path):
        raise InputError(f"the run in {str(path)!r} is unfinished; bespoke resume {path} goes on with it.")
    return [load_run(path)]


def _finished(place: Path) -> list[Result]:
    """The runs of a comparison; those whose names begin with a dot were being written when it was killed."""
    folders = sorted(one for one in (place / "runs").glob("[!.]*") if run_directory.is_run(one))
    return [load_run(one) for one in folders]


def _called(result: Result) -> str:
    return f"{result.method} with seed {result.about['seed']}" if result.path is None else repr(str(result.path))


def _groups(result: Result) -> tuple[int, ...] | None:
    """The true groups of the clients, which the split of a run may know."""
    if result.path is None or not (result.path / run_directory.SPLIT_FILE).is_file():
        return None
    split = json.loads((result.path / run_directory.SPLIT_FILE).read_text(encoding="utf-8"))
    if split["groups"] is None:
        return None
    known = dict(zip(split["names"], split["groups"], strict=True))
    return tuple(known[name] for name in result.names)
