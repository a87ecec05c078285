"""What a model is worth to each client: scores per client, never NaN or infinity without a word."""

import torch
from torch import Tensor

from bespokefl.core.errors import TrainingError, listing
from bespokefl.engines.client import PARTS, Data

Scores = dict[str, Tensor]  # "test_accuracy", "validation_loss", … -> one value per client; NaN: no data
COURSE = ("loss", "accuracy")  # what is followed over the rounds; the rest is known of the last one only


def refuse_non_finite(scores: Scores, data: Data, number: int) -> None:
    """A loss that is not finite though there are data: the training has failed."""
    for part in PARTS:
        loss = scores[f"{part}_loss"]
        bad = torch.isinf(loss) | (torch.isnan(loss) & (getattr(data, part).sizes > 0))
        if bad.any():
            names = [data.names[i] for i in bad.nonzero().flatten().tolist()]
            raise TrainingError(
                f"the {part} loss became non-finite by round {number} for clients {listing(names)}: "
                "use a smaller learning rate."
            )


def means(scores: Scores) -> dict[str, float | None]:
    """The mean loss and accuracy over clients that have data, for the course of a run; None if nobody has."""
    found = {name: values[~torch.isnan(values)] for name, values in scores.items() if name.endswith(COURSE)}
    return {name: float(values.mean()) if len(values) else None for name, values in found.items()}
