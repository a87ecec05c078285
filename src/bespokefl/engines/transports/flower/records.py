"""Converts values to Flower's records and back: one record for what all nodes receive alike, one for the rest.

Flower sends each record with a request of its own, and a record that several messages share only once. Hence there are
few of them, and a model for all nodes is uploaded to the SuperLink a single time.
"""

from collections.abc import Mapping
from typing import Any

from flwr.app import ConfigRecord, RecordDict

from bespokefl.engines.transports.flower import blob
from bespokefl.engines.transports.flower.blob import UnreadableError

COMMON, OWN = "alike", "own"  # names of records
COMMON_NAMES = ("plan", "fingerprint", "start", "common", "shared")  # values with such a name, or below it: shared/x
TEXT, DATA = "text", "data"
MAX_BYTES = 16 << 20  # in one record


def pack(values: Mapping[str, Any]) -> RecordDict:
    """Convert values to records."""
    groups: dict[str, dict[str, Any]] = {OWN: {}}
    for name, value in values.items():
        groups.setdefault(COMMON if name.partition("/")[0] in COMMON_NAMES else OWN, {})[name] = value
    records = RecordDict()
    for group, content in groups.items():
        text, data = blob.encode(content)
        records[group] = ConfigRecord({TEXT: text, DATA: data[:MAX_BYTES]})
        for number, start in enumerate(range(MAX_BYTES, len(data), MAX_BYTES), start=1):
            records[f"{group}-{number}"] = ConfigRecord({DATA: data[start : start + MAX_BYTES]})
    return records


def unpack(records: RecordDict) -> dict[str, Any]:
    """Convert records to values; raise `UnreadableError` if `pack` has not made them."""
    return (_read(records, COMMON) if COMMON in records else {}) | _read(records, OWN)


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
    return blob.decode(text, pieces[0] if len(pieces) == 1 else b"".join(pieces))
