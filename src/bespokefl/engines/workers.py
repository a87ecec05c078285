"""Worker processes: each holds the clients' side and answers jobs that reach it as bytes.

A worker is a fork made before the first round: it has the data and the method, and nothing that happens later except
what the jobs bring. One thread each; parallelism is by processes.
"""

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

from bespokefl.core.errors import BespokeError, InputError, TrainingError
from bespokefl.engines import wire

Values = dict[str, Any]
Answer = Callable[[str, Values], Values]  # (what to do, named values) -> named values


@dataclass
class _Worker:
    process: Any
    pipe: Connection
    inbox: wire.Mailbox
    outbox: wire.Mailbox


def cores() -> int:
    """How many processes this machine lets us run at once."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class Pool:
    """Processes that all answer the same kinds of jobs."""

    def __init__(self, answer: Answer, size: int) -> None:
        self._answer = answer
        context = multiprocessing.get_context("fork")
        self._workers: list[_Worker] = []
        for _ in range(size):
            inbox, outbox = wire.Mailbox(), wire.Mailbox()
            ours, theirs = context.Pipe()
            process = context.Process(target=self._serve, args=(theirs, ours, inbox, outbox), daemon=True)
            process.start()
            theirs.close()
            self._workers.append(_Worker(process, ours, inbox, outbox))

    def _serve(self, pipe: Connection, other: Connection, inbox: wire.Mailbox, outbox: wire.Mailbox) -> None:
        for inherited in (other, *(worker.pipe for worker in self._workers)):
            inherited.close()  # else a worker would outlive a killed main process
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        torch.set_num_threads(1)
        while True:
            try:
                what, header, places = wire.loads(pipe.recv_bytes())
            except EOFError:
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
            except BrokenPipeError:  # nobody listens any more
                os._exit(0)

    def map(
        self, what: str, jobs: Sequence[Callable[[], Values]], names: Sequence[str]
    ) -> Iterator[tuple[int, Values]]:
        """Answers as they come, with the job's position. Jobs are made when a worker is free for them."""
        waiting = list(range(len(jobs)))[::-1]
        busy: dict[Any, tuple[int, _Worker]] = {}

        def give(worker: _Worker) -> None:
            if not waiting:
                return
            at = waiting.pop()
            header, tensors = wire.flatten(jobs[at]())
            busy[worker.pipe] = (at, worker)
            with suppress(BrokenPipeError):  # a dead worker is noticed when its answer is read
                worker.pipe.send_bytes(wire.dumps([what, header, worker.inbox.write(tensors)]))

        for worker in self._workers:
            give(worker)
        while busy:
            for pipe in wait(list(busy)):
                at, worker = busy.pop(pipe)
                try:
                    status, header, places = wire.loads(worker.pipe.recv_bytes())
                except (EOFError, ConnectionResetError):
                    worker.process.join(5)
                    raise TrainingError(
                        f"a worker process died (exit code {worker.process.exitcode}) while it worked on {names[at]}; "
                        "if the machine ran out of memory, use fewer --workers or a smaller --chunk."
                    ) from None
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


class Here:
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
