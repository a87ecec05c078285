"""Run independent jobs side by side, each in its own process, and report their common progress.

A job runs in a fork of the main process. It leaves its results on disk and returns a value that fits into JSON. Ctrl-C
is forwarded to the running jobs, which finish as a single run does; a second Ctrl-C kills them. A job whose process
dies is run a second time.
"""

import json
import logging
import multiprocessing
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from multiprocessing.connection import Connection, wait
from typing import Any, NoReturn

import torch

from bespokefl.core.errors import BespokeError, DiskError, InputError, TrainingError
from bespokefl.core.system.files import FULL, unwritten
from bespokefl.engines.interrupts import delay_interrupts
from bespokefl.engines.outcome import Progress
from bespokefl.engines.transports.cluster.connection import num_cores
from bespokefl.engines.transports.processes import cores

log = logging.getLogger("bespokefl")

MAX_PARAMETERS = 20_000_000  # of all clients' models together, for several trainings at once to fit into memory
SERVERS_PER_CORE = 8  # trainings on a cluster whose servers share a core of this machine: a server mostly waits
POLL_SECONDS = 0.1  # between two progress messages of a job, and between two checks for Ctrl-C


@dataclass(frozen=True)
class Step:
    """Progress of several trainings, reported by one of them."""

    text: str  # the training that reports
    number: int  # its number, counted by the trainings that have ended
    total: int  # number of trainings
    rounds: Progress | None  # of the training that reports; None when it has ended
    done: float = 0.0  # trainings done, including the finished part of those that are running


OnProgress = Callable[[Step], None]
JobOutcome = Any  # the value that a job returned, or the BespokeError that it raised


@dataclass(frozen=True)
class Job:
    """A function to call and the number of trainings it makes."""

    name: str
    work: Callable[[OnProgress], Any]
    size: int = 1


class Interrupted(Exception):  # noqa: N818 (it is not an error)
    """A job was interrupted, and so were all others; the outcomes of finished jobs were yielded before."""


def can_fork() -> bool:
    """Whether the operating system can fork processes."""
    return "fork" in multiprocessing.get_all_start_methods()


def num_processes(parameters: int, workers: int, device: str, cluster: str = "none") -> int:
    """Return how many trainings with this many parameters run at once: one per worker, or 1 if they do not fit.

    With a cluster, the clients of each training are on one of its workers, and the server is in a process here. A
    process that has used Ray itself must not fork others that do.
    """
    if parameters > MAX_PARAMETERS or device != "cpu" or not can_fork():
        return 1
    if cluster == "none":
        return workers or cores()
    if "ray" in sys.modules or workers == 1:
        return 1
    return workers or min(_cores_of(cluster), SERVERS_PER_CORE * cores())


def _cores_of(cluster: str) -> int:
    """The number of cores of a cluster, found by another process: this one forks, and must have no connection."""
    ((_, found),) = run_jobs([Job("cluster", lambda report: num_cores(cluster))], processes=2)
    if isinstance(found, BespokeError):
        raise found
    return int(found)


def report_rounds(report: OnProgress) -> Callable[[Progress], None]:
    """Turn a job's report into the `progress` argument of a single training."""
    return lambda now: report(Step("", 1, 1, now, now.done / now.total))


def run_jobs(jobs: Sequence[Job], processes: int, report: OnProgress | None = None) -> Iterator[tuple[Job, JobOutcome]]:
    """Yield every job with its outcome as it ends; with one process, run them here one after the other."""
    display = _Display(jobs, report)
    yield from _run_here(jobs, display) if processes < 2 or not can_fork() else _run_forked(jobs, processes, display)


class _Display:
    """Add up the progress of all jobs."""

    def __init__(self, jobs: Sequence[Job], report: OnProgress | None) -> None:
        self._report, self._total = report, sum(job.size for job in jobs)
        self._ended, self._running = 0, dict[str, float]()

    def update(self, job: Job, step: Step) -> None:
        self._running[job.name] = step.done / step.total * job.size
        self._show(" ".join(filter(None, (job.name, step.text))), step.rounds)

    def end(self, job: Job) -> None:
        self._running.pop(job.name, None)
        self._ended += job.size
        self._show(job.name, None)

    def _show(self, text: str, rounds: Progress | None) -> None:
        if self._report is not None:
            number, done = min(self._ended + 1, self._total), self._ended + sum(self._running.values())
            self._report(Step(text, number, self._total, rounds, done))


def _run_here(jobs: Sequence[Job], display: _Display) -> Iterator[tuple[Job, JobOutcome]]:
    for job in jobs:
        try:
            outcome = _call(job, lambda step, job=job: display.update(job, step))  # type: ignore[misc]
        except BespokeError as error:
            outcome = error
        except KeyboardInterrupt:
            raise Interrupted from None
        display.end(job)
        yield job, outcome


def _call(job: Job, report: OnProgress) -> Any:
    """Return the result of the work; raise a DiskError wherever the disk turns out to be full."""
    try:
        return job.work(report)
    except OSError as error:
        if error.errno in FULL:
            raise unwritten(error.filename or "a file", error) from error
        raise


@dataclass
class _Child:
    """A running job. Messages on its pipe are JSON lists: the kind, then values."""

    job: Job
    process: Any
    pipe: Connection

    def receive(self) -> list[Any]:
        try:
            message: list[Any] = json.loads(self.pipe.recv_bytes())
        except (EOFError, OSError):  # the process died, possibly in the middle of a message
            self.process.join()
            return ["died", f"exit code {self.process.exitcode}"]
        return message


def _run_forked(jobs: Sequence[Job], processes: int, display: _Display) -> Iterator[tuple[Job, JobOutcome]]:
    waiting, running = list(jobs)[::-1], dict[Any, _Child]()
    logged, died = set[str](), set[Job]()
    stopped = False
    try:
        with delay_interrupts("") as asked:
            while running or (waiting and not stopped):
                while waiting and len(running) < processes and not stopped:
                    child = _start(waiting.pop(), [one.pipe for one in running.values()])
                    running[child.pipe] = child
                if asked() and not stopped:
                    stopped = True
                    for child in running.values():
                        with suppress(ProcessLookupError):
                            os.kill(child.process.pid, signal.SIGINT)
                for pipe in wait(list(running), POLL_SECONDS):
                    child = running[pipe]
                    kind, *values = child.receive()
                    if kind == "progress":
                        rounds = values[0].pop("rounds")
                        display.update(child.job, Step(**values[0], rounds=rounds and Progress(**rounds)))
                        continue
                    if kind == "log":
                        if values[1] not in logged:  # the jobs of one command log the same messages
                            logged.add(values[1])
                            log.log(values[0], "%s", values[1])
                        continue
                    del running[pipe]
                    child.pipe.close()
                    child.process.join()
                    if kind == "interrupted" or (kind == "died" and stopped):
                        stopped = True
                    elif kind == "died" and child.job not in died:
                        died.add(child.job)
                        waiting.append(child.job)
                        name = child.job.name.removesuffix(":")
                        log.warning("%s: its process died (%s); it is run again", name, *values)
                    else:
                        outcome = _outcome(child.job, kind, values)
                        display.end(child.job)
                        yield child.job, outcome
            if stopped:
                raise Interrupted
    except KeyboardInterrupt:
        raise Interrupted from None
    finally:
        for child in running.values():
            child.process.kill()
            child.process.join()


def _outcome(job: Job, kind: str, values: Sequence[Any]) -> JobOutcome:
    if kind == "done":
        return values[0]
    if kind == "crash":
        raise RuntimeError(f"{job.name} failed:\n{values[0]}")
    if kind == "died":
        return TrainingError(
            f"its process died twice ({values[0]}); if the machine ran out of memory, use fewer --workers."
        )
    if kind == "DiskError":
        return DiskError(values[0], kept=values[1], cure=values[2])
    return InputError(values[0]) if kind == "InputError" else TrainingError(values[0])


def _start(job: Job, inherited: Sequence[Connection]) -> _Child:
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()
    process = context.Process(target=_main, args=(job, theirs, (ours, *inherited)), daemon=True)
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # until the job's own handler is installed
    process.start()
    signal.pthread_sigmask(signal.SIG_SETMASK, before)
    theirs.close()
    return _Child(job, process, ours)


def _main(job: Job, pipe: Connection, inherited: Sequence[Connection]) -> NoReturn:
    """Run a job as the main function of its process."""
    os.setpgrp()  # Ctrl-C in the terminal then reaches the job only through the main process
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for one in inherited:
        one.close()
    torch.set_num_threads(1)
    threading.Thread(target=_exit_with_parent, args=(os.getppid(),), daemon=True).start()
    last = 0.0

    def send(*values: Any) -> None:
        try:
            pipe.send_bytes(json.dumps(values).encode())
        except (BrokenPipeError, ConnectionResetError):  # the main process is gone
            os._exit(1)

    class PipeHandler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            send("log", record.levelno, record.getMessage())

    def report(step: Step) -> None:
        nonlocal last
        now = time.monotonic()
        if now - last >= POLL_SECONDS or (step.rounds is not None and step.rounds.scores):
            last = now
            send("progress", asdict(step))

    log.handlers, log.propagate = [PipeHandler()], False
    try:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
        send("done", _call(job, report))
    except DiskError as error:
        send("DiskError", error.fact, error.kept, error.cure)
    except BespokeError as error:
        send("InputError" if isinstance(error, InputError) else "TrainingError", str(error))
    except (Interrupted, KeyboardInterrupt):
        send("interrupted")
    except BaseException:
        send("crash", traceback.format_exc())
    os._exit(0)


def _exit_with_parent(parent: int) -> None:
    """End this process when the main process is killed."""
    while os.getppid() == parent:
        time.sleep(POLL_SECONDS)
    os._exit(1)
