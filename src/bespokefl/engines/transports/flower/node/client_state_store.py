"""What a node stores of one run: the states of its clients and its last replies.

Each round in which the node trained has a file, `round-00000012.safetensors`, with the new state of each client that
trained and the reply that was sent. The server names the round of the state to continue from, so that a client whose
reply did not count goes back; a request that is received twice is answered with the stored reply.
"""

import json
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from bespokefl.core.errors import TrainingError, listing
from bespokefl.core.method import State
from bespokefl.core.rows import concatenate
from bespokefl.engines.storage.safetensors_writer import replace_tensors
from bespokefl.engines.transports import wire
from bespokefl.engines.transports.wire import Values

log = logging.getLogger("bespokefl")

METADATA = "bespoke"
NUM_STATES = 2  # of a client that are kept: the one that the server accepted last, and the one before
LATEST_STATE = -1  # instead of a round: the client's newest state, whether or not the server accepted it
DAMAGE_ERRORS = (OSError, SafetensorError, ValueError, KeyError, TypeError)


class ClientStateStore:
    """The stored rounds of one run at one node."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._rounds: dict[str, list[int]] = {}  # by client: the rounds with a state of it, oldest first
        self._clients: dict[int, set[str]] = {}  # by round: the clients whose states are still needed
        for path in sorted(folder.glob(f"round-{'[0-9]' * 8}.safetensors")):
            try:
                with safe_open(path, framework="pt") as file:
                    clients = json.loads(file.metadata()[METADATA])["clients"]
            except DAMAGE_ERRORS as error:
                log.warning("%s is damaged (%s) and is not used", path, error)
                continue
            self._add(int(path.stem.removeprefix("round-")), clients)

    def load_states(
        self, clients: Sequence[str], accepted: Sequence[int], before: int
    ) -> list[tuple[list[int], State]]:
        """Load the states of clients, as positions and their states; clients without a state are left out.

        accepted  by client: the round whose state it continues from, 0 for none yet, or `LATEST_STATE`
        before    the round that is to be trained: `LATEST_STATE` is that of an earlier one
        """
        wanted: dict[int, list[int]] = {}
        for position, (client, number) in enumerate(zip(clients, accepted, strict=True)):
            stored = self._rounds.get(client, [])
            if number == LATEST_STATE:
                number = max((one for one in stored if one < before), default=0)
            elif number and number not in stored:
                raise TrainingError(
                    f"client {client} has no state of round {number}, which the server accepted, in "
                    f"{str(self.folder)!r}: restore that directory."
                )
            if number:
                wanted.setdefault(number, []).append(position)
        return [
            (positions, self._read_states(number, [clients[position] for position in positions]))
            for number, positions in wanted.items()
        ]

    def has_round(self, number: int) -> bool:
        """Whether the node trained in a round, as far as it still knows: it keeps the newest ones."""
        return number in self._clients

    def find_reply(self, number: int, digest: str) -> Values | None:
        """The reply to the request with this digest, if the node has sent one."""
        path = self._path(number)
        if number not in self._clients or not path.is_file():
            return None
        with safe_open(path, framework="pt") as file:
            metadata = json.loads(file.metadata()[METADATA])
            return _read_group(file, metadata, "reply") if metadata["digest"] == digest else None

    def save_round(self, number: int, clients: Sequence[str], state: State, reply: Values, digest: str) -> None:
        """Write the states and the reply of a round, completely or not at all."""
        metadata: dict[str, Any] = {"clients": list(clients), "digest": digest}
        entries = []
        for name, values in (("state", state), ("reply", reply)):
            metadata[name], tensors = wire.flatten(values)
            entries += [(f"{name}/{index}", tensor, None) for index, tensor in enumerate(tensors)]
        try:
            replace_tensors(self._path(number), entries, {METADATA: json.dumps(metadata)})
        except OSError as error:
            raise TrainingError(
                f"cannot write the states of {listing(list(clients))} to {str(self.folder)!r}: "
                f"{error.strerror or error}; free some space there."
            ) from None
        self._add(number, clients)

    def discard_older(self, clients: Sequence[str], accepted: Sequence[int]) -> None:
        """Delete the states that the server will not ask for again, given the rounds that it accepted."""
        for client, number in zip(clients, accepted, strict=True):
            stored = self._rounds.get(client, [])
            final = [one for one in stored if number == LATEST_STATE or one <= number]
            for old in final[:-NUM_STATES]:
                stored.remove(old)
                self._clients[old].discard(client)
        newest = max(self._clients, default=0)
        for number in [one for one, needed in self._clients.items() if not needed and one != newest]:
            self._path(number).unlink(missing_ok=True)
            del self._clients[number]

    # -- inside

    def _path(self, number: int) -> Path:
        return self.folder / f"round-{number:08d}.safetensors"

    def _add(self, number: int, clients: Sequence[str]) -> None:
        self._clients.setdefault(number, set()).update(clients)
        for client in clients:
            self._rounds[client] = sorted({*self._rounds.get(client, ()), number})

    def _read_states(self, number: int, clients: Sequence[str]) -> State:
        try:
            with safe_open(self._path(number), framework="pt") as file:
                metadata = json.loads(file.metadata()[METADATA])
                position = {client: row for row, client in enumerate(metadata["clients"])}
                rows = torch.tensor([position[client] for client in clients])
                return {name: value[rows] for name, value in _read_group(file, metadata, "state").items()}
        except DAMAGE_ERRORS as error:
            raise TrainingError(f"cannot read {str(self._path(number))!r}: {error}.") from None


def merge_by_position(parts: Sequence[tuple[Sequence[int], State]], size: int) -> State:
    """States of some positions each, merged in the order of the positions."""
    if len(parts) == 1 and list(parts[0][0]) == list(range(size)):
        return parts[0][1]
    order = torch.tensor([position for positions, _ in parts for position in positions]).argsort()
    return {name: concatenate([state[name] for _, state in parts])[order] for name in (parts[0][1] if parts else {})}


def _read_group(file: Any, metadata: dict[str, Any], group: str) -> dict[str, Any]:
    header = metadata[group]
    count = sum(len(meta[0]) if kind == "rows" else kind == "tensor" for _, kind, meta in header)
    return wire.unflatten(header, [file.get_tensor(f"{group}/{index}") for index in range(count)])
