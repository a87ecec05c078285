"""Methods that write down what they compute: the history that `history.py` checks.

A client's training and a server's aggregation each append one line to a file below $BESPOKE_HISTORY. A line is written
by one call, so that a process that is killed leaves none that is incomplete.
"""

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bespokefl.core.method import CohortData, Message, Method, Round, Rows, State, Task, Update, Uploads
from bespokefl.core.uploads import Declarations
from bespokefl.methods import Ditto, FedAvg, PFedVEM, Scaffold

HISTORY_VARIABLE = "BESPOKE_HISTORY"
SERVER, CLIENTS = "server.jsonl", "clients.jsonl"


def digest(values: Mapping[str, Any], row: int | None = None) -> str:
    """A hash of the values, or of one row of each."""
    sha = hashlib.sha256()
    for name in sorted(values):
        value = values[name]
        if row is not None and len(value) > 1:
            value = value[row : row + 1]
        blocks = value.blocks if isinstance(value, Rows) else [value]
        for block in blocks:
            sha.update(name.encode() + str(tuple(block.shape)).encode())
            sha.update(block.contiguous().numpy().tobytes())
    return sha.hexdigest()[:16]


def write(run: str, file: str, entry: Mapping[str, Any]) -> None:
    """Append a line to the history of a run."""
    folder = Path(os.environ[HISTORY_VARIABLE]) / run
    folder.mkdir(parents=True, exist_ok=True)
    handle = os.open(folder / file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(handle, json.dumps(entry).encode() + b"\n")
    finally:
        os.close(handle)


@dataclass(frozen=True, kw_only=True)
class Recorded(Method):
    """A method whose history is written."""

    run: str = ""  # the name of the run

    def local_update(self, task: Task, message: Message, state: State, data: CohortData, round: Round) -> Update:
        upload, new = super().local_update(task, message, state, data, round)  # type: ignore[safe-super]
        for row, client in enumerate(data.names):
            entry = {"client": client, "round": round.number, "upload": digest(upload, row)}
            write(self.run, CLIENTS, entry | {"from": digest(state, row), "to": digest(new, row)})
        return upload, new

    def upload(self, message: Message) -> Declarations | None:
        return super().upload(message)

    def aggregate(self, server: State, uploads: Uploads, round: Round) -> State:
        new = super().aggregate(server, uploads, round)
        received = [digest(chunk, row) for chunk in uploads for row in range(len(next(iter(chunk.values()))))]
        clients = [[round.names[client], one] for client, one in zip(uploads.clients, received, strict=True)]
        entry = {"round": round.number, "uploads": clients, "before": digest(server), "after": digest(new)}
        write(self.run, SERVER, entry)
        return new


@dataclass(frozen=True, kw_only=True)
class RecordedFedAvg(Recorded, FedAvg):
    """FedAvg: nothing but a global model."""


@dataclass(frozen=True, kw_only=True)
class RecordedDitto(Recorded, Ditto):
    """Ditto: clients keep their models."""


@dataclass(frozen=True, kw_only=True)
class RecordedScaffold(Recorded, Scaffold):
    """SCAFFOLD: clients and server keep control variates that must fit each other."""


@dataclass(frozen=True, kw_only=True)
class RecordedPFedVEM(Recorded, PFedVEM):
    """pFedVEM: all clients train in every round."""


METHODS = {
    one.__name__.removeprefix("Recorded").lower(): one
    for one in (RecordedFedAvg, RecordedDitto, RecordedScaffold, RecordedPFedVEM)
}
