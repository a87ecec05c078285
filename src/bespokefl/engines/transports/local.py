"""The transport of a simulation: clients are trained chunk by chunk, in this process or in worker processes.

Both ways run the same jobs, of `jobs.py`. The clients' states are here, and travel with the jobs.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch

from bespokefl.core.method import Round, State
from bespokefl.core.rows import Rows
from bespokefl.core.system import memory
from bespokefl.engines.client import ClientSide
from bespokefl.engines.cohorts import chunks
from bespokefl.engines.cohorts.chunks import Executor
from bespokefl.engines.protection.screening import Entry, select
from bespokefl.engines.storage.checkpoint_format import LoadedCheckpoint
from bespokefl.engines.storage.client_states import ClientStates, StatesSnapshot, on_device
from bespokefl.engines.transports.jobs import SCORE, TRAIN, ClientJobs, make_job
from bespokefl.engines.transports.processes import Pool, num_workers
from bespokefl.engines.transports.protocol import Draw, Execution, ScoreReply, ScoreRequest, TrainReply, TrainRequest
from bespokefl.engines.transports.wire import Values, under


class LocalTransport:
    """Trains the clients of a simulation and keeps their states.

    `make_round` makes a round as clients know it, from its number and phase; `start_clients` the states of clients that
    become active for the first time, from their positions. With one worker, everything runs in this process.
    """

    remote = False

    def __init__(
        self,
        side: ClientSide,
        executor: Executor,
        make_round: Callable[[int, str], Round],
        start_clients: Callable[[Sequence[int]], State],
    ) -> None:
        self.side, self.executor = side, executor
        self._jobs = ClientJobs(side, make_round)
        self.workers, state_dir = num_workers(side.task, side.settings), side.settings.state_dir
        self.store = ClientStates(start_clients, len(side.data), None if state_dir is None else Path(state_dir))
        self._sizes: list[int] = side.data.train.sizes.tolist()
        self._trained: list[Entry] = []  # new states of the current round, not yet committed
        self._models: Rows | None = None  # of the final evaluation, a row for every client
        self._pool: Pool | None = None

    # -- Transport

    def open(self) -> None:
        self._models = None
        self._pool = Pool(self.answer, self.workers)

    def close(self) -> None:
        if self._pool is not None:
            self._pool.close()
            memory.give_back()  # what training has freed
        self._pool = None

    def partition(self, clients: Sequence[int], *, scoring: bool = False) -> list[list[int]]:
        size = chunks.to_score(self.side.task, self.side.data, clients) if scoring else self.executor.chunk
        return chunks.cut(clients, self._sizes, size)

    def exchange(self, requests: Sequence[TrainRequest]) -> Iterator[TrainReply]:
        self._trained = []
        replies: dict[int, Values] = {}
        for at, values in self._map(TRAIN, requests):
            replies[at] = self.store.spill(under("state", values), values)
        for at, request in enumerate(requests):  # in the order of the requests, whatever the order of the replies
            values = replies.pop(at)
            self._trained.append((request.clients, under("state", values)))
            upload, notes = on_device(under("upload", values), self.side.task.start.device), under("note", values)
            yield TrainReply(request.clients, upload, notes, values["broken"], values["work"])

    def evaluate(self, requests: Sequence[ScoreRequest]) -> Iterator[ScoreReply]:
        for at, values in self._map(SCORE, requests):
            personal, globally = under("personal", values), under("global", values)
            if "models" in values:
                self._keep_models(requests[at].clients, values["models"])
            constant, work = under("constant", values), values.get("work")
            yield ScoreReply(requests[at].clients, personal or None, globally or None, work, constant)

    def personal_models(self, first: int, count: int) -> Rows | None:
        assert self._models is not None
        return self._models[first : first + count]

    def commit(self, draw: Draw, lost: Mapping[int, str]) -> None:
        for clients, state in self._trained:
            kept = [at for at, client in enumerate(clients) if draw.all_train or client not in lost]
            if kept:
                self.store.update(*select((clients, state), kept))
        self._trained = []

    def snapshot(self) -> tuple[StatesSnapshot, dict[str, Any]]:
        return self.store.snapshot(), {}

    def restore(self, checkpoint: LoadedCheckpoint) -> None:
        self.store.update(checkpoint.clients, on_device(checkpoint.states, self.side.task.start.device))

    def execution(self) -> Execution:
        return Execution(self.executor, self.workers, "files" if self.store.mapped else "memory")

    # -- jobs

    def _map(self, what: str, requests: Sequence[TrainRequest | ScoreRequest]) -> Iterator[tuple[int, Values]]:
        """Yield the position of each request and its answer, as they come."""
        assert self._pool is not None, "the transport is not open"
        return self._pool.map(what, [partial(make_job, one, self.store.get) for one in requests], self._names(requests))

    def _names(self, requests: Sequence[TrainRequest | ScoreRequest]) -> list[str]:
        """What to call each request in messages."""
        return ["clients " + ", ".join(self.side.data.names[i] for i in one.clients) for one in requests]

    def _keep_models(self, clients: Sequence[int], models: Rows) -> None:
        if self._models is None:
            self._models = self.store.allocate(models, len(self.side.data))
        at = torch.tensor(clients)
        for block, new in zip(self._models.blocks, models.blocks, strict=True):
            block[at] = new.to(block.device)

    def answer(self, what: str, values: Values) -> Values:
        """Do a job with nothing but its own values and the clients' side."""
        return self._jobs.answer(what, values)
