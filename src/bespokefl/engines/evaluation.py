"""Scores of models, one value per client and metric, and what to do with values that are not finite."""

import logging
import math
from collections.abc import Collection, Sequence

import torch
from torch import Tensor

from bespokefl.core.client_index import PARTS
from bespokefl.core.errors import TrainingError, listing
from bespokefl.engines.client import Data
from bespokefl.engines.settings import FOLLOWED
from bespokefl.engines.storage.mapped_files import vacant

log = logging.getLogger("bespokefl")

Scores = dict[str, Tensor]  # "test_accuracy", "validation_loss", … -> one value per client; NaN: no data
MAX_FOLLOWED_CLIENTS = 1000  # of more clients, only means are recorded over the rounds


def refuse_non_finite(scores: Scores, data: Data, number: int) -> None:
    """Raise if a training or validation loss is not finite. Test data decide nothing: there it becomes NaN."""
    for part in PARTS:
        if f"{part}_loss" not in scores:  # skip_train_scores
            continue
        names = non_finite(scores[f"{part}_loss"], getattr(data, part).sizes, data.names)
        if names and part != "test":
            raise TrainingError(
                f"the {part} loss became non-finite by round {number} for clients {listing(names)}: "
                "use a smaller learning rate."
            )
        if names:
            log.warning("the test loss is not finite in round %d for clients %s", number, listing(names))
            scores["test_loss"] = scores["test_loss"].masked_fill(~torch.isfinite(scores["test_loss"]), torch.nan)


def unknown_scores(size: int) -> Scores:
    """The scores of clients that all give none."""
    return {
        f"{part}_{name}": torch.full((size,), torch.nan, dtype=torch.float64) for part in PARTS for name in FOLLOWED
    }


def check(
    both: tuple[Scores, Scores],
    data: Data,
    number: int,
    sources: tuple[Collection[int], Collection[int]],
    remote: bool,
) -> list[str]:
    """Check the scores of personal and global models: losses that are not finite end a simulation.

    `sources` are the clients that sent scores, and those that refused. In a deployment losses that are not finite are
    masked; returns the clients that have no scores because of this, did not answer, or refused.
    """
    scored, refused = sources
    personal, globally = both
    if not remote:
        for scores in (personal,) if personal is globally else (globally, personal):
            if scores:
                refuse_non_finite(scores, data, number)
        return []
    if not scored and not refused:
        raise TrainingError(f"no node answered when the models were to be scored after round {number}.")
    mask_non_finite(globally, data, scored)
    failed = mask_non_finite(personal, data, scored)
    if scored and len(failed) == len(scored):
        raise TrainingError(
            f"the loss of all clients became non-finite by round {number}: use a smaller learning rate."
        )
    unscored = [at for at in range(len(data.names)) if at not in scored or at in failed]
    silent = [data.names[at] for at in unscored if at not in refused]
    if silent:
        log.warning("clients %s did not report the scores of their models", listing(silent))
    return [data.names[at] for at in unscored]


def non_finite(loss: Tensor, sizes: Tensor, names: Sequence[str]) -> list[str]:
    """The clients that have data but no finite loss on them."""
    return [names[i] for i in without_number(loss, sizes).nonzero().flatten().tolist()]


def without_number(loss: Tensor, sizes: Tensor) -> Tensor:
    """Which losses are not finite although there are data; NaN is right where there are none."""
    return torch.isinf(loss) | (torch.isnan(loss) & (sizes > 0))


def mask_non_finite(scores: Scores, data: Data, clients: Collection[int]) -> set[int]:
    """Replace values that are not finite by NaN; returns those of the clients that have no finite loss to train on.

    A client without a finite training or validation loss has no scores at all.
    """
    if not scores:
        return set()
    bad = without_number(scores["validation_loss"], data.validation.sizes)
    if "train_loss" in scores:
        bad |= without_number(scores["train_loss"], data.train.sizes)
    for name, values in scores.items():
        scores[name] = values.masked_fill(bad | torch.isinf(values), torch.nan)
    return {client for client in bad.nonzero().flatten().tolist() if client in clients}


def finite(scores: Scores) -> Scores:
    """Replace values that are not finite by NaN, in place; return the scores."""
    return {name: values.masked_fill_(~torch.isfinite(values), torch.nan) for name, values in scores.items()}


def scatter(scores: Scores, clients: Sequence[int], values: Scores, size: int) -> None:
    """Write some clients' scores to their positions among all `size` clients; the others stay NaN."""
    at = torch.tensor(clients, dtype=torch.int64)
    for name, own in values.items():
        if name not in scores:
            scores[name] = vacant(size, own.dtype).fill_(torch.nan if own.is_floating_point() else 0)
        scores[name][at] = own


def plain(values: Tensor) -> list[float | None]:
    """Scores of clients with six significant digits, for JSON; None where there is none."""
    return [float(f"{one:.6g}") if math.isfinite(one) else None for one in values.tolist()]


def means(scores: Scores, metrics: Sequence[str] = FOLLOWED) -> dict[str, float | None]:
    """The means of these metrics over clients that have data; None if no client has."""
    followed = [f"{part}_{name}" for part in PARTS for name in metrics]
    found = {name: values[~torch.isnan(values)] for name, values in scores.items() if name in followed}
    return {name: float(values.mean()) if len(values) else None for name, values in found.items()}
