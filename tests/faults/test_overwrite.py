"""A run that --overwrite replaces stays intact until a new checkpoint or new results are complete."""

import os
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bespokefl.core.errors import InputError
from bespokefl.engines.storage import checkpoint_format, checkpoints, safetensors_writer
from bespokefl.workflows.results import run_directory
from bespokefl.workflows.run.api import resume, run_config
from bespokefl.workflows.run.settings import RunSettings
from tests.disks import PAGE, small_disk, taken
from tests.faults.test_full_disk import CHECKPOINT, FILES, SHARED, Small, sentence, started_by
from tests.faults.test_resume import config, contents, die, in_a_child, void, write_data

KINDS = ["finished", "unfinished"]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_data(tmp_path_factory.mktemp("data") / "own.npz")


def older(kind: str, data: Path, out: Path) -> RunSettings:
    """Create a run of seed 0 and return the config of a run of seed 7 that replaces it."""
    first = config(data, "ditto", out)

    def end(now: Any) -> None:
        if now.done == 3 and kind == "unfinished":
            raise ZeroDivisionError

    try:
        run_config(first, end)
    except ZeroDivisionError:
        assert run_directory.is_unfinished(out) and not run_directory.is_run(out)
    return replace(first, seed=7, overwrite=True)


def everything(path: Path) -> dict[str, bytes]:
    return {str(one.relative_to(path)): one.read_bytes() for one in path.rglob("*") if one.is_file()}


def kill_at(where: Any, name: str, *, after: bool = False, call: int = 1) -> Callable[[], None]:
    """Return a function that makes the process kill itself at this call of that function."""

    def arrange() -> None:
        whole, left = getattr(where, name), [call]

        def called(*args: Any, **kwargs: Any) -> Any:
            left[0] -= 1
            if left[0] == 0 and not after:
                die()
            value = whole(*args, **kwargs)
            if left[0] == 0:
                die()
            return value

        setattr(where, name, called)

    return arrange


def kill_in_tensors() -> None:
    whole = safetensors_writer._pieces

    def pieces(*args: Any) -> Any:
        for piece in whole(*args):
            yield piece[: len(piece) // 2]
            die()

    safetensors_writer._pieces = pieces  # type: ignore[assignment]


BEFORE = {
    "first file": kill_at(run_directory, "write_text"),
    "tensors": kill_at(checkpoint_format, "write_tensors"),
    "in tensors": kill_in_tensors,
    "checkpoint": kill_at(Path, "rename"),
    "checkpoint there": kill_at(Path, "rename", after=True),
    "exchange": kill_at(run_directory, "_move"),
}


@pytest.mark.parametrize("instant", BEFORE)
@pytest.mark.parametrize("kind", KINDS)
def test_killed_before_the_exchange(kind: str, instant: str, data: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    second = older(kind, data, out)
    before = everything(out)

    def begin() -> None:
        BEFORE[instant]()
        run_config(second)

    assert in_a_child(begin) == -signal.SIGKILL
    assert everything(out) == before
    if kind == "unfinished":
        resume(out)
        run_config(replace(second, seed=0, out=str(tmp_path / "whole")))
        assert contents(out).keys() == contents(tmp_path / "whole").keys()
        assert everything(out)["personal.safetensors"] == everything(tmp_path / "whole")["personal.safetensors"]
    else:
        assert run_config(second).config.seed == 7
    assert [one.name for one in tmp_path.iterdir() if one.name.startswith(".")] == []


AFTER = {
    "exchange": kill_at(run_directory, "_move", after=True),
    "removal": kill_at(checkpoints.shutil, "rmtree", call=2),
}


@pytest.mark.parametrize("instant", AFTER)
@pytest.mark.parametrize("kind", KINDS)
def test_killed_after_the_exchange(kind: str, instant: str, data: Path, tmp_path: Path) -> None:
    """The second `rmtree` removes the old run; the first prepares the checkpoint directory."""
    out = tmp_path / "run"
    second = older(kind, data, out)

    def begin() -> None:
        AFTER[instant]()
        run_config(second)

    assert in_a_child(begin) == -signal.SIGKILL
    assert sorted(one.name for one in out.iterdir()) == ["checkpoints", "config.toml", "split.json"]
    assert sorted(one.name for one in (out / "checkpoints").iterdir()) == ["round-00000001"]
    assert resume(out).config.seed == 7
    run_config(replace(second, out=str(tmp_path / "whole")))
    assert everything(out)["personal.safetensors"] == everything(tmp_path / "whole")["personal.safetensors"]
    assert [one.name for one in tmp_path.iterdir() if one.name.startswith(".")] == []


@pytest.mark.parametrize("kind", KINDS)
def test_the_exchange_is_one_step(kind: str, data: Path, tmp_path: Path) -> None:
    """It calls no `rename`: the first call is for the first checkpoint, the second for the second."""
    out = tmp_path / "run"
    second = older(kind, data, out)
    assert in_a_child(lambda: void((kill_at(Path, "rename", call=2)(), run_config(second)))) == -signal.SIGKILL
    assert not (out / "result.json").exists() and (out / "checkpoints" / "round-00000001" / "record.json").exists()
    assert resume(out).config.seed == 7


@pytest.mark.parametrize("kind", KINDS)
def test_killed_during_an_exchange_in_two_steps(kind: str, data: Path, tmp_path: Path) -> None:
    """On a file system without atomic exchange, an old run that was moved aside is restored."""
    out = tmp_path / "run"
    second = older(kind, data, out)
    before = everything(out)

    def begin() -> None:
        run_directory.RENAME_EXCHANGE = 1 << 30
        kill_at(Path, "rename", after=True, call=2)()
        run_config(second)

    assert in_a_child(begin) == -signal.SIGKILL
    assert not out.exists()
    if kind == "unfinished":
        assert resume(out).config.seed == 0
    else:
        with pytest.raises(InputError, match="already holds a run; use --overwrite to replace it"):
            run_config(replace(second, overwrite=False))
        assert everything(out) == before
    assert [one.name for one in tmp_path.iterdir()] == ["run"]


@pytest.mark.parametrize("every", ["0", "5"])
@pytest.mark.parametrize("kind", KINDS)
def test_aborted_before_a_checkpoint(kind: str, every: str, data: Path, tmp_path: Path) -> None:
    """As by pressing Ctrl-C twice."""
    out = tmp_path / "run"
    second = older(kind, data, out)
    before = everything(out)

    def end(now: Any) -> None:
        if now.done == 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_config(replace(second, checkpoint_every=every), end)
    assert everything(tmp_path) == {f"run/{name}": content for name, content in before.items()}


@pytest.mark.parametrize("kind", KINDS)
def test_stopped_by_sigterm_the_new_run_is_kept(kind: str, data: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    second = older(kind, data, out)

    def stop(now: Any) -> None:
        if now.done == 2:
            os.kill(os.getpid(), signal.SIGTERM)

    stopped = run_config(replace(second, checkpoint_every="0"), stop)
    assert stopped.interrupted and stopped.about["rounds_done"] == 3
    assert run_directory.is_unfinished(out) and resume(out).config.seed == 7
    assert [one.name for one in tmp_path.iterdir()] == ["run"]


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("room", "every"),
    [(PAGE, 1), (3 * PAGE, 1), (FILES + CHECKPOINT // 2, 1), (FILES + CHECKPOINT // 2, 0)],
    ids=["config", "record", "state", "results"],
)
def test_a_full_disk(room: int, every: int, kind: str, data: Path, tmp_path: Path) -> None:
    """Next to the old run there is less space than a checkpoint needs, or the results if there are no checkpoints."""
    old, small = tmp_path / "old", Small(tmp_path)
    older(kind, data, old)
    run = small.disk / "run"
    copied = ("sh", "-c", f'cp -a {old} {run} && exec "$@"', "sh")
    new = ("run", "ditto", "--data", data, *SHARED, "--checkpoint-every", every, "--out", run, "--overwrite")
    told = sentence(started_by((*small_disk(small.disk, taken(old) + room, small.kept), *copied), *new))
    what = f"a checkpoint to '{run}/checkpoints'" if every else f"to '{run}'"
    assert told == (
        f"error: cannot write {what}: No space left on device; there is no checkpoint yet, and the previous run in "
        f"'{run}' is unchanged; make room, then: start it again."
    )
    assert everything(small.kept) == {f"run/{name}": content for name, content in everything(old).items()}


def test_nothing_to_replace(data: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    first = config(data, "ditto", out, overwrite=True)
    assert in_a_child(lambda: void((kill_at(run_directory, "_move")(), run_config(first)))) == -signal.SIGKILL
    assert not out.exists()
    run_config(first)
    assert run_directory.is_run(out) and [one.name for one in tmp_path.iterdir()] == ["run"]
