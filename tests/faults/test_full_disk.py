"""Real processes on a real full disk: the command prints one sentence, existing files stay intact, and the run resumes.

Disk sizes are multiples of a row (the model of one client); all other files are small.
"""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from bespokefl.workflows.run.api import resume
from tests.commands import bespoke
from tests.disks import PAGE, small_disk, taken
from tests.faults.test_resume import came_out, contents, write_data

pytestmark = pytest.mark.slow
CLIENTS, ROUNDS, HIDDEN = 5, 6, 1000
ROW = 4 * (4 * HIDDEN + HIDDEN + HIDDEN * 3 + 3)  # bytes: four features, three classes, float32
CHECKPOINT = (1 + CLIENTS) * ROW  # Ditto's: the global model and all personal models
FILES = 16 * PAGE  # enough for all files of a run except weights
FULL = Path("/dev/full")  # every write to it fails
SHARED = ("--model", f"mlp(hidden=({HIDDEN},))", "--rounds", str(ROUNDS), "--eval-every", "2", "--workers", "1")


def started_by(prefix: tuple[str, ...], *words: object) -> "subprocess.CompletedProcess[str]":
    """Run a command after a prefix such as `small_disk`, in the usual environment: output is buffered."""
    usual = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    command = [*prefix, sys.executable, "-m", "bespokefl.cli", *map(str, words)]
    return subprocess.run(
        command, capture_output=True, text=True, env=usual | {"OMP_NUM_THREADS": "1"}, timeout=600, check=False
    )


def sentence(ended: "subprocess.CompletedProcess[str]") -> str:
    """Check how a command ends on a full disk and return its error message."""
    assert ended.returncode == 2, ended.stderr
    assert ended.stdout == ""
    (line,) = ended.stderr.splitlines()
    assert line.startswith("error: cannot ") and line.count("No space left on device") == 1
    return line


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_data(tmp_path_factory.mktemp("data") / "own.npz")


@pytest.fixture(scope="module")
def undisturbed(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a run with enough space."""
    out = tmp_path_factory.mktemp("whole") / "run"
    assert bespoke("run", "ditto", "--data", data, *SHARED, "--out", out).returncode == 0
    return out


@pytest.fixture(scope="module")
def whole(undisturbed: Path) -> dict[str, Any]:
    """The content of that directory."""
    return contents(undisturbed)


@pytest.fixture(scope="module")
def compared(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a comparison with enough space."""
    out = tmp_path_factory.mktemp("whole") / "compare"
    assert bespoke("compare", "ditto", "--no-tune", "--seeds", 0, "--data", data, *SHARED, "--out", out).returncode == 0
    return out


class Small:
    """A small disk and a copy of what was left on it."""

    def __init__(self, path: Path) -> None:
        self.disk, self.kept = path / "disk", path / "kept"
        self.disk.mkdir()
        self.kept.mkdir()

    def run(self, size: int, *words: object) -> str:
        return sentence(started_by(small_disk(self.disk, size, self.kept), *words))

    def left(self) -> list[str]:
        return sorted(str(one.relative_to(self.kept)) for one in self.kept.rglob("*"))


@pytest.fixture
def small(tmp_path: Path) -> Small:
    return Small(tmp_path)


def resumed(run: Path, after: int, *options: object) -> dict[str, Any]:
    """Resume a run, check that it continues after this round, and return the content of its directory."""
    ended = bespoke("resume", run, "--quiet", *options)
    assert (ended.returncode, ended.stderr) == (0, f"warning: resuming after round {after}\n")
    return contents(run)


def assert_same(found: dict[str, Any], whole: dict[str, Any]) -> None:
    """Compare two runs, except for settings that a resume may change: directories and the checkpoint interval."""
    assert found.keys() == whole.keys()
    figures, expected = (_results(one["result.json"]) for one in (found, whole))
    assert figures == expected
    assert [name for name in whole.keys() - {"config.toml", "result.json"} if found[name] != whole[name]] == []


def _results(about: dict[str, Any]) -> dict[str, Any]:
    config = {name: value for name, value in about["settings"].items() if name not in ("checkpoint_every", "state_dir")}
    timing = {name: value for name, value in about["timing"].items() if name != "states"}
    return about | {"settings": config, "timing": timing}


def test_full_at_a_checkpoint(data: Path, whole: dict[str, Any], small: Small) -> None:
    """With space for two and a half checkpoints, the third stops the run."""
    run = small.disk / "run"
    told = small.run(
        FILES + 5 * CHECKPOINT // 2, "run", "ditto", "--data", data, *SHARED, "--checkpoint-every", 1, "--out", run
    )
    assert told == (
        f"error: cannot write a checkpoint to '{run}/checkpoints': No space left on device; the last good checkpoint "
        f"is of round 2; make room, then: bespoke resume {run}."
    )
    checkpoints = [f"run/checkpoints/round-0000000{number}" for number in (1, 2)]
    files = [f"{one}/{name}" for one in checkpoints for name in ("record.json", "state.safetensors")]
    assert small.left() == sorted(["run", "run/checkpoints", "run/config.toml", "run/split.json", *checkpoints, *files])
    assert_same(resumed(small.kept / "run", 2), whole)


@pytest.mark.parametrize("size", [PAGE, 3 * PAGE, FILES + CHECKPOINT // 2], ids=["config", "record", "state"])
def test_full_at_the_first_checkpoint(size: int, data: Path, small: Small) -> None:
    """There is nothing to resume from, and nothing that prevents a new start."""
    run = small.disk / "run"
    told = small.run(size, "run", "ditto", "--data", data, *SHARED, "--checkpoint-every", 1, "--out", run)
    assert told == (
        f"error: cannot write a checkpoint to '{run}/checkpoints': No space left on device; there is no checkpoint "
        "yet; make room, then: start it again."
    )
    assert small.left() == []


WRITTEN = ["config.toml", "result.json", "clients.csv", "rounds.jsonl"]
WRITTEN += [f"{what}.safetensors" for what in ("personal", "global", "server")]


@pytest.fixture(scope="module")
def half(data: Path, tmp_path_factory: pytest.TempPathFactory) -> int:
    """The size of a run with a single checkpoint, measured on a disk that has space for no more."""
    small = Small(tmp_path_factory.mktemp("half"))
    end = ("run", "ditto", "--data", data, *SHARED, "--checkpoint-every", 4, "--out", small.disk / "run")
    small.run(FILES + CHECKPOINT, *end)
    return taken(small.kept)


@pytest.mark.parametrize("file", [WRITTEN[1], *WRITTEN[4:]])
def test_full_at_the_end(
    file: str, half: int, data: Path, undisturbed: Path, whole: dict[str, Any], small: Small
) -> None:
    """Results are written in this order, and the checkpoint is removed afterwards. There is space for half of this
    file."""
    before = sum(taken(undisturbed / name) for name in WRITTEN[: WRITTEN.index(file)])
    run = small.disk / "run"
    end = ("run", "ditto", "--data", data, *SHARED, "--checkpoint-every", 4, "--out", run)
    assert small.run(half + before + taken(undisturbed / file) // 2, *end) == (
        f"error: cannot write to '{run}': No space left on device; the last good checkpoint is of round 4; make room, "
        f"then: bespoke resume {run}."
    )
    assert [one for one in small.left() if not one.startswith("run")] == []
    assert taken(small.kept) == half
    resume(small.kept / "run")
    assert_same(contents(small.kept / "run"), whole)


@pytest.mark.parametrize(("rows", "every", "last"), [(3, 1, (1, 2)), (9, 4, (4, 6))], ids=["early", "late"])
def test_full_at_the_client_states(
    rows: int, every: int, last: tuple[int, ...], data: Path, tmp_path: Path, small: Small
) -> None:
    """Early: there is no space for a third client's state. Late: there is space for five clients, but not for five more
    rows, which a checkpoint in progress (round 4 is saved) or the final models (all rounds are saved) need."""
    share = 0.4 if every == 1 else 1.0
    common = ("run", "ditto", "--data", data, *SHARED, "--participation", share, "--checkpoint-every", every)
    assert bespoke(*common, "--out", tmp_path / "whole").returncode == 0
    run = tmp_path / "run"
    told = small.run(rows * (ROW + 4 * PAGE), *common, "--out", run, "--state-dir", small.disk / "states")
    found = re.fullmatch(
        rf"error: cannot keep the clients' states in '{small.disk}/states': No space left on device; "
        r"the last good checkpoint is of round (\d); make room or give --state-dir on a larger disk, then: "
        rf"bespoke resume {run}\.",
        told,
    )
    assert found and int(found[1]) in last
    assert small.left() == ["states"]
    larger = tmp_path / "larger"
    assert_same(resumed(run, int(found[1]), "--state-dir", larger), contents(tmp_path / "whole"))
    assert list(larger.iterdir()) == []


@pytest.mark.parametrize("workers", [1, 2])
def test_full_in_a_comparison(workers: int, data: Path, compared: Path, small: Small) -> None:
    """There is space for the runs of Local and FedAvg and for one checkpoint of Ditto."""
    common = (
        "compare",
        "ditto",
        "--no-tune",
        "--seeds",
        "0",
        "--data",
        data,
        *SHARED[:-1],
        workers,
        "--checkpoint-every",
        2,
    )
    place = small.disk / "compare"
    done = sum(taken(compared / "runs" / name) for name in ("local-0", "fedavg-0"))
    told = small.run(done + FILES + 3 * CHECKPOINT // 2, *common, "--out", place, "--quiet")  # no hint about seeds
    # Of two runs at the same time, one may find the disk full at its first checkpoint, and the other one is killed.
    first = "" if workers == 1 else "there is no checkpoint yet|"
    found = re.fullmatch(
        rf"error: cannot write .*'{place}/runs/.*': No space left on device; "
        rf"({first}the last good checkpoint is of round \d); make room, then: bespoke compare ditto .* --out {place}\.",
        told,
    )
    assert found
    kept = small.kept / "compare"
    runs = {one.name: one for one in (kept / "runs").iterdir() if one.is_dir()}  # a killed job leaves its lock file
    whole = {name: one / "result.json" for name, one in runs.items() if (one / "result.json").exists()}
    begun = {name for name, one in runs.items() if any(one.glob("checkpoints/round-*"))}
    assert begun or "no checkpoint" in found[1]
    assert workers > 1 or whole.keys() | begun == runs.keys()
    assert not list(kept.rglob("failed.json")) and not (kept / "compare.json").exists()
    before = {name: file.stat().st_mtime_ns for name, file in whole.items()}
    ended = bespoke(*common, "--out", kept, "--quiet")
    assert ended.returncode == 0 and ("resuming after round" in ended.stderr or not begun - whole.keys()), ended.stderr
    assert came_out(kept) == came_out(compared)
    assert before == {name: file.stat().st_mtime_ns for name, file in whole.items()}


def test_full_at_the_end_of_a_comparison(data: Path, compared: Path, small: Small) -> None:
    """There is space for all runs, but not for the report."""
    common = ("compare", "ditto", "--no-tune", "--seeds", "0", "--data", data, *SHARED, "--checkpoint-every", 0)
    size = taken(compared) - taken(compared / "report.html") // 2
    told = small.run(size, *common, "--out", small.disk / "compare", "--quiet")  # no hint about seeds
    assert told == (
        f"error: cannot write to '{small.disk}/compare/report.html': No space left on device; everything else is "
        f"written; make room, then: bespoke report {small.disk}/compare."
    )
    kept = small.kept / "compare"
    assert came_out(kept) == came_out(compared)
    assert bespoke("report", kept).returncode == 0 and (kept / "report.html").exists()


@pytest.mark.parametrize("quiet", [(), ("--quiet",)], ids=["table", "line"])
def test_output_to_a_full_disk(quiet: tuple[str, ...], data: Path, whole: dict[str, Any], tmp_path: Path) -> None:
    out = tmp_path / "run"
    ended = bespoke("run", "ditto", "--data", data, *SHARED, "--out", out, *quiet, stdout=FULL)
    assert (ended.returncode, ended.stderr) == (
        2,
        f"error: cannot write the output: No space left on device; the results are in '{out}'; make room.\n",
    )
    assert_same(contents(out), whole)


def test_messages_to_a_full_disk(data: Path, whole: dict[str, Any], tmp_path: Path) -> None:
    """Messages are lost, but the run continues."""
    out = tmp_path / "run"
    words = ("run", "ditto", "--data", data, *SHARED, "--out", out, "--quiet", "--verbose")
    assert "note: chunk" in bespoke(*words).stderr
    ended = bespoke(*words, "--overwrite", stderr=FULL)
    assert (ended.returncode, ended.stdout) == (0, f"{out}\n")
    assert bespoke(*words, stderr=FULL, stdout=FULL).returncode == 2  # there is a run already
    assert_same(contents(out), whole)
    assert json.loads((out / "result.json").read_text())["rounds_done"] == ROUNDS
