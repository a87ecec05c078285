"""What runs in a worker, on a node of the cluster: it holds the data of clients and does jobs."""

import platform
import traceback
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from importlib.metadata import version

import numpy as np
import torch

from bespokefl.core.client_index import ClientIndex
from bespokefl.core.errors import BespokeError, in_brief, said
from bespokefl.core.method import Method, Round
from bespokefl.core.system import memory
from bespokefl.core.task import Task
from bespokefl.engines.client import ClientSide, Data
from bespokefl.engines.protection.clipping import Privacy
from bespokefl.engines.settings import Settings
from bespokefl.engines.transports import wire
from bespokefl.engines.transports.cluster import placement
from bespokefl.engines.transports.jobs import ClientJobs
from bespokefl.engines.transports.processes import OUT_OF_MEMORY
from bespokefl.engines.transports.wire import Values, prefixed, under

Program = tuple[Method, Task, Settings, Privacy, Round, tuple[int, ...]]  # the last are the seeds of all clients
Answer = tuple[str, str, np.ndarray | None]  # "done" or an error, a text, bytes
CLIENTS, VISITORS = "clients", "visitors"  # whose data a node holds, and whose data a job brings along


def versions() -> dict[str, str]:
    """The versions that all machines of a cluster must have in common."""
    return {"Bespoke": version("bespokefl"), "Python": platform.python_version(), "torch": torch.__version__}


def make_round(round: Round, number: int, phase: str) -> Round:
    """Another round of the same run."""
    return replace(round, number=number, phase=phase, notes={}, client_notes={})


class Worker:
    """Does jobs on the clients whose data it holds, and on those whose data a job brings along."""

    def __init__(self) -> None:
        torch.set_num_threads(1)
        memory.keep_freed()
        self._side: ClientSide
        self._jobs: ClientJobs
        self._data: Data
        self._clients: dict[int, int] = {}  # positions in the federation, and here

    def describe(self) -> tuple[str, dict[str, str]]:
        """The node's id, and what is installed on it."""
        from bespokefl.engines.transports.cluster.connection import library

        return library().get_runtime_context().get_node_id(), versions()

    def load(self, program: np.ndarray) -> str:
        """Take the method, the model and the settings; returns what is wrong, or an empty text."""
        from bespokefl.engines.transports.cluster.connection import library

        try:
            method, task, settings, privacy, round, self._seeds = library().cloudpickle.loads(program)
        except Exception as error:  # code of the user's that is not on this node
            return said(error)
        self._names = round.names
        none = ClientIndex.of_lists([])
        nobody = Data(task.start.blocks[0], task.start.blocks[0], (), none, none, none)  # every job has its own data
        self._side = ClientSide(method, task, nobody, settings, privacy)
        self._jobs = ClientJobs(self._side, partial(make_round, round))
        return ""

    def hold(self, text: str, content: np.ndarray) -> None:
        """Take the data of this node's clients, which lie in memory that all its workers share."""
        values = wire.unpack(text, content)
        clients = values[CLIENTS].tolist()
        self._data = placement.of_values(values, self._names, self._seeds, clients)
        self._clients = {client: at for at, client in enumerate(clients)}

    def answer(self, what: str, texts: Sequence[str], *contents: np.ndarray) -> Answer:
        """Do the job whose values are packed here; returns its answer, or its error."""
        try:
            values: Values = {}
            for text, content in zip(texts, contents, strict=True):
                values |= wire.unpack(text, content.copy())
            self._side.data, cohort = self._gather(values.pop("cohort").tolist(), values)
            return "done", *wire.pack(self._jobs.answer(what, values | {"cohort": torch.tensor(cohort)}))
        except BespokeError as error:
            return type(error).__name__, str(error), None
        except (MemoryError, RuntimeError) as error:
            if isinstance(error, MemoryError) or OUT_OF_MEMORY in str(error):
                return "MachineError", f"a worker of the cluster ran out of memory ({in_brief(error)}).", None
            return "crash", traceback.format_exc(), None
        except Exception:
            return "crash", traceback.format_exc(), None

    def _gather(self, cohort: list[int], values: Values) -> tuple[Data, list[int]]:
        """The data of a cohort, and its positions there."""
        visitors = under(VISITORS, values)
        if not visitors:
            return self._data, [self._clients[client] for client in cohort]
        away = visitors.pop(CLIENTS).tolist()
        brought = placement.of_values(visitors, self._names, self._seeds, away)
        here = [client for client in cohort if client not in set(away)]
        own = placement.subset(self._data, [self._clients[client] for client in here])
        positions = {client: at for at, client in enumerate([*here, *away])}
        return placement.joined(own, brought), [positions[client] for client in cohort]


def pack_data(data: Data, clients: Sequence[int], prefix: str = "") -> Values:
    """The data of some clients as named values, for a node or for a job."""
    values: Values = {CLIENTS: torch.tensor(clients, dtype=torch.int64)}
    values |= placement.to_values(placement.subset(data, clients))
    return prefixed(prefix, values) if prefix else values
