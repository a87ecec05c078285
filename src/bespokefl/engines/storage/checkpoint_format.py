"""One checkpoint on disk: the state of a run between two rounds, in two files.

`state.safetensors` has the tensors: the server's under "server/", the clients' under "clients/" with one row for each
client that has been active. `record.json` has everything else and the hashes of both files.
"""

import hashlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file

from bespokefl.core.errors import InputError, in_brief
from bespokefl.core.method import State
from bespokefl.core.rows import Rows
from bespokefl.engines.storage.client_states import StatesSnapshot
from bespokefl.engines.storage.safetensors_writer import write_tensors
from bespokefl.engines.transports import wire

STATE, RECORD = "state.safetensors", "record.json"
FORMAT = ["bespoke checkpoint", 2]
RECORD_TYPES = dict.fromkeys(("identity", "made_with", "communication", "lost"), dict) | dict.fromkeys(
    ("history", "client_notes", "by_client", "seconds"), list
)
DAMAGE_ERRORS = (  # what reading a damaged checkpoint can raise; other errors are those of the disk
    *(FileNotFoundError, IsADirectoryError, NotADirectoryError, SafetensorError),
    *(ValueError, LookupError, TypeError, AttributeError, RecursionError),
)


@dataclass
class RunSnapshot:
    """The state of a run between two rounds. It does not change while the run continues."""

    number: int
    server: State
    clients: StatesSnapshot
    kept_models: Sequence[Rows] = ()  # the global model after each round
    record: dict[str, Any] = field(default_factory=dict)  # for JSON


@dataclass
class LoadedCheckpoint:
    """A checkpoint that was read."""

    number: int
    server: State
    clients: list[int]
    states: State
    kept_models: list[Rows]
    record: dict[str, Any]


def write(snapshot: RunSnapshot, folder: Path, **about: Mapping[str, Any]) -> None:
    """Write the two files and sync them."""
    server, server_tensors = wire.flatten(snapshot.server)
    kept, kept_tensors = wire.flatten({str(index): rows for index, rows in enumerate(snapshot.kept_models)})
    states, _ = wire.flatten(snapshot.clients.empty_states)
    entries = [
        *((f"server/{index}", tensor, None) for index, tensor in enumerate(server_tensors)),
        *((f"kept/{index}", tensor, None) for index, tensor in enumerate(kept_tensors)),
        *((f"clients/{name}", block, snapshot.clients.slots) for name, block in snapshot.clients.blocks()),
    ]
    record = {
        "format": FORMAT,
        "number": snapshot.number,
        **about,
        "server": server,
        "kept": kept,
        "clients": snapshot.clients.clients,
        "states": states,
        "record": snapshot.record,
        "state_sha256": write_tensors(folder / STATE, entries),
    }
    text = json.dumps(record)
    digest = hashlib.sha256(text.encode()).hexdigest()
    with (folder / RECORD).open("w", encoding="utf-8") as file:
        file.write(f'{{"sha256": "{digest}", "content": {text}}}\n')
        file.flush()
        os.fsync(file.fileno())


def read_verified_record(folder: Path) -> dict[str, Any]:
    """Return the record if both files have the hashes that were written."""
    outer = json.loads((folder / RECORD).read_text(encoding="utf-8"))
    content: dict[str, Any] = outer["content"]
    if hashlib.sha256(json.dumps(content).encode()).hexdigest() != outer["sha256"]:
        raise ValueError(f"{RECORD} was changed after it was written")
    with (folder / STATE).open("rb") as file:
        if hashlib.file_digest(file, "sha256").hexdigest() != content["state_sha256"]:
            raise ValueError(f"{STATE} was changed after it was written")
    return content


def read(folder: Path) -> LoadedCheckpoint:
    """Read a checkpoint; raise one of `DAMAGE_ERRORS` if it is damaged."""
    content = read_verified_record(folder)
    if content["format"] != FORMAT:
        raise InputError(
            f"the checkpoint {str(folder)!r} was written by another version of Bespoke (its format is "
            f"{in_brief(repr(content['format']))}, not {FORMAT}): resume with that version, or start again in another "
            "directory."
        )
    tensors = load_file(folder / STATE)

    def group(prefix: str) -> Any:
        count = sum(name.startswith(f"{prefix}/") for name in tensors)
        return wire.unflatten(content[prefix], [tensors[f"{prefix}/{index}"] for index in range(count)])

    states: State = {}
    for name, kind, meta in content["states"]:
        if kind == "rows":
            blocks = [tensors[f"clients/{name}/{layer}"] for layer in meta[0]]
            (value,) = wire.unflatten([[name, kind, meta]], blocks).values()
            states[name] = Rows(value.layout, value.blocks, size=len(content["clients"]))
        else:
            states[name] = tensors[f"clients/{name}"]
    return LoadedCheckpoint(
        number=content["number"],
        server=group("server"),
        clients=content["clients"],
        states=states,
        kept_models=list(group("kept").values()),
        record=content["record"] | {key: content[key] for key in ("identity", "made_with")},
    )


def check_plausible(loaded: LoadedCheckpoint, rounds: int, clients: int) -> None:
    """Raise an error for contents that no run of this size can have: the hashes do not protect against forgery."""
    if type(loaded.number) is not int or not 0 < loaded.number <= rounds:
        raise ValueError(f"it is of round {in_brief(repr(loaded.number))} of {rounds}")
    known = [client for client in loaded.clients if type(client) is int and 0 <= client < clients]
    if len(set(known)) < len(loaded.clients) or any(len(state) != len(known) for state in loaded.states.values()):
        raise ValueError(f"its states are not those of some of {clients} clients")
    for key, kind in RECORD_TYPES.items():
        if not isinstance(loaded.record[key], kind):
            raise TypeError(f"its {key} is no {kind.__name__}")
    lines = [*loaded.record["history"], *loaded.record["client_notes"]]
    if len(loaded.record["history"]) != loaded.number or not all(isinstance(line, dict) for line in lines):
        raise ValueError("its history does not match its rounds")
    seconds = loaded.record["seconds"]
    if len(seconds) != loaded.number or not all(type(one) in (int, float) for one in seconds):
        raise ValueError("its seconds do not match its rounds")


@contextmanager
def reject_if_altered(loaded: LoadedCheckpoint) -> Iterator[None]:
    """Explain errors that restoring a forged checkpoint raises in this context."""
    try:
        yield
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise InputError(
            f"the checkpoint of round {loaded.number} was altered and cannot be restored ({in_brief(error)}): delete "
            "its directory to resume from the previous one."
        ) from error
