"""Runs independent jobs in parallel, each in its own process, with one progress report for all of them.

A job's process is a fork of the main process. A job leaves its results on disk; it sends back progress, log messages
and a return value that JSON can hold. Ctrl-C is passed on to the running jobs, which stop as they do when run alone; a
second Ctrl-C kills them. A job whose process dies is run once more.
"""

import json
import logging
import multiprocessing
import os
import signal
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection, wait
from typing import Any, NoReturn

import torch

from bespokefl.core.errors import BespokeError, DiskError, InputError, TrainingError
from bespokefl.core.files import FULL, unwritten
from bespokefl.engines.interrupts import stop_softly
from bespokefl.engines.transports.processes import cores

log = logging.getLogger("bespokefl")

MAX_PARAMETERS = 20_000_000  # of all clients together, for which several trainings at once fit into memory
INTERVAL = 0.1  # seconds between two progress messages of a job, and between two checks for Ctrl-C

JobReport = Callable[[float, str, Mapping[str, float]], None]  # the fraction done, a description, scores


@dataclass(frozen=True)
class Job:
    """A function to call, and the number of trainings that it consists of."""

    name: str
    work: Callable[[JobReport], Any]
    size: int = 1


@dataclass(frozen=True)
class Step:
    """The progress of all jobs."""

    done: float
    total: int
    text: str
    scores: Mapping[str, float]


Report = Callable[[Step], None]
Outcome = Any  # the return value of the work, or the BespokeError that it raised


class Interrupted(Exception):  # noqa: N818 (not an error)
    """A job was interrupted, so all jobs are stopped; the outcomes of finished jobs were yielded before."""


def can_fork() -> bool:
    return "fork" in multiprocessing.get_all_start_methods()


def at_once(parameters: int, workers: int, device: str) -> int:
    """Return how many trainings to run in parallel: one per worker, or 1 if a training needs the whole machine."""
    large = parameters > MAX_PARAMETERS or device != "cpu" or not can_fork()
    return 1 if large else workers or cores()


def do(jobs: Sequence[Job], processes: int, report: Report | None = None) -> Iterator[tuple[Job, Outcome]]:
    """Yield each job with its outcome as it finishes; with one process, run them here, one after the other."""
    display = _Display(jobs, report)
    if processes < 2 or not can_fork():
        yield from _run_here(jobs, display)
    else:
        yield from _run_in_processes(jobs, processes, display)


class _Display:
    """Adds up the progress of all jobs."""

    def __init__(self, jobs: Sequence[Job], report: Report | None) -> None:
        self._report, self._total = report, sum(job.size for job in jobs)
        self._ended, self._open = 0, dict[str, float]()

    def update(self, job: Job, share: float, text: str, scores: Mapping[str, float]) -> None:
        self._open[job.name] = share * job.size
        self._show(f"{job.name} {text}".strip(), scores)

    def end(self, job: Job) -> None:
        self._open.pop(job.name, None)
        self._ended += job.size
        self._show(f"{job.name} done", {})

    def _show(self, text: str, scores: Mapping[str, float]) -> None:
        if self._report is not None:
            self._report(Step(self._ended + sum(self._open.values()), self._total, text, scores))


def _run_here(jobs: Sequence[Job], display: _Display) -> Iterator[tuple[Job, Outcome]]:
    for job in jobs:
        try:
            outcome = _call(job, partial(display.update, job))
        except BespokeError as error:
            outcome = error
        except KeyboardInterrupt:
            raise Interrupted from None
        display.end(job)
        yield job, outcome


def _call(job: Job, report: JobReport) -> Any:
    """Do the work of a job; a full disk becomes a DiskError."""
    try:
        return job.work(report)
    except OSError as error:
        if error.errno in FULL:
            raise unwritten(error.filename or "a file", error) from error
        raise


@dataclass
class _Child:
    job: Job
    process: Any
    pipe: Connection


def _run_in_processes(jobs: Sequence[Job], processes: int, display: _Display) -> Iterator[tuple[Job, Outcome]]:
    waiting, running = list(jobs)[::-1], dict[Any, _Child]()
    logged, died = set[str](), set[Job]()
    stopped = False
    try:
        with stop_softly("") as interrupted:
            while running or (waiting and not stopped):
                while waiting and len(running) < processes and not stopped:
                    child = _start(waiting.pop(), [one.pipe for one in running.values()])
                    running[child.pipe] = child
                if interrupted() and not stopped:
                    stopped = True
                    for child in running.values():
                        with suppress(ProcessLookupError):
                            os.kill(child.process.pid, signal.SIGINT)
                for pipe in wait(list(running), INTERVAL):
                    child = running[pipe]
                    kind, *content = _receive(child)
                    if kind == "progress":
                        display.update(child.job, *content)
                        continue
                    if kind == "log":
                        if content[1] not in logged:  # similar jobs log the same messages
                            logged.add(content[1])
                            log.log(content[0], "%s", content[1])
                        continue
                    del running[pipe]
                    child.pipe.close()
                    child.process.join()
                    stopped = stopped or kind == "interrupted"
                    if kind == "interrupted" or (kind == "died" and stopped):
                        continue
                    if kind == "died" and child.job not in died:
                        died.add(child.job)
                        waiting.append(child.job)
                        name = child.job.name.removesuffix(":")
                        log.warning("%s: its process died (%s); this is done again", name, *content)
                        continue
                    display.end(child.job)
                    yield child.job, _outcome(child.job, kind, content)
            if stopped:
                raise Interrupted
    except KeyboardInterrupt:
        raise Interrupted from None
    finally:
        for child in running.values():
            child.process.kill()
            child.process.join()


def _outcome(job: Job, kind: str, content: Sequence[Any]) -> Outcome:
    if kind == "crash":
        raise RuntimeError(f"{job.name} failed:\n{content[0]}")
    if kind == "died":
        return TrainingError(
            f"its process died twice ({content[0]}); if the machine ran out of memory, use fewer --workers."
        )
    if kind == "DiskError":
        return DiskError(content[0], kept=content[1], cure=content[2])
    if kind == "done":
        return content[0]
    return InputError(content[0]) if kind == "InputError" else TrainingError(content[0])


def _receive(child: _Child) -> list[Any]:
    """The next message of a child: its kind and its content."""
    try:
        found: list[Any] = json.loads(child.pipe.recv_bytes())
    except (EOFError, OSError):  # the child may die while it sends
        child.process.join()
        return ["died", f"exit code {child.process.exitcode}"]
    return found


def _start(job: Job, inherited: Sequence[Connection]) -> _Child:
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()
    process = context.Process(target=_run_child, args=(job, theirs, (ours, *inherited)), daemon=True)
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # until the child has its own handler
    process.start()
    signal.pthread_sigmask(signal.SIG_SETMASK, before)
    theirs.close()
    return _Child(job, process, ours)


def _run_child(job: Job, pipe: Connection, inherited: Sequence[Connection]) -> NoReturn:
    """The main function of a job's process."""
    os.setpgrp()  # so that Ctrl-C in the terminal reaches it once, from the main process
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for one in inherited:
        one.close()
    torch.set_num_threads(1)
    threading.Thread(target=_exit_with_parent, args=(os.getppid(),), daemon=True).start()
    _log_to(pipe)
    last = 0.0

    def send(*values: Any) -> None:
        try:
            pipe.send_bytes(json.dumps(values).encode())
        except (BrokenPipeError, ConnectionResetError):  # the main process is gone
            os._exit(1)

    def report(share: float, text: str, scores: Mapping[str, float]) -> None:
        nonlocal last
        now = time.monotonic()
        if now - last >= INTERVAL:
            last = now
            send("progress", share, text, dict(scores))

    try:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
        send("done", _call(job, report))
    except InputError as error:
        send("InputError", str(error))
    except DiskError as error:
        send("DiskError", error.fact, error.kept, error.cure)
    except BespokeError as error:
        send("TrainingError", str(error))
    except (Interrupted, KeyboardInterrupt):
        send("interrupted")
    except BaseException:
        send("crash", traceback.format_exc())
    os._exit(0)


def _exit_with_parent(parent: int) -> None:
    """End the process when the main process was killed."""
    while os.getppid() == parent:
        time.sleep(INTERVAL)
    os._exit(1)


def _log_to(pipe: Connection) -> None:
    class PipeHandler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            with suppress(OSError):
                pipe.send_bytes(json.dumps(["log", record.levelno, record.getMessage()]).encode())

    log.handlers = [PipeHandler()]
    log.propagate = False
