"""Check the history of a run: every accepted upload is counted exactly once, and no committed round is lost."""

import json
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.torture.recorded import CLIENTS, SERVER

Entry = Mapping[str, Any]


@dataclass(frozen=True)
class History:
    """What was written of a run, in the order in which it happened."""

    server: Sequence[Entry]  # aggregations: round, uploads, before, after
    clients: Sequence[Entry]  # trainings: client, round, upload, from, to

    @classmethod
    def read(cls, folder: Path) -> "History":
        """The history in a directory."""

        def lines(file: str) -> list[Entry]:
            path = folder / file
            return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

        return cls(lines(SERVER), lines(CLIENTS))

    def committed(self) -> dict[int, Entry]:
        """By round: the aggregation that counts, which is the last one."""
        return {entry["round"]: entry for entry in self.server}


def violations(history: History, rounds: int, lost: Mapping[str, Mapping[str, int]], names: Sequence[str]) -> list[str]:
    """What is wrong with the history of a finished run; `lost` is that of its result."""
    return [
        *_server_violations(history, rounds),
        *_count_violations(history, rounds, lost, names),
        *_client_violations(history),
    ]


def _server_violations(history: History, rounds: int) -> list[str]:
    """A round may be computed again while it is the last one; after it, the next one follows."""
    found = []
    last: Entry | None = None
    for entry in history.server:
        number = entry["round"]
        if last is not None and number == last["round"]:
            if entry["before"] != last["before"]:
                found.append(f"round {number} was repeated from another state")
        elif last is not None and number < last["round"]:
            found.append(f"round {number} was computed after round {last['round']} had been committed")
        elif last is not None and entry["before"] != last["after"]:
            found.append(f"round {number} does not start where round {last['round']} ended")
        last = entry
    if last is not None and last["round"] > rounds:
        found.append(f"round {last['round']} of {rounds} was computed")
    return found


def _count_violations(
    history: History, rounds: int, lost: Mapping[str, Mapping[str, int]], names: Sequence[str]
) -> list[str]:
    """In every round, each client is either counted once or reported as lost."""
    found = []
    counted: Counter[str] = Counter()
    for number, entry in history.committed().items():
        own = Counter(client for client, _ in entry["uploads"])
        found += [
            f"client {client} counts {times} times in round {number}" for client, times in own.items() if times > 1
        ]
        counted.update(own.keys())
    for client in names:
        reported = sum(lost.get(client, {}).values())
        if counted[client] + reported != rounds:
            found.append(
                f"client {client} counts in {counted[client]} of {rounds} rounds, and {reported} are reported lost"
            )
    return found


def _client_violations(history: History) -> list[str]:
    """Each upload that counts was computed for its round, from the client's state of its last upload that counts."""
    trainings: dict[tuple[str, int], list[Entry]] = defaultdict(list)
    states: dict[str, set[str]] = {}  # by client: in which it may be
    for entry in history.clients:
        trainings[entry["client"], entry["round"]].append(entry)
        states.setdefault(entry["client"], {entry["from"]})
    found = []
    for number, committed in sorted(history.committed().items()):
        for client, upload in committed["uploads"]:
            own = [entry for entry in trainings[client, number] if entry["upload"] == upload]
            if not own:
                found.append(f"round {number} counts an upload of client {client} that it did not compute for it")
                continue
            reached = {entry["to"] for entry in own if entry["from"] in states[client]}
            if not reached:
                found.append(f"client {client} did not continue in round {number} where it was")
            states[client] = reached or {entry["to"] for entry in own}
    return found


def differences(history: History, undisturbed: History) -> list[str]:
    """In which rounds a run differs from an undisturbed one."""
    own, other = history.committed(), undisturbed.committed()
    if own.keys() != other.keys():
        return [f"it has rounds {sorted(own)}, undisturbed {sorted(other)}"]
    return [
        f"round {number} differs from the undisturbed run in its {what}"
        for number in sorted(own)
        for what in ("uploads", "after")
        if own[number][what] != other[number][what]
    ][:3]
