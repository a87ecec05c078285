"""The server of a deployment: the round loop over the nodes that a messenger knows."""

from typing import Any

from bespokefl.core.errors import InputError
from bespokefl.core.method import Method
from bespokefl.core.task import Task
from bespokefl.engines.federation import Federation
from bespokefl.engines.loop import RoundLoop
from bespokefl.engines.settings import Settings
from bespokefl.engines.transports.flower.client_registry import homes, remote_data
from bespokefl.engines.transports.flower.messenger import NodeMessenger
from bespokefl.engines.transports.flower.run_plan import RunPlan
from bespokefl.engines.transports.flower.transport import FlowerTransport


class Server(RoundLoop):
    """One run over the nodes that a messenger knows.

    Parameters
    ----------
    method : Method
    task : Task
    settings : Settings
    messenger : NodeMessenger
    run : str
        The run's name, under which nodes keep their states.
    recipe : mapping
        What nodes need to build method and model, for JSON.
    """

    transport: FlowerTransport

    def __init__(
        self, method: Method, task: Task, settings: Settings, messenger: NodeMessenger, run: str, recipe: Any
    ) -> None:
        self.task, self.homes, self.data = task, homes(messenger), remote_data(messenger)
        if method.needs_groups and self.data.groups is None:
            raise InputError(f"{method.name} needs the clients' true groups: every node must name them.")
        groups = self.data.groups if method.needs_groups else None
        plan = RunPlan.of(run, self.data.names, groups, settings, recipe)
        transport = FlowerTransport(messenger, self.homes, self.data, task, plan)
        super().__init__([Federation(method, task.start, self.data, settings)], transport)
