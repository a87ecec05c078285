"""The simulation: a federation on one machine."""

import logging
from collections.abc import Callable, Sequence

from bespokefl.core.method import Method, State
from bespokefl.core.nn import probe
from bespokefl.core.rows import Rows, concatenate
from bespokefl.core.task import Task
from bespokefl.engines import chunks, stacking
from bespokefl.engines.client import ClientSide, Data
from bespokefl.engines.federation import Federation
from bespokefl.engines.interrupts import delay_interrupts
from bespokefl.engines.loop import RoundLoop
from bespokefl.engines.outcome import Outcome
from bespokefl.engines.progress import Report
from bespokefl.engines.reference import ReferenceLoop
from bespokefl.engines.settings import Settings
from bespokefl.engines.storage.checkpoints import Checkpoints
from bespokefl.engines.storage.client_states import Store
from bespokefl.engines.transports.local import LocalTransport
from bespokefl.engines.transports.processes import num_workers

log = logging.getLogger("bespokefl")


class Simulation(RoundLoop):
    """One run of one method on one machine.

    Parameters
    ----------
    method : Method
    task : Task
        The model and loss. Its start is the server's start.
    data : Data
        All clients' examples.
    settings : Settings
    classes : int or None
        The number of classes; None for regression.
    """

    transport: LocalTransport

    def __init__(self, method: Method, task: Task, data: Data, settings: Settings, classes: int | None) -> None:
        self._build(method, task, [data], [settings], classes, [task.start])

    @classmethod
    def stacked(
        cls,
        method: Method,
        task: Task,
        data: Sequence[Data],
        settings: Sequence[Settings],
        classes: int | None,
        starts: Sequence[Rows] | None = None,
    ) -> "Simulation":
        """Simulate several federations at once. Settings may differ only in the seed; `starts` are initial weights."""
        made = cls.__new__(cls)
        made._build(method, task, data, settings, classes, starts or [task.start] * len(data))
        return made

    def _build(
        self,
        method: Method,
        task: Task,
        data: Sequence[Data],
        settings: Sequence[Settings],
        classes: int | None,
        starts: Sequence[Rows],
    ) -> None:
        first, joint = settings[0], stacking.join(data, [one.seed for one in settings])
        self.task, self.data = task, joint
        probe.check(task, joint.x[:3], joint.y[:3], classes)
        self.executor = chunks.choose_executor(task, joint, first)
        task.stacked = False  # the task may come from another run
        if self.executor.stacked:
            task.stack()
        log.info("chunk %d: %s", self.executor.chunk, self.executor.reason)
        loop = ReferenceLoop(task) if first.reference else None
        self.side = ClientSide(method, task, joint, first.budget, first.seed, loop, first.privacy)
        members = zip(starts, data, settings, strict=True)
        federations = [Federation(method, start, one, own) for start, one, own in members]
        transport = LocalTransport(
            self.side,
            self.executor,
            federations[0].round,
            _start_clients(federations),
            workers=num_workers(task, first),
            state_dir=first.state_dir,
        )
        super().__init__(federations, transport)

    @property
    def store(self) -> Store:
        """The clients' states."""
        return self.transport.store

    def run_all(
        self,
        report: Report | None = None,
        checkpoints: Checkpoints | None = None,
        stopped: Callable[[], bool] | None = None,
    ) -> list[Outcome]:
        """Run all rounds. Ctrl-C ends the run after the current round, with a checkpoint."""
        with delay_interrupts() as interrupted:
            return super().run_all(report, checkpoints, stopped or interrupted)


def _start_clients(federations: Sequence[Federation]) -> Callable[[Sequence[int]], State]:
    """A function that makes the first states of clients, each from its own federation's start."""
    members = stacking.Members([len(one.data) for one in federations])

    def of_member(federation: Federation, clients: Sequence[int]) -> State:
        names = [federation.data.names[client] for client in clients]
        states = federation.method.start_clients(federation.start, names)
        if len(federations) == 1:
            return states
        return {
            name: value.expand(len(clients)) if isinstance(value, Rows) and len(value) == 1 else value
            for name, value in states.items()
        }

    def start(clients: Sequence[int]) -> State:
        states = [of_member(federations[at], own) for at, own in members.split(clients)]
        return {name: concatenate([state[name] for state in states]) for name in states[0]}

    return start
