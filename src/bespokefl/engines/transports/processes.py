"""Worker processes: each holds the clients' side and answers jobs that reach it as bytes.

A worker is a fork made before the first round: it has the data and the method, and nothing that happens later except
what the jobs bring. One thread each; parallelism is by processes. A worker that dies, be it in the middle of an answer,
is replaced, and its job done again: jobs depend on nothing else, so the answer is the same to the last bit.
"""

import logging
import multiprocessing
import os
import signal
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from typing import Any

import torch

from bespokefl.core.errors import BespokeError, InputError, TrainingError, in_brief
from bespokefl.core.task import Task
from bespokefl.engines.settings import Settings
from bespokefl.engines.transports import wire
from bespokefl.engines.transports.wire import Values

log = logging.getLogger("bespokefl")

DEATHS = 2  # so often may a job's worker die before the run stops
GONE = (EOFError, OSError)  # what a pipe says whose other end has died, in the middle of a message or not
ENDINGS = ("SIGINT", "SIGTERM", "SIGHUP")  # meant for the main process, whose end ends the workers

Flat = tuple[list[Any], list[torch.Tensor]]  # a job as it is sent
Answer = Callable[[str, Values], Values]  # (what to do, named values) -> named values


class WorkerError(TrainingError):
    """A job whose worker died twice. What was trained before may be kept."""

    def __init__(self, fact: str, *, kept: str = "", then: str = "") -> None:
        """fact: whose worker; kept: what there is to go on from; then: how to go on."""
        advice = then or "if the machine ran out of memory, use fewer workers or a smaller chunk"
        super().__init__("; ".join(part for part in (fact, kept, advice) if part) + ".")
        self.fact, self.kept = fact, kept


@dataclass
class _Worker:
    process: Any
    pipe: Connection
    inbox: wire.Mailbox
    outbox: wire.Mailbox


def cores() -> int:
    """How many processes this machine lets us run at once."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def num_workers(task: Task, settings: Settings) -> int:
    cuda = task.start.device.type != "cpu"
    alone = cuda or settings.reference or "fork" not in multiprocessing.get_all_start_methods()
    return 1 if alone else settings.workers or cores()


class Pool:
    """Processes that all answer the same kinds of jobs."""

    def __init__(self, answer: Answer, size: int) -> None:
        self._answer = answer
        self._workers: list[_Worker] = []
        for _ in range(size):
            self._hire()

    def _hire(self) -> _Worker:
        context = multiprocessing.get_context("fork")
        inbox, outbox = wire.Mailbox(), wire.Mailbox()
        ours, theirs = context.Pipe()
        process = context.Process(target=self._serve, args=(theirs, ours, inbox, outbox), daemon=True)
        process.start()
        theirs.close()
        self._workers.append(_Worker(process, ours, inbox, outbox))
        return self._workers[-1]

    def _bury(self, worker: _Worker) -> None:
        worker.process.join(5)
        worker.process.kill()  # nobody could hear it any more
        worker.process.join()
        worker.pipe.close()
        self._workers.remove(worker)

    def _serve(self, pipe: Connection, other: Connection, inbox: wire.Mailbox, outbox: wire.Mailbox) -> None:
        for inherited in (other, *(worker.pipe for worker in self._workers)):
            inherited.close()  # else a worker would outlive a killed main process
        for name in ENDINGS:
            if hasattr(signal, name):
                signal.signal(getattr(signal, name), signal.SIG_IGN)
        torch.set_num_threads(1)
        while True:
            try:
                what, header, places = wire.loads(pipe.recv_bytes())
            except GONE:
                os._exit(0)
            try:
                values = self._answer(what, wire.unflatten(header, inbox.read(places)))
                answered, tensors = wire.flatten(values)
                reply: list[Any] = ["done", answered, outbox.write(tensors)]
            except BespokeError as error:
                reply = [type(error).__name__, str(error), None]
            except Exception:
                reply = ["crash", traceback.format_exc(), None]
            try:
                pipe.send_bytes(wire.dumps(reply))
            except GONE:  # nobody listens any more
                os._exit(0)

    def map(
        self, what: str, jobs: Sequence[Callable[[], Values]], names: Sequence[str]
    ) -> Iterator[tuple[int, Values]]:
        """Answers as they come, with the job's position. Jobs are made when a worker is free for them."""
        waiting = list(range(len(jobs)))[::-1]
        busy: dict[Any, tuple[int, _Worker, Flat]] = {}
        deaths = [0] * len(jobs)

        def give(worker: _Worker, at: int | None = None, flat: Flat | None = None) -> None:
            if at is None:
                if not waiting:
                    return
                at = waiting.pop()
            header, tensors = flat or wire.flatten(jobs[at]())
            busy[worker.pipe] = (at, worker, (header, tensors))
            with suppress(ConnectionError):  # a dead worker is noticed when its answer is read
                worker.pipe.send_bytes(wire.dumps([what, header, worker.inbox.write(tensors)]))

        for worker in list(self._workers):
            give(worker)
        while busy:
            for pipe in wait(list(busy)):
                at, worker, flat = busy.pop(pipe)
                try:
                    status, header, places = wire.loads(worker.pipe.recv_bytes())
                except GONE:
                    deaths[at] += 1
                    self._bury(worker)
                    told = f"a worker process died (exit code {worker.process.exitcode}) while it worked on {names[at]}"
                    if deaths[at] == DEATHS:
                        raise WorkerError(f"{told}, for the second time") from None
                    log.warning("%s; this is done again", in_brief(told))
                    give(self._hire(), at, flat)
                    continue
                if status == "done":
                    values = wire.unflatten(header, worker.outbox.read(places))
                    give(worker)
                    yield at, values
                elif status == "crash":
                    raise RuntimeError(f"a worker failed on {names[at]}:\n{header}")
                else:
                    raise (InputError if status == "InputError" else TrainingError)(header)

    def close(self) -> None:
        for worker in self._workers:
            worker.pipe.close()
        for worker in self._workers:
            worker.process.join(0.5)
            if worker.process.is_alive():
                worker.process.kill()
                worker.process.join()
        self._workers = []


class InProcessPool:
    """The same without other processes: jobs are answered one after the other, in this one."""

    def __init__(self, answer: Answer) -> None:
        self._answer = answer

    def map(
        self, what: str, jobs: Sequence[Callable[[], Values]], names: Sequence[str]
    ) -> Iterator[tuple[int, Values]]:
        for at, job in enumerate(jobs):
            yield at, self._answer(what, job())

    def close(self) -> None:
        """Nothing to end."""


@contextmanager
def open_pool(answer: Answer, size: int) -> Iterator[Pool | InProcessPool]:
    """Workers that answer, one thread each, for as long as they are needed."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    pool: Pool | InProcessPool = Pool(answer, size) if size > 1 else InProcessPool(answer)
    try:
        yield pool
    finally:
        pool.close()
        torch.set_num_threads(threads)
