"""Jobs in processes of their own: what comes back, what is told, and how they end."""

import errno
import logging
import os
import signal
import struct
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest

from bespokefl.core.errors import DiskError, InputError, TrainingError
from bespokefl.engines.outcome import Progress
from bespokefl.workflows.run import jobs
from bespokefl.workflows.run.jobs import Job, Step
from tests.processes import is_alive, wait_for

HALF = Progress(1, 2, "train", {"validation_loss": 2.0})


def job(name: str, value: Any, size: int = 1) -> Job:
    return Job(name, lambda report: value, size)


def failing(name: str, error: BaseException) -> Job:
    def work(report: jobs.OnProgress) -> None:
        raise error

    return Job(name, work)


@pytest.mark.parametrize("processes", [1, 2])
def test_every_outcome_comes_back(processes: int) -> None:
    made = [
        job("a", {"x": 1}),
        failing("b", TrainingError("diverged.")),
        failing("c", InputError("wrong.")),
        job("d", None),
        failing("e", DiskError("cannot write a checkpoint", kept="round 2 is there")),
        failing("f", OSError(errno.ENOSPC, "No space left on device", "table.csv")),
    ]
    found = {one.name: outcome for one, outcome in jobs.run_jobs(made, processes)}
    assert found["a"] == {"x": 1} and found["d"] is None
    assert isinstance(found["b"], TrainingError) and str(found["b"]) == "diverged."
    assert isinstance(found["c"], InputError) and str(found["c"]) == "wrong."
    assert isinstance(found["e"], DiskError)
    assert str(found["e"]) == "cannot write a checkpoint; round 2 is there; make room."
    assert isinstance(found["f"], DiskError)
    assert str(found["f"]) == "cannot write to 'table.csv': No space left on device; make room."


@pytest.mark.parametrize("processes", [1, 2])
def test_one_report_of_all(processes: int) -> None:
    def work(report: jobs.OnProgress) -> None:
        report(Step("half", 1, 1, HALF, 0.5))

    steps: list[Step] = []
    list(jobs.run_jobs([Job("a", work, 4), Job("b", work, 2)], processes, steps.append))
    assert all(step.total == 6 for step in steps)
    assert max(step.done for step in steps) == steps[-1].done == 6
    half = [step for step in steps if step.text == "a half"]
    assert half and half[0].rounds == HALF and half[0].done in (2.0, 2.0 + 1.0, 2.0 + 2.0)
    assert steps[-1].rounds is None


def test_jobs_run_at_the_same_time(tmp_path: Path) -> None:
    """Each waits for a file that the other one writes."""

    def meet(own: str, other: str) -> Callable[[jobs.OnProgress], bool]:
        def work(report: jobs.OnProgress) -> bool:
            (tmp_path / own).touch()
            return wait_for((tmp_path / other).exists)

        return work

    found = dict(jobs.run_jobs([Job("a", meet("a", "b")), Job("b", meet("b", "a"))], 2))
    assert list(found.values()) == [True, True]


def test_trainings_are_done_side_by_side_where_they_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    assert jobs.num_processes(jobs.MAX_PARAMETERS, 3, "cpu") == 3 and jobs.num_processes(1, 0, "cpu") == jobs.cores()
    assert jobs.num_processes(jobs.MAX_PARAMETERS + 1, 3, "cpu") == jobs.num_processes(1, 3, "cuda") == 1
    monkeypatch.setattr(jobs, "can_fork", lambda: False)
    assert jobs.num_processes(1, 3, "cpu") == 1


@pytest.mark.parametrize("deaths", [1, 2])
def test_a_job_whose_process_dies_is_done_once_more(
    deaths: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def die(report: jobs.OnProgress) -> str:
        begun = len(list(tmp_path.iterdir()))
        if begun < deaths:
            (tmp_path / str(begun)).touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return "done"

    with caplog.at_level(logging.WARNING, logger="bespokefl"):
        found = {one.name: outcome for one, outcome in jobs.run_jobs([Job("a:", die), job("b", 1)], 2)}
    assert found["b"] == 1
    told = [record.getMessage() for record in caplog.records]
    assert told == ["a: its process died (exit code -9); it is run again"]
    if deaths == 1:
        assert found["a:"] == "done"
    else:
        assert isinstance(found["a:"], TrainingError)
        assert str(found["a:"]).startswith("its process died twice (exit code -9); if the machine ran out of memory")


def test_a_process_that_dies_in_the_middle_of_what_it_tells_is_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, whole = os.getpid(), Connection.send_bytes

    def half(pipe: Connection, told: bytes) -> None:
        if os.getpid() != here and not any(tmp_path.iterdir()):
            (tmp_path / "died").touch()
            os.write(pipe.fileno(), struct.pack("!i", len(told)) + told[:3])
            os.kill(os.getpid(), signal.SIGKILL)
        whole(pipe, told)

    monkeypatch.setattr(Connection, "send_bytes", half)
    assert {one.name: outcome for one, outcome in jobs.run_jobs([job("a", "done")], 2)} == {"a": "done"}
    assert any(tmp_path.iterdir())


def test_what_to_do_about_a_disk_comes_back() -> None:
    made = failing("a", DiskError("cannot write", kept="round 2 is there", cure="make it writable"))
    ((_, found),) = jobs.run_jobs([made], 2)
    assert (found.fact, found.kept, found.cure) == ("cannot write", "round 2 is there", "make it writable")


def test_a_bug_is_not_hidden() -> None:
    with pytest.raises(RuntimeError, match=r"a failed:\n(.|\n)*ZeroDivisionError"):
        list(jobs.run_jobs([failing("a", ZeroDivisionError())], 2))
    with pytest.raises(ZeroDivisionError):
        list(jobs.run_jobs([failing("a", ZeroDivisionError())], 1))


def test_what_jobs_log_is_said_here_once(caplog: pytest.LogCaptureFixture) -> None:
    def work(report: jobs.OnProgress) -> None:
        logging.getLogger("bespokefl").warning("labels are %s", "odd")

    with caplog.at_level(logging.WARNING, logger="bespokefl"):
        list(jobs.run_jobs([Job("a", work), Job("b", work)], 2))
    assert [record.getMessage() for record in caplog.records] == ["labels are odd"]


@pytest.mark.parametrize("processes", [1, 2])
def test_a_job_that_was_stopped_stops_all(processes: int, tmp_path: Path) -> None:
    def stop(report: jobs.OnProgress) -> None:
        (tmp_path / "stopped").touch()
        raise jobs.Interrupted

    others = [Job(str(at), lambda report: wait_for((tmp_path / "stopped").exists)) for at in range(20)]
    seen = []
    with pytest.raises(jobs.Interrupted):
        for one, _ in jobs.run_jobs([job("a", 1), Job("b", stop), *others], processes):
            seen.append(one.name)
    assert len(seen) < 21


def test_ctrl_c_reaches_a_job_that_has_hardly_begun() -> None:
    """It comes right after the fork, when the handler is still that of the main process."""
    early = [True]
    os.register_at_fork(after_in_child=lambda: os.kill(os.getpid(), signal.SIGINT) if early else None)
    try:
        with pytest.raises(jobs.Interrupted):
            list(jobs.run_jobs([job("a", 1), job("b", 2)], 2))
    finally:
        early.clear()


def test_ctrl_c_is_passed_on_and_ended_jobs_are_handed_out(tmp_path: Path) -> None:
    """The first job ends by itself when it is asked to; what it returns is not lost. No third one is begun."""

    def work(report: jobs.OnProgress) -> str:
        asked = []
        signal.signal(signal.SIGINT, lambda number, frame: asked.append(number))
        (tmp_path / "ready").touch()
        while not asked:
            time.sleep(0.01)
        return "ended"

    def watch(report: jobs.OnProgress) -> None:
        wait_for((tmp_path / "ready").exists)
        os.kill(os.getppid(), signal.SIGINT)
        time.sleep(600)

    found = []
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(jobs.Interrupted):
        for one, outcome in jobs.run_jobs([Job("a", work), Job("b", watch), job("c", 1)], 2):
            found.append((one.name, outcome))
    assert found == [("a", "ended")]
    assert signal.getsignal(signal.SIGINT) is before


def test_leaving_early_ends_the_processes(tmp_path: Path) -> None:
    def work(report: jobs.OnProgress) -> None:
        (tmp_path / "pid").write_text(str(os.getpid()))
        time.sleep(600)

    going = jobs.run_jobs([job("a", 1), Job("b", work)], 2)
    next(going)
    pid = _read_pid(tmp_path / "pid")
    going.close()
    assert not is_alive(pid)


def test_a_killed_main_process_takes_its_jobs_with_it(tmp_path: Path) -> None:
    def work(report: jobs.OnProgress) -> None:
        (tmp_path / "pid").write_text(str(os.getpid()))
        time.sleep(600)

    main = os.fork()
    if not main:
        try:
            list(jobs.run_jobs([Job("a", work)], 2))
        finally:
            os._exit(0)
    job_pid = _read_pid(tmp_path / "pid")
    os.kill(main, signal.SIGKILL)
    os.waitpid(main, 0)
    wait_for(lambda: not is_alive(job_pid))


def _read_pid(file: Path) -> int:
    return int(wait_for(lambda: file.exists() and file.read_text()))
