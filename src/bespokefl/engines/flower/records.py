"""Values as Flower's records: one config record with a JSON text, one array record with all tensors' bytes.

All tensors travel as one array, because Flower sends every array on its own: a model of thirty tensors would take
sixty requests.
"""

from collections.abc import Mapping
from typing import Any

from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

from bespokefl.engines.flower import blob
from bespokefl.engines.flower.blob import UnreadableError

HEADER, TENSORS, KEY = "header", "tensors", "values"


def pack(values: Mapping[str, Any]) -> RecordDict:
    text, data = blob.write(values)
    array = Array(dtype="uint8", shape=(len(data),), stype="bytes", data=data)
    return RecordDict({HEADER: ConfigRecord({KEY: text}), TENSORS: ArrayRecord({KEY: array})})


def unpack(records: RecordDict) -> dict[str, Any]:
    """The values again; `UnreadableError` if these are no such records."""
    try:
        text, data = records[HEADER][KEY], records[TENSORS][KEY].data  # type: ignore[union-attr]
    except (KeyError, AttributeError, TypeError):
        raise UnreadableError("the records are not those of Bespoke") from None
    if not isinstance(text, str) or not isinstance(data, bytes):
        raise UnreadableError("the records are not those of Bespoke")
    return blob.read(text, data)
