"""What nodes answered, brought into the form that a round is made of; answers in another form are refused."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from bespokefl.core.method import State
from bespokefl.core.rows import Rows
from bespokefl.engines.client import PARTS
from bespokefl.engines.evaluation import Scores, without_number
from bespokefl.engines.storage.client_states import concatenate
from bespokefl.engines.transports import wire
from bespokefl.engines.transports.flower.client_state_store import merge_by_position
from bespokefl.engines.transports.wire import Values, under

TOGETHER = 1 << 30  # bytes of uploads that are put together into one matrix


def pieces(part: Sequence[int], reports: Sequence[bool], values: Values) -> list[tuple[list[int], Values]] | None:
    """A node's answer, for those that report and for those that do not; None if it is not in the right form."""
    broken, upload = values.get("broken"), under("upload", values)
    count = sum(reports)
    if "error" in values or not isinstance(broken, Tensor) or broken.shape != (len(part),):
        return None
    if not fits(upload, count, least=0):
        return None
    found = []
    for reporting in (True, False):
        places = [at for at, one in enumerate(reports) if one == reporting]
        if places:
            # what is not finite is refused by the screening, like every other upload that cannot be used
            own: Values = {"broken": torch.zeros(len(places), dtype=torch.bool)}
            if reporting:
                own |= {f"upload/{name}": value for name, value in upload.items()}
            found.append(([part[at] for at in places], own))
    return found


def in_order(pieces: list[tuple[list[int], Values]], sizes: Sequence[int]) -> list[tuple[list[int], Values]]:
    """The same, whatever the order of the answers and whoever lives where: as the simulation has it, largest first.

    Answers that do not look alike, or are too large to be put together, stay apart, node by node.
    """
    alike: dict[object, list[tuple[list[int], Values]]] = {}
    for piece in pieces:
        large = wire.size(piece[1])[0] > TOGETHER / len(pieces)
        alike.setdefault((_looks(piece[1]), piece[0][0] if large else None), []).append(piece)
    found = []
    for group in alike.values():
        clients = [client for part, _ in group for client in part]
        order = sorted(range(len(clients)), key=lambda at: (-sizes[clients[at]], clients[at]))
        index = torch.tensor(order)
        values = {name: concatenate([one[name] for _, one in group])[index] for name in group[0][1]}
        found.append(([clients[at] for at in order], values))
    return sorted(found, key=lambda piece: piece[0][0])


def spread(parts: Sequence[tuple[Sequence[int], State]], size: int) -> Scores:
    """Scores of some clients as scores of all; NaN for the others."""
    heard = [client for part, _ in parts for client in part]
    found = (
        merge_by_position([(list(part), dict(scores)) for part, scores in parts], size) if len(heard) == size else None
    )
    if found is not None:
        return found
    scores: Scores = {}
    for part, own in parts:
        for name, values in own.items():
            scores.setdefault(name, torch.full((size,), torch.nan, dtype=values.dtype))[torch.tensor(part)] = values
    return scores


def scored(values: Values, kind: str, sizes: Sequence[Tensor]) -> tuple[Scores, list[int]] | None:
    """What a node says of its clients' models, and at which places it says no number: there is no score then.

    None if it does not say it in the right form. `sizes` are the clients' train, validation and test examples.
    """
    scores, (train, validation, _) = under(kind, values), sizes
    if "error" in values or not fits(scores, len(train)) or not scores.keys() >= {f"{part}_loss" for part in PARTS}:
        return None
    if any(isinstance(value, Rows) or value.dim() > 1 for value in scores.values()):
        return None
    bad = without_number(scores["train_loss"], train) | without_number(scores["validation_loss"], validation)
    # test data stop nothing: a test loss without a number is as one without data
    known = {name: value.double().masked_fill(bad | torch.isinf(value), torch.nan) for name, value in scores.items()}
    return known, bad.nonzero().flatten().tolist()


def fits(values: Mapping[str, Any], size: int, least: int = 1) -> bool:
    """Whether these are rows or tensors with a place for each of so many clients."""
    return len(values) >= least and all(
        isinstance(value, Rows | Tensor) and (isinstance(value, Rows) or value.dim() > 0) and len(value) == size
        for value in values.values()
    )


def _looks(values: Values) -> object:
    """What rows and tensors look like, but for the number of clients."""
    return tuple(
        (name, value.layout, tuple(block.dtype for block in value.blocks))
        if isinstance(value, Rows)
        else (name, tuple(value.shape[1:]), value.dtype)
        for name, value in sorted(values.items())
    )
