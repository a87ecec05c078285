"""The simulation: a federation on one machine, or on a Ray cluster."""

import logging
from collections.abc import Callable, Sequence

from bespokefl.core.method import Method, State
from bespokefl.core.rows import Rows, concatenate
from bespokefl.core.task import Task
from bespokefl.engines.client import ClientSide, Data
from bespokefl.engines.cohorts import stacking
from bespokefl.engines.cohorts.features import prepare
from bespokefl.engines.federation import Federation
from bespokefl.engines.loop import RoundLoop
from bespokefl.engines.settings import Settings
from bespokefl.engines.storage.client_states import ClientStates, repeat_single_rows
from bespokefl.engines.transports.cluster.transport import ClusterTransport
from bespokefl.engines.transports.local import LocalTransport

log = logging.getLogger("bespokefl")


class Simulation(RoundLoop):
    """One run of one method, or several runs at once whose settings differ only in the seed.

    Several runs have sequences of data, settings and initial weights; without `starts`, the task's start is used.
    """

    transport: LocalTransport

    def __init__(
        self,
        method: Method,
        task: Task,
        data: Data | Sequence[Data],
        settings: Settings | Sequence[Settings],
        classes: int | None,  # None: regression
        starts: Sequence[Rows] | None = None,
    ) -> None:
        data = [data] if isinstance(data, Data) else data
        settings = [settings] if isinstance(settings, Settings) else settings
        first, joint = settings[0], stacking.join(data, [one.seed for one in settings])
        self.task, self.data = task, joint
        above, features, self.executor = prepare(task, joint, first, classes)
        log.info("chunk %d: %s", self.executor.chunk, self.executor.reason)
        self.side = ClientSide(method, above, features, first)
        members = zip(starts or [task.start] * len(data), data, settings, strict=True)
        federations = [Federation(method, start, one, own) for start, one, own in members]
        kind = LocalTransport if first.cluster == "none" else ClusterTransport
        transport = kind(self.side, self.executor, federations[0].round, _start_clients(federations))
        super().__init__(federations, transport)

    @property
    def store(self) -> ClientStates:
        """The clients' states."""
        return self.transport.store


def _start_clients(federations: Sequence[Federation]) -> Callable[[Sequence[int]], State]:
    """A function that makes the first states of clients, each from its own federation's start."""
    members = stacking.Members([len(one.data) for one in federations])

    def start(clients: Sequence[int]) -> State:
        states = []
        for at, own in members.split(clients):
            federation = federations[at]
            names = [federation.data.names[client] for client in own]
            states.append(repeat_single_rows(federation.method.start_clients(federation.start, names), len(own)))
        return {name: concatenate([state[name] for state in states]) for name in states[0]}

    return start
