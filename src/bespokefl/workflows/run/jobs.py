"""Jobs that do not need each other, several at once, each in a process of its own; one report tells how far all are.

A job's process is a fork: it has all that this one has, and nothing of what happens here later. What it makes it leaves
on disk; back come only what it tells on the way and a value that JSON can hold. Ctrl-C is passed on to the jobs in
hand, which end as they do for themselves; a second one ends them at once. A job whose process dies is done once more.
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
from multiprocessing.connection import Connection, wait
from typing import Any, NoReturn

import torch

from bespokefl.core.errors import BespokeError, DiskError, InputError, TrainingError
from bespokefl.core.files import FULL, unwritten
from bespokefl.engines.interrupts import delay_interrupts
from bespokefl.engines.transports.processes import cores

log = logging.getLogger("bespokefl")

MANY = 20_000_000  # parameters of all clients together; up to here several trainings at once fit into memory
EVERY = 0.1  # seconds between two reports of a job, and between two looks whether to stop

Tell = Callable[[float, str, Mapping[str, float]], None]  # the share that is done, where it is, scores


@dataclass(frozen=True)
class Job:
    """Something to do, and how large a part of all it is."""

    name: str
    work: Callable[[Tell], Any]
    size: int = 1  # trainings


@dataclass(frozen=True)
class Step:
    """How far all jobs are."""

    done: float
    total: int
    text: str
    scores: Mapping[str, float]


Report = Callable[[Step], None]
Outcome = Any  # what the work returned, or the BespokeError that it ended with


class Interrupted(Exception):  # noqa: N818 (nobody made a mistake)
    """A job was stopped before its end, and so are all others; those that had ended were handed out before."""


def can_fork() -> bool:
    return "fork" in multiprocessing.get_all_start_methods()


def at_once(parameters: int, workers: int, device: str) -> int:
    """How many trainings of so many parameters to do side by side: as many as workers, or one with all of them."""
    alone = parameters > MANY or device != "cpu" or not can_fork()
    return 1 if alone else workers or cores()


def do(jobs: Sequence[Job], processes: int, report: Report | None = None) -> Iterator[tuple[Job, Outcome]]:
    """Every job with its outcome, as they end; with one process, here and one after the other."""
    display = _Display(jobs, report)
    yield from _here(jobs, display) if processes < 2 or not can_fork() else _apart(jobs, processes, display)


class _Display:
    def __init__(self, jobs: Sequence[Job], report: Report | None) -> None:
        self._report, self._total = report, sum(job.size for job in jobs)
        self._ended, self._open = 0, dict[str, float]()

    def tell(self, job: Job, share: float, text: str, scores: Mapping[str, float]) -> None:
        self._open[job.name] = share * job.size
        self._show(f"{job.name} {text}".strip(), scores)

    def end(self, job: Job) -> None:
        self._open.pop(job.name, None)
        self._ended += job.size
        self._show(f"{job.name} done", {})

    def _show(self, text: str, scores: Mapping[str, float]) -> None:
        if self._report is not None:
            self._report(Step(self._ended + sum(self._open.values()), self._total, text, scores))


def _here(jobs: Sequence[Job], display: _Display) -> Iterator[tuple[Job, Outcome]]:
    for job in jobs:

        def tell(share: float, text: str, scores: Mapping[str, float], job: Job = job) -> None:
            display.tell(job, share, text, scores)

        try:
            outcome = _told(job, tell)
        except BespokeError as error:
            outcome = error
        except KeyboardInterrupt:
            raise Interrupted from None
        display.end(job)
        yield job, outcome


def _told(job: Job, tell: Tell) -> Any:
    """What the work returns; a full disk is a sentence, wherever in it that is noticed."""
    try:
        return job.work(tell)
    except OSError as error:
        if error.errno in FULL:
            raise unwritten(error.filename or "a file", error) from error
        raise


@dataclass
class _Child:
    job: Job
    process: Any
    pipe: Connection


def _apart(jobs: Sequence[Job], processes: int, display: _Display) -> Iterator[tuple[Job, Outcome]]:
    waiting, busy = list(jobs)[::-1], dict[Any, _Child]()
    said, died = set[str](), set[Job]()
    stopped = False
    try:
        with delay_interrupts("") as asked:
            while busy or (waiting and not stopped):
                while waiting and len(busy) < processes and not stopped:
                    child = _start(waiting.pop(), [one.pipe for one in busy.values()])
                    busy[child.pipe] = child
                if asked() and not stopped:
                    stopped = True
                    for child in busy.values():
                        with suppress(ProcessLookupError):
                            os.kill(child.process.pid, signal.SIGINT)
                for pipe in wait(list(busy), EVERY):
                    child = busy[pipe]
                    kind, *told = _next(child)
                    if kind == "tell":
                        display.tell(child.job, *told)
                    elif kind == "log":
                        if told[1] not in said:  # that of one run is that of all
                            said.add(told[1])
                            log.log(told[0], "%s", told[1])
                    else:
                        del busy[pipe]
                        child.pipe.close()
                        child.process.join()
                        if kind == "crash":
                            raise RuntimeError(f"{child.job.name} failed:\n{told[0]}")
                        if kind == "interrupted":
                            stopped = True
                            continue
                        if kind == "died":
                            if stopped:
                                continue
                            if child.job not in died:
                                died.add(child.job)
                                waiting.append(child.job)
                                name = child.job.name.removesuffix(":")
                                log.warning("%s: its process died (%s); this is done again", name, *told)
                                continue
                            told = [
                                f"its process died twice ({told[0]}); if the machine ran out of memory, use fewer "
                                "--workers."
                            ]
                        display.end(child.job)
                        yield child.job, _outcome(kind, told)
            if stopped:
                raise Interrupted
    except KeyboardInterrupt:
        raise Interrupted from None
    finally:
        for child in busy.values():
            child.process.kill()
            child.process.join()


def _outcome(kind: str, told: Sequence[Any]) -> Outcome:
    if kind == "DiskError":
        return DiskError(told[0], kept=told[1], cure=told[2])
    if kind == "done":
        return told[0]
    return InputError(told[0]) if kind == "InputError" else TrainingError(told[0])


def _next(child: _Child) -> list[Any]:
    try:
        found: list[Any] = json.loads(child.pipe.recv_bytes())
    except (EOFError, OSError):  # also in the middle of what it tells
        child.process.join()
        return ["died", f"exit code {child.process.exitcode}"]
    return found


def _start(job: Job, inherited: Sequence[Connection]) -> _Child:
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()
    process = context.Process(target=_run, args=(job, theirs, (ours, *inherited)), daemon=True)
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # until the job can be told, or it would miss it
    process.start()
    signal.pthread_sigmask(signal.SIG_SETMASK, before)
    theirs.close()
    return _Child(job, process, ours)


def _run(job: Job, pipe: Connection, inherited: Sequence[Connection]) -> NoReturn:
    """The life of a job's process."""
    os.setpgrp()  # so that Ctrl-C in the terminal comes once, from the main process
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for one in inherited:
        one.close()
    torch.set_num_threads(1)
    threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()
    _log_to(pipe)
    last = 0.0

    def send(*values: Any) -> None:
        try:
            pipe.send_bytes(json.dumps(values).encode())
        except (BrokenPipeError, ConnectionResetError):  # the main process is gone
            os._exit(1)

    def tell(share: float, text: str, scores: Mapping[str, float]) -> None:
        nonlocal last
        now = time.monotonic()
        if now - last >= EVERY:
            last = now
            send("tell", share, text, dict(scores))

    try:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
        send("done", _told(job, tell))
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


def _end_with(parent: int) -> None:
    """A main process that was killed says nothing; its jobs must not go on without it."""
    while os.getppid() == parent:
        time.sleep(EVERY)
    os._exit(1)


def _log_to(pipe: Connection) -> None:
    class Sent(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            with suppress(OSError):
                pipe.send_bytes(json.dumps(["log", record.levelno, record.getMessage()]).encode())

    log.handlers = [Sent()]
    log.propagate = False
