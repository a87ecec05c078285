"""Workers answer what they are asked, their errors arrive as sentences, and they leave nothing behind."""

import json
import os
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from bespokefl.core.errors import InputError, TrainingError
from bespokefl.engines.transports import wire
from bespokefl.engines.transports.processes import Pool, Values
from tests.processes import is_alive, wait_for

ROOT = Path(__file__).parents[3]
Job = Callable[[], Values]


def answer(what: str, values: dict[str, Any]) -> dict[str, Any]:
    x = values["x"]
    if what == "wait":
        time.sleep(float(x))
    if what == "die" and float(x) == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    if what == "refuse":
        raise InputError("alpha must be > 0.")
    if what == "diverge":
        raise TrainingError("the weights became non-finite.")
    if what == "crash":
        raise KeyError("missing")
    if what == "object":
        return {"x": object()}
    return {"x": x * 2, "process": os.getpid()}


def jobs(*numbers: float) -> list[Job]:
    return [lambda number=number: {"x": torch.tensor(number)} for number in numbers]


def names(count: int) -> list[str]:
    return [f"clients c{at}" for at in range(count)]


@pytest.fixture
def pool():  # type: ignore[no-untyped-def]
    made = Pool(answer, 2)
    yield made
    made.close()


def pids(pool: Pool) -> list[int]:
    return [worker.process.pid for worker in pool._workers]


def test_answers_find_their_jobs(pool: Pool) -> None:
    found = dict(pool.map("double", jobs(*range(7)), names(7)))
    assert {at: values["x"].item() for at, values in found.items()} == {at: 2 * at for at in range(7)}
    assert {values["process"] for values in found.values()} <= set(pids(pool))
    assert os.getpid() not in {values["process"] for values in found.values()}


def test_the_slow_do_not_hold_up_the_quick(tmp_path: Path) -> None:
    """The first job ends after the answers to all others have been read."""
    mark = tmp_path / "others have ended"

    def first_is_slow(what: str, values: dict[str, Any]) -> dict[str, Any]:
        return values if float(values["x"]) else {"x": wait_for(mark.exists)}

    pool, order = Pool(first_is_slow, 2), []
    for at, _ in pool.map("wait", jobs(0, 1, 2, 3), names(4)):
        order.append(at)
        if len(order) == 3:
            mark.touch()
    pool.close()
    assert order == [1, 2, 3, 0]


def test_a_pool_can_be_used_again(pool: Pool) -> None:
    for _ in range(3):
        assert len(list(pool.map("double", jobs(1, 2, 3), names(3)))) == 3


def test_in_this_process() -> None:
    here = Pool(answer, 1)
    found = list(here.map("double", jobs(3, 4), names(2)))
    assert [(at, values["x"].item(), values["process"]) for at, values in found] == [
        (0, 6, os.getpid()),
        (1, 8, os.getpid()),
    ]
    here.close()


@pytest.mark.parametrize(
    ("what", "error", "sentence"),
    [
        ("refuse", InputError, r"^alpha must be > 0\.$"),
        ("diverge", TrainingError, r"^the weights became non-finite\.$"),
        ("crash", RuntimeError, r"a worker failed on clients c0:\n(.|\n)*KeyError: 'missing'"),
        ("object", RuntimeError, "only rows, tensors and numbers can be sent"),
    ],
)
def test_errors_arrive(pool: Pool, what: str, error: type[Exception], sentence: str) -> None:
    with pytest.raises(error, match=sentence):
        list(pool.map(what, jobs(1), names(1)))


def test_a_job_whose_workers_die_is_named(pool: Pool) -> None:
    with pytest.raises(
        TrainingError, match=r"died \(exit code -9\) while it worked on clients c2, for the second time"
    ):
        list(pool.map("die", jobs(0, 1, 2, 3), names(4)))


def test_a_job_whose_worker_died_is_done_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    mark, made = tmp_path / "died", []

    def dies_once(what: str, values: dict[str, Any]) -> dict[str, Any]:
        if float(values["x"]) == 2 and not mark.exists():
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return answer(what, values)

    def job(number: float) -> Values:
        made.append(number)
        return {"x": torch.tensor(number)}

    pool = Pool(dies_once, 2)
    found = dict(pool.map("double", [lambda n=n: job(n) for n in (0.0, 1.0, 2.0, 3.0)], names(4)))
    assert {at: float(values["x"]) for at, values in found.items()} == {0: 0, 1: 2, 2: 4, 3: 6}
    assert made == [0, 1, 2, 3]  # what is counted when a job is made is counted once
    assert "died (exit code -9) while it worked on clients c2; the job is repeated" in caplog.text
    assert len(pids(pool)) == 2
    pool.close()


def test_a_worker_killed_between_jobs_is_replaced(pool: Pool) -> None:
    list(pool.map("double", jobs(1, 2), names(2)))
    dead = pids(pool)[0]
    os.kill(dead, signal.SIGKILL)
    pool._workers[0].process.join()
    assert sorted(float(values["x"]) for _, values in pool.map("double", jobs(1, 2, 3), names(3))) == [2, 4, 6]
    assert dead not in pids(pool) and len(pids(pool)) == 2


def test_nobody_is_left_behind() -> None:
    pool = Pool(answer, 3)
    processes = pids(pool)
    assert all(is_alive(pid) for pid in processes)
    list(pool.map("double", jobs(1, 2, 3), names(3)))
    pool.close()
    assert not any(is_alive(pid) for pid in processes)


def test_the_busy_are_ended_too() -> None:
    pool = Pool(answer, 2)
    processes = pids(pool)
    answers = pool.map("wait", jobs(0.0, 600.0), names(2))
    next(answers)
    began = time.monotonic()
    pool.close()
    assert time.monotonic() - began < 60
    assert not any(is_alive(pid) for pid in processes)


def test_closing_early_is_quiet(capfd: pytest.CaptureFixture[str]) -> None:
    """A worker that finishes when nobody listens any more has nothing to say."""
    pool = Pool(answer, 2)
    answers = pool.map("wait", jobs(0.0, 0.1), names(2))
    next(answers)
    pool.close()
    assert capfd.readouterr().err == ""


def unread(pool: Pool) -> None:
    """Answers are there, and nobody has read them: the worker's next read finds its connection reset."""
    for worker in pool._workers:
        worker.pipe.send_bytes(json.dumps(["double", *wire.flatten({"x": 1})]).encode())
        assert worker.pipe.poll(60)


def unanswered(pool: Pool) -> None:
    """Workers that are busy find nobody who would take their answers."""
    for worker in pool._workers:
        worker.pipe.send_bytes(json.dumps(["wait", *wire.flatten({"x": 0.3})]).encode())


def half_asked(pool: Pool) -> None:
    for worker in pool._workers:
        os.write(worker.pipe.fileno(), struct.pack("!i", 100) + b"half")


@pytest.mark.parametrize("when", [pids, unread, unanswered, half_asked])
def test_workers_end_with_a_main_process_that_was_killed(
    when: Callable[[Pool], object], capfd: pytest.CaptureFixture[str]
) -> None:
    """Without a word."""
    reader, writer = os.pipe()
    main = os.fork()
    if main == 0:
        try:
            pool = Pool(answer, 2)
            when(pool)
            os.write(writer, " ".join(map(str, pids(pool))).encode())
            time.sleep(600)
        finally:
            os._exit(0)
    os.close(writer)
    processes = [int(pid) for pid in os.read(reader, 100).split()]
    os.close(reader)
    assert len(processes) == 2
    os.kill(main, signal.SIGKILL)
    os.waitpid(main, 0)
    wait_for(lambda: not any(is_alive(pid) for pid in processes))
    assert capfd.readouterr() == ("", "")


def test_a_pool_that_cannot_start_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    """And leaves no process behind."""
    started: list[int] = []
    fork = Pool._fork

    def fails(self: Pool) -> Any:
        if len(started) == 2:
            raise OSError(12, "Cannot allocate memory")
        worker = fork(self)
        started.append(worker.process.pid)
        return worker

    monkeypatch.setattr(Pool, "_fork", fails)
    with pytest.raises(
        TrainingError, match=r"^cannot start worker process 3 \(.*Cannot allocate memory\): .*--workers 1\.$"
    ):
        Pool(answer, 3)
    assert len(started) == 2 and not any(is_alive(pid) for pid in started)


@pytest.mark.parametrize("error", [MemoryError(), RuntimeError("Allocator: can't allocate memory: you tried")])
def test_a_worker_without_memory_is_one_sentence(error: Exception) -> None:
    def greedy(what: str, values: dict[str, Any]) -> dict[str, Any]:
        raise error

    pool = Pool(greedy, 2)
    with pytest.raises(TrainingError, match=r"^a worker process ran out of memory .*: use fewer --workers"):
        list(pool.map("x", jobs(1), names(1)))
    pool.close()


@pytest.mark.parametrize("spare", [300, 1500])
def test_workers_in_little_address_space(spare: int, tmp_path: Path) -> None:
    """The memory of workers follows need: a run with two of them ends, with a result or with a sentence."""
    script = (
        "import resource, torch\n"
        "from tests.engines.transports.test_processes import Pool, answer, jobs, names\n"
        "used = int(open('/proc/self/statm').read().split()[0]) * 4096\n"
        f"resource.setrlimit(resource.RLIMIT_AS, (used + {spare << 20}, resource.RLIM_INFINITY))\n"
        "pool = Pool(answer, 2)\n"
        "print(len(list(pool.map('double', jobs(*range(5)), names(5)))))\n"
        "pool.close()\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120, cwd=ROOT)
    assert done.stdout == "5\n", done.stderr


def test_signals_for_the_main_process_end_no_worker(pool: Pool) -> None:
    """A closed terminal and Ctrl-C come to all processes of a group."""
    before = pids(pool)
    list(pool.map("double", jobs(1, 2), names(2)))  # they are ready
    for pid in before:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            os.kill(pid, number)
    time.sleep(0.1)
    assert len(list(pool.map("double", jobs(1, 2, 3), names(3)))) == 3
    assert pids(pool) == before
