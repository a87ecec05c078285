"""The transport of a simulation on a Ray cluster: nodes hold the data of clients, this process their states."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial

from bespokefl.core.errors import InputError
from bespokefl.core.method import Round, State
from bespokefl.core.system import memory
from bespokefl.engines.client import ClientSide
from bespokefl.engines.cohorts.chunks import Executor
from bespokefl.engines.transports.cluster.pool import ClusterPool
from bespokefl.engines.transports.cluster.worker import Program
from bespokefl.engines.transports.jobs import make_job
from bespokefl.engines.transports.local import LocalTransport
from bespokefl.engines.transports.protocol import Execution, ScoreRequest, TrainRequest
from bespokefl.engines.transports.wire import Values


class ClusterTransport(LocalTransport):
    """A local transport whose jobs are done on a cluster.

    States and checkpoints are here, and states travel with the jobs, so that a node that is lost takes nothing with it.
    """

    def __init__(
        self,
        side: ClientSide,
        executor: Executor,
        make_round: Callable[[int, str], Round],
        start_clients: Callable[[Sequence[int]], State],
    ) -> None:
        super().__init__(side, executor, make_round, start_clients)
        device = side.task.start.device
        if device.type != "cpu":
            raise InputError(f"a cluster computes on its nodes' CPUs, got the device {str(device)!r}; leave out one.")
        self._cluster: ClusterPool | None = None
        self._round = make_round(0, "")
        self._placement: tuple[int, ...] = ()

    def open(self) -> None:
        self._models = None
        side = self.side
        program: Program = side.method, side.task, side.settings, side.privacy, self._round, side.data.seeds
        self._cluster = ClusterPool(side.settings.cluster, side, program, side.settings.workers)
        self.workers, self._placement = len(self._cluster), tuple(self._cluster.placement)

    def close(self) -> None:
        if self._cluster is not None:
            self._cluster.close()
            memory.give_back()
        self._cluster = None

    def execution(self) -> Execution:
        return Execution(self.executor, self.workers, "files" if self.store.mapped else "memory", self._placement)

    def _map(self, what: str, requests: Sequence[TrainRequest | ScoreRequest]) -> Iterator[tuple[int, Values]]:
        assert self._cluster is not None, "the transport is not open"
        jobs = [partial(make_job, one, self.store.get) for one in requests]
        return self._cluster.map(what, jobs, [one.clients for one in requests], self._names(requests))
