"""Values as Flower's records: what is the same for all nodes in one, everything else in another.

Flower sends every record by a request of its own, and one that several messages have in common only once. So there
are few of them, and the model that all nodes are sent goes to the SuperLink a single time.
"""

from collections.abc import Mapping
from typing import Any

from flwr.app import ConfigRecord, RecordDict

from bespokefl.engines.transports.flower import blob
from bespokefl.engines.transports.flower.blob import UnreadableError

ALIKE, OWN = "alike", "own"
SAME = ("plan", "fingerprint", "start", "common", "shared")  # what is named so, or so and a slash, is told to all
TEXT, DATA = "text", "data"
PIECE = 16 << 20  # bytes in one record


def pack(values: Mapping[str, Any]) -> RecordDict:
    groups: dict[str, dict[str, Any]] = {OWN: {}}
    for name, value in values.items():
        groups.setdefault(ALIKE if name.partition("/")[0] in SAME else OWN, {})[name] = value
    records = RecordDict()
    for group, own in groups.items():
        text, data = blob.write(own)
        records[group] = ConfigRecord({TEXT: text, DATA: data[:PIECE]})
        for number, at in enumerate(range(PIECE, len(data), PIECE), start=1):
            records[f"{group}-{number}"] = ConfigRecord({DATA: data[at : at + PIECE]})
    return records


def unpack(records: RecordDict) -> dict[str, Any]:
    """The values again; `UnreadableError` if these are no such records."""
    return (_read(records, ALIKE) if ALIKE in records else {}) | _read(records, OWN)


def _read(records: RecordDict, group: str) -> dict[str, Any]:
    try:
        text: Any = records[group][TEXT]
        pieces: list[Any] = [records[group][DATA]]
        while f"{group}-{len(pieces)}" in records:
            pieces.append(records[f"{group}-{len(pieces)}"][DATA])
    except (KeyError, TypeError):
        raise UnreadableError("the records are not those of Bespoke") from None
    if not isinstance(text, str) or not all(isinstance(piece, bytes) for piece in pieces):
        raise UnreadableError("the records are not those of Bespoke")
    return blob.read(text, pieces[0] if len(pieces) == 1 else b"".join(pieces))
