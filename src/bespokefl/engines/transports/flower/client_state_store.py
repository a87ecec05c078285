"""What a node keeps on disk of one run: its clients' states, and its last replies.

A file for every round that the node trained in, `round-00000012.safetensors`: the new state of each client that
trained, and the reply that was sent. A state is named by the round that made it, so that a client can go back to the
one that the server knows of; a request that comes twice finds its reply. Files are written aside, synced and renamed.
"""

import json
import logging
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from bespokefl.core.errors import TrainingError, listing
from bespokefl.core.method import State
from bespokefl.core.rows import Rows
from bespokefl.engines.storage.safetensors_writer import write_tensors
from bespokefl.engines.transports import wire
from bespokefl.engines.transports.flower.blob import plain
from bespokefl.engines.transports.wire import Values

log = logging.getLogger("bespokefl")

NAME = re.compile(r"round-(\d{8})\.safetensors")
ABOUT = "bespoke"
KEPT = 2  # states of a client: the one that the server accepted last, and the one before
LATEST = -1  # instead of a round: whatever the client did last


class ClientStateStore:
    """The rounds of one run at one node."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._rounds: dict[str, list[int]] = {}  # by client: the rounds that left a state, oldest first
        self._needed: dict[int, set[str]] = {}  # by round: the clients whose states are still wanted
        for path in sorted(folder.glob("round-*.safetensors")) if folder.is_dir() else ():
            found = NAME.fullmatch(path.name)
            try:
                about = _about(path)
            except (OSError, SafetensorError, ValueError, KeyError, TypeError) as error:
                log.warning("%s is damaged (%s) and is not used", path, error)
                continue
            if found:
                self._note(int(found[1]), about["clients"])

    def states(self, clients: Sequence[str], accepted: Sequence[int], before: int) -> list[tuple[list[int], State]]:
        """Positions and their states, round by round; clients that never were in an accepted one are left out.

        accepted    by client: the round whose state it goes on from; 0: none yet; LATEST: its last one
        before      the round that is asked for
        """
        wanted: dict[int, list[int]] = {}
        for at, (client, number) in enumerate(zip(clients, accepted, strict=True)):
            known = self._rounds.get(client, [])
            if number == LATEST:
                number = max((one for one in known if one < before), default=0)
            elif number and number not in known:
                raise TrainingError(
                    f"client {client} has no state of round {number}, which the server accepted, in "
                    f"{str(self.folder)!r}: put that folder back."
                )
            if number:
                wanted.setdefault(number, []).append(at)
        return [(places, self._read(number, [clients[at] for at in places])) for number, places in wanted.items()]

    def reply(self, number: int, digest: str) -> Values | None:
        """The reply to this very request, if it was answered before."""
        path = self._path(number)
        if number not in self._needed or not path.is_file():
            return None
        with safe_open(path, framework="pt") as file:
            about = json.loads(file.metadata()[ABOUT])
            if about["digest"] != digest:
                return None
            return _group(file, about, "reply")

    def put(self, number: int, clients: Sequence[str], state: State, reply: Values, digest: str) -> None:
        """Keep a round: there whole, or not at all."""
        about: dict[str, Any] = {"clients": list(clients), "digest": digest}
        entries = []
        for name, values in (("state", state), ("reply", reply)):
            about[name], tensors = wire.flatten(values)
            entries += [(f"{name}/{at}", plain(tensor), None) for at, tensor in enumerate(tensors)]
        path = self._path(number)
        aside = path.with_name(f".{path.name}.{os.getpid()}")
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            write_tensors(aside, entries, {ABOUT: json.dumps(about)})
            aside.replace(path)
            _sync(self.folder)
        except OSError as error:
            aside.unlink(missing_ok=True)
            raise TrainingError(
                f"the states of {listing(list(clients))} cannot be kept in {str(self.folder)!r}: "
                f"{error.strerror or error}; make room there."
            ) from None
        self._note(number, clients)

    def settle(self, clients: Sequence[str], accepted: Sequence[int]) -> None:
        """The server stands by these rounds: what is older will not be asked for again."""
        for client, number in zip(clients, accepted, strict=True):
            known = self._rounds.get(client, [])
            settled = [one for one in known if number == LATEST or one <= number]
            for old in settled[:-KEPT]:
                known.remove(old)
                self._needed[old].discard(client)
        newest = max(self._needed, default=0)
        for number in [one for one, who in self._needed.items() if not who and one != newest]:
            self._path(number).unlink(missing_ok=True)
            del self._needed[number]

    # -- inside

    def _path(self, number: int) -> Path:
        return self.folder / f"round-{number:08d}.safetensors"

    def _note(self, number: int, clients: Sequence[str]) -> None:
        self._needed.setdefault(number, set()).update(clients)
        for client in clients:
            known = self._rounds.setdefault(client, [])
            if number not in known:
                known.append(number)
                known.sort()

    def _read(self, number: int, clients: Sequence[str]) -> State:
        try:
            with safe_open(self._path(number), framework="pt") as file:
                about = json.loads(file.metadata()[ABOUT])
                place = {client: at for at, client in enumerate(about["clients"])}
                rows = torch.tensor([place[client] for client in clients])
                return {name: value[rows] for name, value in _group(file, about, "state").items()}
        except (OSError, SafetensorError, ValueError, KeyError, TypeError) as error:
            raise TrainingError(f"{str(self._path(number))!r} cannot be read: {error}.") from None


def stack(parts: Sequence[tuple[Sequence[int], State]], size: int) -> State:
    """States of some positions each, put together in the order of the positions."""
    if len(parts) == 1 and list(parts[0][0]) == list(range(size)):
        return parts[0][1]
    order = torch.tensor([at for places, _ in parts for at in places]).argsort()
    return {name: join([state[name] for _, state in parts])[order] for name in (parts[0][1] if parts else {})}


def join(values: Sequence[Any]) -> Any:
    if len(values) == 1:
        return values[0]
    return Rows.cat(values) if isinstance(values[0], Rows) else torch.cat(list(values))


def _about(path: Path) -> dict[str, Any]:
    with safe_open(path, framework="pt") as file:
        found: dict[str, Any] = json.loads(file.metadata()[ABOUT])
    return found


def _group(file: Any, about: dict[str, Any], group: str) -> dict[str, Any]:
    header = about[group]
    count = sum(len(meta[0]) if kind == "rows" else kind == "tensor" for _, kind, meta in header)
    return wire.unflatten(header, [file.get_tensor(f"{group}/{at}") for at in range(count)])


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
