"""Worker processes that answer jobs, which reach them as bytes.

A worker is forked before the first round: it has the data and the method, and knows of later events only what jobs
contain. Each has one thread. A worker that dies, even in the middle of an answer, is replaced and its job is repeated.
A job depends on nothing else, so its answer has the same bits.
"""

import json
import logging
import multiprocessing
import os
import signal
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from typing import Any

import torch

from bespokefl.core.errors import BespokeError, InputError, TrainingError, in_brief
from bespokefl.core.system import memory
from bespokefl.core.task import Task
from bespokefl.engines.settings import Settings
from bespokefl.engines.transports import wire
from bespokefl.engines.transports.wire import Values

log = logging.getLogger("bespokefl")

OUT_OF_MEMORY = "can't allocate memory"  # in the message of torch's RuntimeError
MAX_DEATHS = 2  # of a job's workers, before the run stops
CLOSED_PIPE = (EOFError, OSError)  # what a pipe raises if the other end has died

Flat = tuple[list[Any], list[torch.Tensor]]  # a job as it is sent
Answer = Callable[[str, Values], Values]  # (what to do, named values) -> named values


class MachineError(TrainingError):
    """A machine or a cluster failed, and not the training, which may succeed when it is repeated."""


class WorkerError(MachineError):
    """The worker of a job died twice. Earlier rounds may be saved."""

    def __init__(self, fact: str, *, kept: str = "", then: str = "") -> None:
        """`fact` says which job, `kept` what is saved, `then` how to resume."""
        advice = then or "if the machine ran out of memory, use fewer workers or a smaller chunk"
        super().__init__("; ".join(part for part in (fact, kept, advice) if part) + ".")
        self.fact, self.kept = fact, kept


@dataclass
class _Worker:
    process: Any
    pipe: Connection
    inbox: wire.SharedMemory
    outbox: wire.SharedMemory


def cores() -> int:
    """The number of processes that this machine can run at once."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def num_workers(task: Task, settings: Settings) -> int:
    """The number of worker processes of a run: one on a GPU, for the reference loop, or without fork."""
    accelerator = task.start.device.type != "cpu"
    alone = accelerator or settings.reference or "fork" not in multiprocessing.get_all_start_methods()
    return 1 if alone else settings.workers or cores()


class Pool:
    """Worker processes that answer jobs, with one thread each. With a size of one, jobs run in this process."""

    def __init__(self, answer: Answer, size: int) -> None:
        self._answer, self._in_process = answer, size <= 1
        self._threads = torch.get_num_threads()
        torch.set_num_threads(1)
        memory.keep_freed()  # here, so that workers inherit it
        self._workers: list[_Worker] = []
        try:
            for _ in range(0 if self._in_process else size):
                self._start_worker()
        except BaseException:
            self.close()
            raise

    def _start_worker(self) -> _Worker:
        """Start one more worker; raise TrainingError if this machine cannot."""
        try:
            return self._fork()
        except (OSError, MemoryError, RuntimeError) as error:
            raise TrainingError(
                f"cannot start worker process {len(self._workers) + 1} ({in_brief(error)}): the machine is short of "
                "memory or processes; use fewer, as in --workers 1."
            ) from None

    def _fork(self) -> _Worker:
        context = multiprocessing.get_context("fork")
        inbox, outbox = wire.SharedMemory(), wire.SharedMemory()
        ours, theirs = context.Pipe()
        process = context.Process(target=self._serve, args=(theirs, ours, inbox, outbox), daemon=True)
        process.start()
        theirs.close()
        self._workers.append(_Worker(process, ours, inbox, outbox))
        return self._workers[-1]

    def _remove(self, worker: _Worker) -> None:
        worker.process.join(5)
        worker.process.kill()  # its pipe is closed
        worker.process.join()
        worker.pipe.close()
        self._workers.remove(worker)

    def _serve(self, pipe: Connection, other: Connection, inbox: wire.SharedMemory, outbox: wire.SharedMemory) -> None:
        for inherited in (other, *(worker.pipe for worker in self._workers)):
            inherited.close()  # otherwise a worker would outlive a killed main process
        for ignored in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):  # the main process handles them
            signal.signal(ignored, signal.SIG_IGN)
        torch.set_num_threads(1)
        while True:
            try:
                what, header, places = json.loads(pipe.recv_bytes())
            except CLOSED_PIPE:
                os._exit(0)
            try:
                values = self._answer(what, wire.unflatten(header, inbox.read(places)))
                answered, tensors = wire.flatten(values)
                reply: list[Any] = ["done", answered, outbox.write(tensors)]
            except BespokeError as error:
                reply = [type(error).__name__, str(error), None]
            except (MemoryError, RuntimeError) as error:
                reply = ["crash", traceback.format_exc(), None]
                if isinstance(error, MemoryError) or OUT_OF_MEMORY in str(error):
                    advice = "use fewer --workers or a smaller --chunk"
                    reply = [
                        "TrainingError",
                        f"a worker process ran out of memory ({in_brief(error)}): {advice}.",
                        None,
                    ]
            except Exception:
                reply = ["crash", traceback.format_exc(), None]
            try:
                pipe.send_bytes(json.dumps(reply).encode())
            except CLOSED_PIPE:  # the main process has ended
                os._exit(0)

    def map(
        self, what: str, jobs: Sequence[Callable[[], Values]], names: Sequence[str]
    ) -> Iterator[tuple[int, Values]]:
        """Yield the positions of jobs and their answers, as they come. A job is made when a worker is free for it."""
        if self._in_process:
            yield from ((at, self._answer(what, job())) for at, job in enumerate(jobs))
            return
        waiting: list[tuple[int, Flat | None]] = [(at, None) for at in reversed(range(len(jobs)))]
        busy: dict[Any, tuple[int, _Worker, Flat]] = {}
        deaths = [0] * len(jobs)

        def assign(worker: _Worker) -> None:
            if not waiting:
                return
            at, flat = waiting.pop()
            header, tensors = flat or wire.flatten(jobs[at]())
            busy[worker.pipe] = (at, worker, (header, tensors))
            with suppress(ConnectionError):  # a dead worker is detected when its answer is read
                worker.pipe.send_bytes(json.dumps([what, header, worker.inbox.write(tensors)]).encode())

        for worker in list(self._workers):
            assign(worker)
        while busy:
            for pipe in wait(list(busy)):
                at, worker, flat = busy.pop(pipe)
                try:
                    status, header, places = json.loads(worker.pipe.recv_bytes())
                except CLOSED_PIPE:
                    deaths[at] += 1
                    self._remove(worker)
                    fact = f"a worker process died (exit code {worker.process.exitcode}) while it worked on {names[at]}"
                    if deaths[at] == MAX_DEATHS:
                        raise WorkerError(f"{fact}, for the second time") from None
                    log.warning("%s; the job is repeated", in_brief(fact))
                    waiting.append((at, flat))
                    assign(self._start_worker())
                    continue
                if status == "done":
                    values = wire.unflatten(header, worker.outbox.read(places))
                    assign(worker)
                    yield at, values
                elif status == "crash":
                    raise RuntimeError(f"a worker failed on {names[at]}:\n{header}")
                else:
                    raise (InputError if status == "InputError" else TrainingError)(header)

    def close(self) -> None:
        """End all workers."""
        for worker in self._workers:
            worker.pipe.close()
        for worker in self._workers:
            worker.process.join(0.5)
            if worker.process.is_alive():
                worker.process.kill()
                worker.process.join()
        self._workers = []
        torch.set_num_threads(self._threads)
