"""Convert the replies of nodes into those of a transport; malformed replies are rejected."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from bespokefl.core.rows import Rows
from bespokefl.engines.client import PARTS
from bespokefl.engines.evaluation import Scores
from bespokefl.engines.storage.client_states import concatenate
from bespokefl.engines.transports import wire
from bespokefl.engines.transports.protocol import ScoreReply, ScoreRequest, TrainReply
from bespokefl.engines.transports.wire import Values, under

JOINED_BYTES = 1 << 30  # of uploads that are joined into one matrix


def training_replies(clients: Sequence[int], reports: Collection[int], values: Values) -> list[TrainReply] | None:
    """A node's reply, for clients that report and for those that do not; None if it is malformed."""
    broken, upload = values.get("broken"), under("upload", values)
    reporting = [client in reports for client in clients]
    if "error" in values or not isinstance(broken, Tensor) or broken.shape != (len(clients),):
        return None
    if not fits(upload, sum(reporting), least=0):
        return None
    found = []
    for wanted in (True, False):
        positions = [at for at, one in enumerate(reporting) if one == wanted]
        if positions:
            # uploads that are not finite are rejected by the screening, like all others that cannot be used
            found.append(TrainReply([clients[at] for at in positions], upload if wanted else {}, {}, broken[positions]))
    return found


def in_canonical_order(replies: Sequence[TrainReply], sizes: Sequence[int]) -> list[TrainReply]:
    """Join replies and sort clients as the simulation does, largest first, whatever the order of arrival.

    Replies of different shapes, or too large to be joined, stay apart.
    """
    groups: dict[object, list[TrainReply]] = {}
    for reply in replies:
        large = wire.size(reply.upload)[0] > JOINED_BYTES / len(replies)
        groups.setdefault((_shape(reply.upload), reply.clients[0] if large else None), []).append(reply)
    found = []
    for group in groups.values():
        clients = [client for reply in group for client in reply.clients]
        order = sorted(range(len(clients)), key=lambda at: (-sizes[clients[at]], clients[at]))
        index = torch.tensor(order)
        upload = {name: concatenate([reply.upload[name] for reply in group])[index] for name in group[0].upload}
        broken = torch.cat([reply.broken for reply in group])[index]
        found.append(TrainReply([clients[at] for at in order], upload, {}, broken))
    return sorted(found, key=lambda reply: reply.clients[0])


def score_reply(request: ScoreRequest, values: Values) -> ScoreReply | None:
    """A node's scores; None if they are missing or malformed."""
    personal, globally = (_scores(values, kind, len(request.clients)) for kind in ("score", "common"))
    if personal is None:
        return None
    if request.message is None:  # the node scored one model, everybody's
        return ScoreReply(request.clients, None, personal)
    return ScoreReply(request.clients, personal, globally)


def _scores(values: Values, kind: str, size: int) -> Scores | None:
    scores = under(kind, values)
    if "error" in values or not fits(scores, size) or not scores.keys() >= {f"{part}_loss" for part in PARTS}:
        return None
    if any(isinstance(value, Rows) or value.dim() > 1 for value in scores.values()):
        return None
    return {name: value.double() for name, value in scores.items()}


def fits(values: Mapping[str, Any], size: int, least: int = 1) -> bool:
    """Whether these are rows or tensors with one entry for each of `size` clients."""
    return len(values) >= least and all(
        isinstance(value, Rows | Tensor) and (isinstance(value, Rows) or value.dim() > 0) and len(value) == size
        for value in values.values()
    )


def _shape(values: Values) -> object:
    """The shapes and dtypes of rows and tensors, without the number of clients."""
    return tuple(
        (name, value.layout, tuple(block.dtype for block in value.blocks))
        if isinstance(value, Rows)
        else (name, tuple(value.shape[1:]), value.dtype)
        for name, value in sorted(values.items())
    )
