"""A run that is killed at any moment and resumed is bit-equal to an uninterrupted run."""

import json
import os
import random
import select
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from bespokefl import methods
from bespokefl.core.errors import DiskError, InputError
from bespokefl.data import Clients
from bespokefl.engines.federation import Federation
from bespokefl.engines.storage import checkpoint_format, checkpoints, client_states, safetensors_writer
from bespokefl.engines.storage.checkpoints import CheckpointInterval
from bespokefl.engines.storage.client_states import ClientStates
from bespokefl.workflows.compare.api import compare_config
from bespokefl.workflows.compare.result import Comparison
from bespokefl.workflows.results import run_directory
from bespokefl.workflows.results.result import load_run
from bespokefl.workflows.run.api import resume, run, run_config
from bespokefl.workflows.run.settings import RunSettings
from tests.contract.conftest import quick
from tests.processes import LONGEST, is_alive, wait_for

ROUNDS = 6
METHODS = ["selffl", "pfedvem", "ucfl", "persfl", "ditto", "scaffold"]
KILLS = int(os.environ.get("BESPOKE_KILLS", "10"))  # per case, and of the comparison


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_data(tmp_path_factory.mktemp("data") / "own.npz")


def write_data(path: Path) -> Path:
    """Write data of five clients with four features and three classes."""
    rng = np.random.default_rng(0)
    client = np.repeat(np.arange(5), 24)
    x = rng.normal(size=(120, 4)) + client[:, None] * 0.3
    np.savez(path, x=x, y=(x @ rng.normal(size=(4, 3))).argmax(1), client=client)
    return path


def config(data: Path, method: str, out: Path, **options: Any) -> RunSettings:
    given = {"model": "mlp(hidden=(4,))", "rounds": ROUNDS, "participation": 0.6, "eval_every": 2, "workers": 1}
    given |= {"checkpoint_every": "1", "data": str(data), "out": str(out)}
    return RunSettings(method=method, **given | options)


def contents(path: Path) -> dict[str, Any]:
    """Return the content of a run directory, without timings."""
    found: dict[str, Any] = {}
    for file in sorted(path.iterdir()):
        assert file.is_file(), f"{file.name} was left"
        if file.name == "result.json":
            about = json.loads(file.read_text())
            about["timing"] = {key: value for key, value in about["timing"].items() if "seconds" not in key}
            found[file.name] = about
        elif file.name == "rounds.jsonl":
            lines = [json.loads(line) for line in file.read_text().splitlines()]
            found[file.name] = [{key: value for key, value in line.items() if key != "seconds"} for line in lines]
        else:
            found[file.name] = file.read_bytes()
    return found


def in_a_child(work: Callable[[], None]) -> int:
    """Call a function in a forked process and return its exit code, or minus the signal that ended it."""
    child = os.fork()
    if child == 0:
        try:
            torch.set_num_threads(1)
            work()
            os._exit(0)
        except BaseException:
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


# A process is killed before or after one of these calls.
INSTANTS: list[tuple[Any, str]] = [
    (Federation, "commit"),
    (ClientStates, "update"),
    (ClientStates, "snapshot"),
    (checkpoint_format, "write_tensors"),
    (checkpoints, "sync"),
    (Path, "rename"),
    (os, "fsync"),
    (checkpoints.shutil, "rmtree"),
    (run_directory, "write_text"),
    (run_directory, "_move"),
    (client_states, "_write"),
]


def killed_at(rng: random.Random, most: int = 2 * ROUNDS) -> Callable[[], None]:
    """Return a function that makes the process kill itself at a random call, at the latest at call number `most`."""
    where, name = rng.choice(INSTANTS)
    count, before = rng.randrange(1, most), rng.random() < 0.5
    whole: Callable[..., Any] = getattr(where, name)
    left = [count]

    def call(*args: Any, **kwargs: Any) -> Any:
        left[0] -= 1
        if left[0] == 0 and before:
            die()
        value = whole(*args, **kwargs)
        if left[0] == 0:
            die()
        return value

    def arrange() -> None:
        setattr(where, name, call)

    return arrange


def half_written(rng: random.Random) -> Callable[[], None]:
    """Return a function that makes the process kill itself while it writes a checkpoint's tensors."""
    count = rng.randrange(1, ROUNDS)

    def arrange() -> None:
        whole, left = safetensors_writer._pieces, [count]

        def pieces(*args: Any) -> Iterator[bytes]:
            left[0] -= 1
            for piece in whole(*args):
                yield piece[: len(piece) // 2]
                if left[0] <= 0:
                    die()
                yield piece[len(piece) // 2 :]

        safetensors_writer._pieces = pieces  # type: ignore[assignment]

    return arrange


def half_stored(rng: random.Random) -> Callable[[], None]:
    """Return a function that makes the process kill itself while it writes client states, with some rows still old."""
    count = rng.randrange(1, 2 * ROUNDS)

    def arrange() -> None:
        whole, left = torch.Tensor.index_copy_, [count]

        def copy(target: torch.Tensor, axis: int, index: torch.Tensor, new: torch.Tensor) -> torch.Tensor:
            if sys._getframe(1).f_code is not client_states._write.__code__:
                return whole(target, axis, index, new)
            left[0] -= 1
            if left[0] == 0:
                some = len(index) // 2
                whole(target, axis, index[:some], new[:some])
                die()
            return whole(target, axis, index, new)

        torch.Tensor.index_copy_ = copy  # type: ignore[method-assign]

    return arrange


@pytest.mark.slow
@pytest.mark.parametrize("state", ["memory", "files"])
@pytest.mark.parametrize("method", METHODS)
def test_killed_and_resumed(method: str, state: str, data: Path, tmp_path: Path) -> None:
    options: dict[str, Any] = {} if state == "memory" else {"state_dir": str(tmp_path / "states")}
    options["set"] = quick(methods.REGISTRY[method]).hyper()  # what is stored does not depend on how long it trained
    run_config(config(data, method, tmp_path / "whole", **options))  # here: forks then have all modules loaded
    expected = contents(tmp_path / "whole")
    rng = random.Random(f"{method}/{state}")
    number = kills = 0
    while kills < KILLS and number < 5 * KILLS:  # some runs end before the call is reached
        out = tmp_path / f"run-{number}"
        arrange = {2: half_stored, 4: half_written}.get(number % 5, killed_at)(rng)

        def begin(arrange: Callable[[], None] = arrange, out: Path = out) -> None:
            arrange()
            run_config(config(data, method, out, **options))

        code = in_a_child(begin)
        assert code in (0, -signal.SIGKILL), arrange
        assert code or number % 5 != 2 or method == "ucfl", "its clients' states are written in another way"
        kills += code != 0
        if code and run_directory.is_unfinished(out):
            assert in_a_child(lambda out=out: void(resume(out))) == 0
        elif code and not run_directory.is_run(out):  # no checkpoint yet
            assert in_a_child(lambda out=out: void(run_config(config(data, method, out, **options)))) == 0
        found = contents(out)
        assert found.keys() == expected.keys()
        for name, value in expected.items():
            if name not in ("config.toml",):
                assert found[name] == value, f"{name} after being killed in {arrange.__qualname__} {number}"
        number += 1
    assert kills == KILLS


def void(value: object) -> None:
    """Discard a value, for lambdas that must return None."""


def came_out(place: Path) -> Any:
    """Return compare.json without timings and the command, which contains the number of workers."""

    def timeless(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        return {key: value for key, value in pairs if key not in ("seconds", "command")}

    return json.loads((place / "compare.json").read_text(), object_pairs_hook=timeless)


@pytest.mark.slow
def test_a_comparison_is_killed_and_resumed(data: Path, tmp_path: Path) -> None:
    """Killed at a call in one process, or with several processes when there are some number of files."""

    def begin(number: int) -> Comparison:
        workers = 1 + number % 2
        return compare_config(
            config(data, "compare", tmp_path / f"{number}", workers=workers), ["ditto"], seeds=(0, 1), tune=False
        )

    begin(-2)  # in this process, so that forked processes have all modules loaded
    expected = came_out(tmp_path / "-2")
    assert in_a_child(lambda: void(begin(-1))) == 0
    assert came_out(tmp_path / "-1") == expected and len(expected["methods"]) == 3
    rng = random.Random("compare")
    unfinished = number = kills = 0
    while kills < KILLS and number < 5 * KILLS:
        killed = killed_in(begin, number, tmp_path / f"{number}", rng)
        unfinished += killed and not (tmp_path / f"{number}" / "compare.json").exists()
        assert in_a_child(lambda number=number: void(begin(number))) == 0, f"it cannot go on after kill {number}"
        assert came_out(tmp_path / f"{number}") == expected, f"after kill {number}"
        kills, number = kills + killed, number + 1
    assert kills == KILLS and unfinished >= KILLS / 2


def killed_in(begin: Callable[[int], object], number: int, out: Path, rng: random.Random) -> bool:
    """Start a process that calls `begin`, kill it, and return whether it was killed before its end."""
    if number % 2 == 0:
        arrange = killed_at(rng, 8 * ROUNDS)
        code = in_a_child(lambda: void((arrange(), begin(number))))
        assert code in (0, -signal.SIGKILL)
        return code != 0
    reader, writer = os.pipe()  # is open as long as one of its processes is alive
    child = os.fork()
    if child == 0:
        try:
            os.close(reader)
            begin(number)
        finally:
            os._exit(0)
    os.close(writer)
    files = rng.randrange(45)  # of 51
    wait_for(lambda: sum(len(there) for *_, there in os.walk(out)) >= files or not is_alive(child))
    time.sleep(rng.uniform(0, 0.05))
    os.kill(child, signal.SIGKILL)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    ended, _, _ = select.select([reader], [], [], LONGEST)  # its jobs notice that it is gone
    os.close(reader)
    assert ended
    return code != 0


def clients() -> Clients:
    rng = np.random.default_rng(1)
    x = rng.normal(size=(60, 3))
    return Clients.from_arrays(x, (x[:, 0] > 0).astype(int), np.arange(60) % 3)


SMALL: dict[str, Any] = {"model": "logistic", "rounds": 5, "workers": 1, "eval_every": 0}


def stop_after(rounds: int) -> Callable[[Any], None]:
    return lambda now: os.kill(os.getpid(), signal.SIGTERM) if now.done == rounds else None


def test_sigterm_leaves_a_checkpoint_that_python_resumes(tmp_path: Path) -> None:
    whole = run("ditto", clients(), **SMALL)
    first = run("ditto", clients(), checkpoint=tmp_path / "c", checkpoint_every=0, progress=stop_after(2), **SMALL)
    assert first.interrupted and first.about["rounds_done"] == 3
    second = run("ditto", clients(), checkpoint=tmp_path / "c", **SMALL)
    assert not second.interrupted
    assert [row["round"] for row in second.rounds] == [1, 2, 3, 4, 5]
    assert torch.equal(second.weights.personal.matrix(), whole.weights.personal.matrix())
    assert not list((second.save(tmp_path / "c")).glob("checkpoints*"))


def test_an_interrupted_run_is_a_result_and_can_be_resumed(tmp_path: Path) -> None:
    out = tmp_path / "run"
    first = run("ditto", clients(), checkpoint=out, checkpoint_every=0, progress=stop_after(1), **SMALL)
    first.save(out)
    assert run_directory.is_run(out) and run_directory.is_unfinished(out)
    with pytest.raises(InputError, match="holds an unfinished run: bespoke resume"):
        run_directory.check(out, overwrite=False)


def damage(path: Path, how: str) -> None:
    file = path / ("record.json" if how == "record" else "state.safetensors")
    content = bytearray(file.read_bytes())
    if how == "cut":
        del content[len(content) // 2 :]
    elif how == "gone":
        file.unlink()
        return
    else:
        content[len(content) * 2 // 3] ^= 1
    file.write_bytes(bytes(content))


@pytest.mark.parametrize("how", ["cut", "altered", "record", "gone"])
def test_a_damaged_checkpoint_is_reported_and_the_older_one_used(
    how: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    whole = run("ditto", clients(), **SMALL)
    run("ditto", clients(), checkpoint=tmp_path, checkpoint_every=1, progress=stop_after(3), **SMALL)
    kept = sorted((tmp_path / "checkpoints").iterdir())
    assert [one.name for one in kept] == ["round-00000003", "round-00000004"]
    damage(kept[-1], how)
    again = run("ditto", clients(), checkpoint=tmp_path, **SMALL)
    assert "round-00000004 is damaged" in caplog.text and "resuming after round 3" in caplog.text
    assert torch.equal(again.weights.personal.matrix(), whole.weights.personal.matrix())


def test_no_run_starts_if_all_checkpoints_are_damaged(tmp_path: Path) -> None:
    run("ditto", clients(), checkpoint=tmp_path, checkpoint_every=1, progress=stop_after(3), **SMALL)
    kept = list((tmp_path / "checkpoints").iterdir())
    for one in kept:
        damage(one, "cut")
    whole = run("ditto", clients(), **SMALL)
    with pytest.raises(InputError, match=r"no checkpoint in .* is intact; delete that directory to start again"):
        run("ditto", clients(), checkpoint=tmp_path, **SMALL)
    assert sorted((tmp_path / "checkpoints").iterdir()) == sorted(kept)
    shutil.rmtree(tmp_path / "checkpoints")
    again = run("ditto", clients(), checkpoint=tmp_path, **SMALL)
    assert torch.equal(again.weights.personal.matrix(), whole.weights.personal.matrix())


def test_a_damaged_checkpoint_does_not_displace_newer_ones(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The damaged checkpoint has a higher round number than the new one, which must not be deleted as the older."""
    run("ditto", clients(), checkpoint=tmp_path, checkpoint_every=2, progress=stop_after(2), **SMALL)
    kept = sorted((tmp_path / "checkpoints").iterdir())
    assert [one.name for one in kept] == ["round-00000002", "round-00000003"]
    later = kept[1].rename(kept[1].with_name("round-00000009"))
    damage(later, "cut")
    run("ditto", clients(), checkpoint=tmp_path, checkpoint_every=0, progress=stop_after(3), **SMALL)
    assert "round-00000009 is damaged" in caplog.text and "resuming after round 2" in caplog.text
    assert [one.name for one in sorted((tmp_path / "checkpoints").iterdir())] == ["round-00000002", "round-00000004"]


def test_an_overwritten_run_stays_until_the_first_new_checkpoint(data: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    first = config(data, "ditto", out, checkpoint_every="0")
    assert run_config(first, stop_after(1)).interrupted
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    with pytest.raises(InputError, match="no file"):
        run_config(replace(first, data=str(tmp_path / "none.npz"), overwrite=True))
    assert {path: path.read_bytes() for path in out.rglob("*") if path.is_file()} == before
    seen: list[set[str]] = []

    def look(now: Any) -> None:
        seen.append({one.name for one in out.iterdir()})
        if now.done == 3:
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        run_config(replace(first, seed=7, overwrite=True, checkpoint_every="2"), look)
    assert "result.json" in seen[0]  # and after the first checkpoint, no mixture of both runs
    assert {one.name for one in out.iterdir()} == {"checkpoints", "config.toml", "split.json"}
    assert resume(out).config.seed == 7


def test_a_signal_waits_until_results_are_written(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    write = run_directory.write

    def signalled(*args: Any) -> None:
        os.kill(os.getpid(), signal.SIGHUP)
        write(*args)

    monkeypatch.setattr(run_directory, "write", signalled)
    result = run_config(config(data, "ditto", tmp_path / "run", checkpoint_every="0"))
    assert (
        not result.interrupted and run_directory.is_run(tmp_path / "run") and "results are being written" in caplog.text
    )
    assert signal.getsignal(signal.SIGHUP) is signal.SIG_DFL


def test_two_runs_use_different_directories(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(run_directory, "LOCK_TIMEOUT", 0.0)
    given = replace(config(data, "ditto", tmp_path), out=None)
    met: list[str] = []

    def second(now: Any) -> None:
        if now.done == 2:
            met.append(str(run_config(replace(given, seed=5)).path))
            with pytest.raises(InputError, match="another process uses"):
                resume(Path("runs/ditto"))

    first = run_config(given, second)
    assert str(first.path) == "runs/ditto" and met == ["runs/ditto-2"]
    assert [load_run(f"runs/{name}").config.seed for name in ("ditto", "ditto-2")] == [0, 5]


def test_a_checkpoint_of_another_run_is_rejected(tmp_path: Path) -> None:
    run("ditto", clients(), checkpoint=tmp_path, checkpoint_every=1, progress=stop_after(3), **SMALL)
    with pytest.raises(
        InputError, match=r"is of another run: its prox_weight was 1.0, not 0.5; use another directory\.$"
    ):
        run(methods.Ditto(prox_weight=0.5), clients(), checkpoint=tmp_path, **SMALL)
    with pytest.raises(InputError, match="its seed was 0, not 1"):
        run("ditto", clients(), checkpoint=tmp_path, seed=1, **SMALL)


def test_a_full_disk_keeps_the_last_good_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole, real = run("ditto", clients(), **SMALL), checkpoint_format.write_tensors
    written = []

    def full(path: Path, entries: Any) -> str:
        if len(written) == 2:
            path.write_bytes(b"half")
            raise OSError(28, "No space left on device")
        written.append(path)
        return real(path, entries)

    monkeypatch.setattr(checkpoint_format, "write_tensors", full)
    with pytest.raises(DiskError, match=r"No space left on device; the last good checkpoint is of round 2"):
        run("ditto", clients(), checkpoint=tmp_path, checkpoint_every=1, **SMALL)
    assert [one.name for one in sorted((tmp_path / "checkpoints").iterdir())] == ["round-00000001", "round-00000002"]
    monkeypatch.undo()
    again = run("ditto", clients(), checkpoint=tmp_path, **SMALL)
    assert torch.equal(again.weights.personal.matrix(), whole.weights.personal.matrix())


@pytest.mark.parametrize(
    ("text", "every"),
    [
        ("10", CheckpointInterval(rounds=10)),
        (3, CheckpointInterval(rounds=3)),
        ("60s", CheckpointInterval(seconds=60.0)),
        ("0", CheckpointInterval()),
    ],
)
def test_checkpoint_intervals_are_parsed(text: str | int, every: CheckpointInterval) -> None:
    assert CheckpointInterval.of(text) == every


def test_an_invalid_checkpoint_interval_is_rejected() -> None:
    with pytest.raises(
        InputError, match="checkpoint_every must be a number of rounds, or of seconds as in 60s, got 'x'"
    ):
        CheckpointInterval.of("x")
