"""One checkpoint on disk: what a run is between two rounds, as two files, and how they are read.

`state.safetensors` has the tensors (the server's under "server/", the clients' under "clients/", a row for each client
that has been active), `record.json` everything else and the hashes of both.
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
PIECE = 1 << 24  # bytes that are read at once
FORMAT = ["bespoke checkpoint", 2]
KINDS = dict.fromkeys(("identity", "made_with", "communication", "lost"), dict) | dict.fromkeys(
    ("history", "client_notes", "by_client", "seconds"), list
)
DAMAGED = (  # what reading such a one can raise; another error of the disk is none of the checkpoint's
    FileNotFoundError,
    IsADirectoryError,
    NotADirectoryError,
    ValueError,
    LookupError,
    TypeError,
    AttributeError,
    RecursionError,
    SafetensorError,
)


@dataclass
class RunSnapshot:
    """A run between two rounds. Nothing in it changes any more."""

    number: int
    server: State
    clients: StatesSnapshot
    kept: Sequence[Rows] = ()  # the common model after each round
    record: dict[str, Any] = field(default_factory=dict)  # for JSON


@dataclass
class LoadedCheckpoint:
    """A checkpoint that was read."""

    number: int
    server: State
    clients: list[int]
    states: State
    kept: list[Rows]
    record: dict[str, Any]


def write(moment: RunSnapshot, folder: Path, **about: Mapping[str, Any]) -> None:
    """The two files, synced."""
    server, tensors = wire.flatten(moment.server)
    kept_header, kept_tensors = wire.flatten({f"{at}": rows for at, rows in enumerate(moment.kept)})
    like, _ = wire.flatten(moment.clients.like)
    entries = [
        *((f"server/{at}", tensor, None) for at, tensor in enumerate(tensors)),
        *((f"kept/{at}", tensor, None) for at, tensor in enumerate(kept_tensors)),
        *((f"clients/{name}", block, moment.clients.slots) for name, block in moment.clients.blocks()),
    ]
    record = {
        "format": FORMAT,
        "number": moment.number,
        **about,
        "server": server,
        "kept": kept_header,
        "clients": moment.clients.clients,
        "states": like,
        "record": moment.record,
        "state_sha256": write_tensors(folder / STATE, entries),
    }
    text = json.dumps(record)
    digest = hashlib.sha256(text.encode()).hexdigest()
    with (folder / RECORD).open("w", encoding="utf-8") as file:
        file.write(f'{{"sha256": "{digest}", "content": {text}}}\n')
        file.flush()
        os.fsync(file.fileno())


def verified(folder: Path) -> dict[str, Any]:
    """What the record says, if both files are what was written."""
    text = (folder / RECORD).read_text(encoding="utf-8")
    outer = json.loads(text)
    content: dict[str, Any] = outer["content"]
    if hashlib.sha256(json.dumps(content).encode()).hexdigest() != outer["sha256"]:
        raise ValueError(f"{RECORD} is not what was written")
    sha = hashlib.sha256()
    with (folder / STATE).open("rb") as file:
        while piece := file.read(PIECE):
            sha.update(piece)
    if sha.hexdigest() != content["state_sha256"]:
        raise ValueError(f"{STATE} is not what was written")
    return content


def read(folder: Path) -> LoadedCheckpoint:
    content = verified(folder)
    if content["format"] != FORMAT:
        raise InputError(
            f"the checkpoint {str(folder)!r} is whole, but written by another version of Bespoke (its format is "
            f"{in_brief(repr(content['format']))}, not {FORMAT}): go on with that version, or start again elsewhere."
        )
    tensors = load_file(folder / STATE)
    server = [tensors[f"server/{at}"] for at in range(sum(name.startswith("server/") for name in tensors))]
    kept = [tensors[f"kept/{at}"] for at in range(sum(name.startswith("kept/") for name in tensors))]
    states: State = {}
    for name, kind, meta in content["states"]:
        if kind == "rows":
            (value,) = wire.unflatten(
                [[name, kind, meta]], [tensors[f"clients/{name}/{one}"] for one in meta[0]]
            ).values()
            states[name] = Rows(value.layout, value.blocks, size=len(content["clients"]))
        else:
            states[name] = tensors[f"clients/{name}"]
    return LoadedCheckpoint(
        number=content["number"],
        server=wire.unflatten(content["server"], server),
        clients=content["clients"],
        states=states,
        kept=list(wire.unflatten(content["kept"], kept).values()),
        record=content["record"] | {key: content[key] for key in ("identity", "made_with")},
    )


def refuse_nonsense(found: LoadedCheckpoint, rounds: int, clients: int) -> None:
    """Hashes tell what was altered by accident; whoever writes them anew is still not believed everything."""
    if type(found.number) is not int or not 0 < found.number <= rounds:
        raise ValueError(f"it is of round {in_brief(repr(found.number))} of {rounds}")
    known = [client for client in found.clients if type(client) is int and 0 <= client < clients]
    if len(set(known)) < len(found.clients) or any(len(state) != len(known) for state in found.states.values()):
        raise ValueError(f"its states are not those of some of {clients} clients")
    for key, kind in KINDS.items():
        if not isinstance(found.record[key], kind):
            raise TypeError(f"its {key} is no {kind.__name__}")
    lines = [*found.record["history"], *found.record["client_notes"]]
    if len(found.record["history"]) != found.number or not all(isinstance(line, dict) for line in lines):
        raise ValueError("its history is not that of its rounds")
    seconds = found.record["seconds"]
    if len(seconds) != found.number or not all(type(one) in (int, float) for one in seconds):
        raise ValueError("its seconds are not those of its rounds")


@contextmanager
def understood(found: LoadedCheckpoint) -> Iterator[None]:
    """While a run becomes what a checkpoint says it was: what cannot be is told in a sentence."""
    try:
        yield
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise InputError(
            f"the checkpoint of round {found.number} was altered and cannot be understood ({in_brief(error)}): delete "
            "its folder to go on from the one before."
        ) from error
