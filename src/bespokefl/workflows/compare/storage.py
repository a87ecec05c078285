"""The folder of a comparison: begun at once, gone on with only by the same plan, cleared of nothing but its own files.

plan.json           what all runs have in common: a folder is gone on with only if this is the same
split.json          whose examples are whose
runs/METHOD-SEED    the folder of each run; those that are there are not trained again
tune/METHOD         the tuning of each method, where it was asked for
compare.json        what came out, for the report and other programs
clients.csv         one line per method, seed and client
report.html         all of it to look at
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
from bespokefl.workflows.compare.candidates import Contender
from bespokefl.workflows.compare.result import FILE, TABLE
from bespokefl.workflows.results import run_directory, score_tables
from bespokefl.workflows.tune.result import FILE as TUNING

PLAN, FAILED, PAGE = "plan.json", "failed.json", "report.html"
SIGNS, WHAT = (PLAN,), "a comparison"
TOLD = "use another folder, or --overwrite to replace it."


def of_run(place: Path, one: Contender, seed: int) -> Path:
    return place / "runs" / f"{one.slug}-{seed}"


def check(place: Path, overwrite: bool) -> None:
    """Refuse a place that is neither free nor a comparison's. Writes nothing."""
    if not run_directory.is_run(place, SIGNS):
        run_directory.check(place, overwrite, SIGNS, WHAT)


def begin(place: Path, plan: Mapping[str, Any], clients: Clients, overwrite: bool, unnamed: Sequence[str]) -> None:
    """Make the folder, or go on in one that is there for the same purpose.

    unnamed    what was made in Python, has no name, and so cannot be known to be the same
    """
    check(place, overwrite)

    def fill(new: Path) -> None:
        clients.save_split(new / run_directory.SPLIT_FILE)
        run_directory.write_text(new / PLAN, score_tables.dumps(plan, indent=1) + "\n")

    if not run_directory.is_run(place, SIGNS):
        run_directory.write(
            place, fill, overwrite, SIGNS, WHAT
        )  # both files at once: half a folder could not be gone on with
    else:
        if overwrite:
            clear(place)
        else:
            _compare_plans(place, plan, unnamed)
        fill(place)
    (place / "runs").mkdir(exist_ok=True)


def clear(place: Path) -> None:
    """Remove what a comparison has written, and nothing else; its plan stays, by which the folder is known."""
    for kind, signs in (("runs", [run_directory.SIGNS, (FAILED,), ("config.toml",)]), ("tune", [(TUNING,)])):
        for one in (place / kind).iterdir() if (place / kind).is_dir() else ():
            if any(run_directory.is_run(one, sign) for sign in signs):
                shutil.rmtree(one)
        with suppress(OSError):
            (place / kind).rmdir()
    for name in (FILE, TABLE, PAGE):
        (place / name).unlink(missing_ok=True)


def was_killed(place: Path) -> bool:
    """Whether a comparison was begun here, and never came to say what came out of it."""
    return run_directory.is_run(place, SIGNS) and not (place / FILE).is_file()


def read_plan(place: Path) -> dict[str, Any]:
    try:
        found: dict[str, Any] = json.loads((place / PLAN).read_text(encoding="utf-8"))
        return found | {"config": dict(found["config"]), "split_hash": str(found["split_hash"])}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(
            f"the comparison in {str(place)!r} is damaged: {error!r}; use --overwrite to replace it."
        ) from None


def _compare_plans(place: Path, now: Mapping[str, Any], unnamed: Sequence[str]) -> None:
    before = read_plan(place)
    if before["split_hash"] != now["split_hash"]:
        raise InputError(
            f"{str(place)!r} holds a comparison of split {before['split_hash'][:12]}, and this one is of split "
            f"{now['split_hash'][:12]}; {TOLD}"
        )
    old, new = before["config"], now["config"]
    for name in new:
        if old.get(name) != new[name]:
            raise InputError(
                f"{str(place)!r} holds a comparison with {name} = {old.get(name)} (config {_hash(old)}), and this "
                f"one has {name} = {new[name]} (config {_hash(new)}); {TOLD}"
            )
    if unnamed:
        raise InputError(
            f"{str(place)!r} holds a comparison, and {unnamed[0]} was made in Python and may have changed; {TOLD}"
        )


def _hash(config: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(config, sort_keys=True).encode()).hexdigest()[:12]
