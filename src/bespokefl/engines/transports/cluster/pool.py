"""Workers on all nodes of a cluster: which does which job, and what happens when one is lost.

A job goes to a free worker of the node that holds the data of most of its clients. A worker without such jobs takes
another node's, and the driver sends the data along. When a worker or a node is lost, its jobs are repeated on what is
left. A job depends on nothing but its values, so none of this changes a bit of its answer.
"""

import logging
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from typing import Any

import numpy as np
import torch

from bespokefl.core.errors import InputError, TrainingError, count
from bespokefl.core.system import memory
from bespokefl.engines.client import ClientSide
from bespokefl.engines.transports import wire
from bespokefl.engines.transports.cluster import connection
from bespokefl.engines.transports.cluster.connection import Handle, Lost
from bespokefl.engines.transports.cluster.placement import place
from bespokefl.engines.transports.cluster.worker import VISITORS, Program, pack_data
from bespokefl.engines.transports.processes import MachineError, WorkerError
from bespokefl.engines.transports.wire import Values

log = logging.getLogger("bespokefl")

MAX_DEATHS = 3  # of a job's workers, before the run stops
ERRORS = {"InputError": InputError, "MachineError": MachineError}  # of workers; all others are TrainingErrors
COMMON = ("shared", "global")  # values that are the same in all jobs of a round, or below such a name


class ClusterPool:
    """Does jobs on a cluster. `program` is what workers need besides data, `most` the number of workers, 0 for all."""

    def __init__(self, address: str, side: ClientSide, program: Program, most: int) -> None:
        self._data, self._sizes = side.data, side.data.train.sizes.tolist()
        self._threads = torch.get_num_threads()
        self._resources = ExitStack()
        self._workers: list[Handle] = []
        self._common: tuple[list[Any], tuple[str, Any]] | None = None
        self.placement: list[int] = []  # the number of clients of each node, those with the most examples first
        torch.set_num_threads(1)  # the order of sums depends on it
        memory.keep_freed()
        try:
            self._ray = self._resources.enter_context(connection.connection(address))
            self._workers = connection.start_workers(self._ray, most)
            self._load(program)
            self._place()
        except BaseException:
            self.close()
            raise

    def __len__(self) -> int:
        return len(self._workers)

    def _load(self, program: Program) -> None:
        """Send the method, the model and the settings to all workers."""
        code = np.frombuffer(self._ray.cloudpickle.dumps(program), dtype=np.uint8)
        shipped = self._ray.put(code)
        for worker, asked in [(worker, worker.actor.load.remote(shipped)) for worker in self._workers]:
            if wrong := connection.fetch(self._ray, asked):
                raise InputError(
                    f"the node {worker.address} cannot load method or model ({wrong}): install their code there."
                )

    def _place(self) -> None:
        """Send every client's data to one of the nodes that are left, once."""
        nodes = list(dict.fromkeys(worker.node for worker in self._workers))
        parts = place(self._sizes, [sum(worker.node == node for worker in self._workers) for node in nodes])
        self._home = np.zeros(len(self._sizes), dtype=np.int64)
        self._nodes = {node: at for at, node in enumerate(nodes)}
        self.placement = [len(part) for part in parts]
        shards = [pack_data(self._data, part) for part in parts]
        needed = {node: wire.size(shard)[0] for node, shard in zip(nodes, shards, strict=True)}
        connection.check_stores(self._workers, needed)
        for at, (part, shard) in enumerate(zip(parts, shards, strict=True)):
            self._home[part] = at
            text, content = wire.pack(shard)
            reference = self._ray.put(content)
            for worker in self._workers:
                if self._nodes[worker.node] == at:
                    worker.actor.hold.remote(text, reference)  # a failure makes the next job fail

    # -- jobs

    def map(
        self, what: str, jobs: Sequence[Callable[[], Values]], cohorts: Sequence[Sequence[int]], names: Sequence[str]
    ) -> Iterator[tuple[int, Values]]:
        """Yield the positions of jobs and their answers, as they come. A job is made when a worker is free for it."""
        waiting = _Waiting(self._homes(cohorts))
        busy: dict[Any, tuple[int, Handle]] = {}
        made: dict[int, Values] = {}  # making a job counts the bytes of its message, so it is made once
        idle, deaths = list(self._workers), [0] * len(jobs)
        while waiting or busy:
            while idle and waiting:
                worker = idle.pop(0)
                at = waiting.take(self._nodes[worker.node])
                made[at] = made.get(at) or jobs[at]()
                busy[self._send(worker, what, made[at], cohorts[at])] = at, worker
            for reference in self._ray.wait(list(busy), num_returns=1)[0]:
                at, worker = busy.pop(reference)
                try:
                    status, text, content = connection.fetch(self._ray, reference)
                except Lost as error:
                    deaths[at] += 1
                    moved = self._remove(worker, error, deaths[at], names[at])
                    waiting = _Waiting(self._homes(cohorts), [*waiting, at]) if moved else waiting.plus(at)
                    continue
                idle.append(worker)
                del made[at]
                if status == "done":
                    yield at, wire.unpack(text, content.copy())  # Ray's memory ends with the connection
                elif status == "crash":
                    raise RuntimeError(f"a worker failed on {names[at]}:\n{text}")
                else:
                    raise ERRORS.get(status, TrainingError)(text)

    def _homes(self, cohorts: Sequence[Sequence[int]]) -> list[int]:
        """The node that holds the data of most clients of each cohort."""
        return [int(np.bincount(self._home[list(cohort)], minlength=len(self._nodes)).argmax()) for cohort in cohorts]

    def _send(self, worker: Handle, what: str, values: Values, cohort: Sequence[int]) -> Any:
        common = {name: value for name, value in values.items() if name.partition("/")[0] in COMMON}
        own = {name: value for name, value in values.items() if name not in common}
        away = [client for client in cohort if self._home[client] != self._nodes[worker.node]]
        if away:
            own |= pack_data(self._data, away, VISITORS)
        parts = [wire.pack(own)] + ([self._shipped(common)] if common else [])
        return worker.actor.answer.remote(what, [text for text, _ in parts], *(content for _, content in parts))

    def _shipped(self, common: Values) -> tuple[str, Any]:
        """Values as a text and a reference to their bytes, which a node fetches once for all jobs of a round."""
        header, tensors = wire.flatten(common)
        before = self._common
        key = [header, *tensors]
        if before is None or len(before[0]) != len(key) or before[0][0] != header or not _same(before[0][1:], tensors):
            text, content = wire.pack(common)
            self._common = key, (text, self._ray.put(content))
        assert self._common is not None
        return self._common[1]

    def _remove(self, worker: Handle, error: Lost, deaths: int, name: str) -> bool:
        """Forget a lost worker; returns whether a node was lost with it, so that its clients moved to others."""
        connection.stop_workers(self._ray, [worker.actor])
        self._workers = [one for one in self._workers if one is not worker]
        fact = f"a worker on the node {worker.address} was lost while it worked on {name} ({error})"
        if not self._workers:
            raise MachineError(f"no worker of the cluster is left: {fact}.")
        if deaths == MAX_DEATHS:
            raise WorkerError(f"{fact}, for the third time")
        log.warning("%s; the job is repeated on %s", fact, count(len(self._workers), "other worker"))
        if any(one.node == worker.node for one in self._workers):
            return False
        self._place()
        return True

    def close(self) -> None:
        """End all workers and disconnect."""
        self._common = None
        if self._workers:
            connection.stop_workers(self._ray, [worker.actor for worker in self._workers])
        self._workers = []
        self._resources.close()
        torch.set_num_threads(self._threads)


class _Waiting:
    """Jobs by the node that holds the data of most of their clients."""

    def __init__(self, homes: Sequence[int], jobs: Sequence[int] | None = None) -> None:
        self._homes = homes
        self._queues: dict[int, deque[int]] = {}
        for at in sorted(range(len(homes)) if jobs is None else jobs):
            self._queues.setdefault(homes[at], deque()).append(at)

    def __bool__(self) -> bool:
        return any(self._queues.values())

    def __iter__(self) -> Iterator[int]:
        return (at for queue in self._queues.values() for at in queue)

    def take(self, node: int) -> int:
        """The next job of a node, or the last one of the node that has the most."""
        if own := self._queues.get(node):
            return own.popleft()
        return max(self._queues.values(), key=len).pop()

    def plus(self, at: int) -> "_Waiting":
        """With a job that is to be repeated."""
        self._queues.setdefault(self._homes[at], deque()).appendleft(at)
        return self


def _same(first: Sequence[Any], second: Sequence[Any]) -> bool:
    return all(one is other for one, other in zip(first, second, strict=True))
