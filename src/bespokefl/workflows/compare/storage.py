"""The directory of a comparison.

plan.json           what all runs have in common; a comparison is resumed only if this is unchanged
split.json          which examples belong to which client
runs/METHOD-SEED    the directory of each run; finished runs are not trained again
tune/METHOD         the tuning of each method, if it is tuned
tuned.json          what tuning chose; a resumed comparison keeps it
budget.json         the rounds of each method with `--budget time`; a resumed comparison keeps them
compare.json        the result, for the report and other programs
clients.csv         one line per method, seed and client
methods.csv         one line per method: score, work, bytes and seconds
report.html         the report
"""

import hashlib
import json
import shutil
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from bespokefl.core.errors import InputError
from bespokefl.data.clients import Clients
from bespokefl.workflows.compare.candidates import Candidate
from bespokefl.workflows.compare.result import FILE, METHODS_TABLE, TABLE
from bespokefl.workflows.results import run_directory, score_tables
from bespokefl.workflows.tune import result as tuning

PLAN, FAILED, REPORT, TUNED, BUDGET = "plan.json", "failed.json", "report.html", "tuned.json", "budget.json"
MARKERS, KIND = (PLAN,), "a comparison"
ADVICE = "use another directory, or --overwrite to replace it."


def run_path(path: Path, one: Candidate, seed: int) -> Path:
    """Return the directory of a candidate's run with this seed."""
    return path / "runs" / f"{one.slug}-{seed}"


def check(path: Path, overwrite: bool) -> None:
    """Reject a path that is neither free nor the directory of a comparison. Writes nothing."""
    if not run_directory.is_run(path, MARKERS):
        run_directory.check(path, overwrite, MARKERS, KIND)


def open_directory(
    path: Path, plan: Mapping[str, Any], clients: Clients, overwrite: bool, from_python: Sequence[str]
) -> None:
    """Create the directory, or resume the comparison in it if it has the same plan.

    `from_python` names what was made in Python: it has no name, so it may have changed, and resuming is rejected.
    """
    check(path, overwrite)

    def fill(new: Path) -> None:
        clients.save_split(new / run_directory.SPLIT_FILE)
        run_directory.write_text(new / PLAN, score_tables.dumps(plan, indent=1) + "\n")

    if not run_directory.is_run(path, MARKERS):
        run_directory.write(path, fill, overwrite, MARKERS, KIND)  # both files or none, else it could not be resumed
    else:
        if overwrite:
            clear(path)
        else:
            _check_plan(path, plan, from_python)
        fill(path)
    (path / "runs").mkdir(exist_ok=True)


def clear(path: Path) -> None:
    """Remove the files of a comparison and nothing else. Its plan stays, which identifies the directory."""
    for kind, markers in (("runs", [run_directory.SIGNS, (FAILED,), ("config.toml",)]), ("tune", [tuning.MARKERS])):
        for one in (path / kind).glob("*"):
            if any(run_directory.is_run(one, names) for names in markers):
                shutil.rmtree(one)
        with suppress(OSError):
            (path / kind).rmdir()
    for name in (FILE, TABLE, METHODS_TABLE, REPORT, TUNED, BUDGET):
        (path / name).unlink(missing_ok=True)


def is_unfinished(path: Path) -> bool:
    """Return whether a comparison was started here and was killed before it wrote its result."""
    return run_directory.is_run(path, MARKERS) and not (path / FILE).is_file()


def read_plan(path: Path) -> dict[str, Any]:
    """Read the plan of a comparison from its directory."""
    try:
        found: dict[str, Any] = json.loads((path / PLAN).read_text(encoding="utf-8"))
        return found | {"config": dict(found["config"]), "split_hash": str(found["split_hash"])}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(
            f"the comparison in {str(path)!r} is damaged: {error!r}; use --overwrite to replace it."
        ) from None


def _check_plan(path: Path, now: Mapping[str, Any], from_python: Sequence[str]) -> None:
    before = read_plan(path)
    if before["split_hash"] != now["split_hash"]:
        raise InputError(
            f"{str(path)!r} holds a comparison of split {before['split_hash'][:12]}, and this one is of split "
            f"{now['split_hash'][:12]}; {ADVICE}"
        )
    # Comparisons of earlier versions had no budget, and were tuned only with --tune.
    tuned = "--tune" in before["command"] if before.get("command") else now["config"].get("tune")
    old, new = {"budget": "none", "tune": tuned} | before["config"], now["config"]
    for name in new:
        if name not in ("eval_every", "follow") and old.get(name) != new[name]:  # which changes no score at the end
            raise InputError(
                f"{str(path)!r} holds a comparison with {name} = {old.get(name)} (config {_hash(old)}), and this "
                f"one has {name} = {new[name]} (config {_hash(new)}); {ADVICE}"
            )
    if from_python:
        raise InputError(
            f"{str(path)!r} holds a comparison, and {from_python[0]} was made in Python and may have changed; {ADVICE}"
        )


def write_tuned(path: Path, choices: Mapping[str, Any], summary: Mapping[str, Any]) -> None:
    """Write what tuning chose for each method, in addition to earlier choices, and how it was tuned."""
    content = {"choices": read_tuned(path) | dict(choices), "summary": summary}
    run_directory.write_text(path / TUNED, score_tables.dumps(content, indent=1) + "\n")


def read_tuned(path: Path) -> dict[str, Any]:
    """Return what tuning chose for each method; empty if nothing was chosen yet."""
    return dict(_tuned(path).get("choices", {}))


def read_tuning_summary(path: Path) -> dict[str, Any] | None:
    """Return how a comparison was tuned; None if it was not, or not completely."""
    return _tuned(path).get("summary")


def _tuned(path: Path) -> dict[str, Any]:
    try:
        found: dict[str, Any] = json.loads((path / TUNED).read_text(encoding="utf-8"))
        return found
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise InputError(
            f"{str(path / TUNED)!r} is damaged: {error!r}; remove it to tune again, or use --overwrite."
        ) from None


def _hash(config: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(config, sort_keys=True).encode()).hexdigest()[:12]
