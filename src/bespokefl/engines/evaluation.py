"""What a model is worth to each client: scores per client, never NaN or infinity without a word."""

import logging
from collections.abc import Sequence

import torch
from torch import Tensor

from bespokefl.core.errors import TrainingError, listing
from bespokefl.engines.client import PARTS, Data

log = logging.getLogger("bespokefl")

Scores = dict[str, Tensor]  # "test_accuracy", "validation_loss", … -> one value per client; NaN: no data
COURSE = ("loss", "accuracy")  # what is followed over the rounds; the rest is known of the last one only


def refuse_non_finite(scores: Scores, data: Data, number: int) -> None:
    """A loss that is not finite though there are data: the training has failed. Test data stop nothing."""
    for part in PARTS:
        names = non_finite(scores[f"{part}_loss"], getattr(data, part).sizes, data.names)
        if names and part != "test":
            raise TrainingError(
                f"the {part} loss became non-finite by round {number} for clients {listing(names)}: "
                "use a smaller learning rate."
            )
        if names:
            log.warning("the test loss is not finite in round %d for clients %s", number, listing(names))
            scores["test_loss"] = scores["test_loss"].masked_fill(~torch.isfinite(scores["test_loss"]), torch.nan)


def non_finite(loss: Tensor, sizes: Tensor, names: Sequence[str]) -> list[str]:
    """The clients that have data but no finite loss on them."""
    return [names[i] for i in without_number(loss, sizes).nonzero().flatten().tolist()]


def without_number(loss: Tensor, sizes: Tensor) -> Tensor:
    """Which losses are not finite though there are data: NaN says that there are none."""
    return torch.isinf(loss) | (torch.isnan(loss) & (sizes > 0))


def means(scores: Scores) -> dict[str, float | None]:
    """The mean loss and accuracy over clients that have data, for the course of a run; None if nobody has."""
    found = {name: values[~torch.isnan(values)] for name, values in scores.items() if name.endswith(COURSE)}
    return {name: float(values.mean()) if len(values) else None for name, values in found.items()}
