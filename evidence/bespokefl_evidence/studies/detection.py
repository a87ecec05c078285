"""False accepts of detectors, against the pre-trained model that all methods started from (Self-FL, section 4.3)."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from bespokefl.data.clients import Clients
from bespokefl.metrics.detection import against_baseline
from bespokefl.workflows.results.result import Result

MISSED = 0.1  # of the words: each client's operating point of the baseline


def false_accepts(result: Result, clients: Clients, start: Mapping[str, Tensor]) -> dict[str, list[Any]]:
    """For each client the false accepts of its personal and of the global model, where both miss as many words.

    The baseline are the weights `start`, at the threshold where it misses a tenth of a client's words. "personal" and
    "global" are relative to the baseline (None: it has none, or there are no words); "personal_count", "global_count"
    and "baseline_count" are numbers.
    """
    shared = result.global_model()
    found: dict[str, list[Any]] = {}
    for index, name in enumerate(result.names):
        own = result.model(name)
        examples = clients.test.of(index)
        x, is_word = prepared(result, clients.x[examples]), clients.y[examples].numpy() == 1
        scores = {"personal": _scores(own, x)} | ({} if shared is None else {"global": _scores(shared, x)})
        own.load_state_dict(dict(start))
        baseline = _scores(own, x)
        if not is_word.any():  # nothing can be missed, and no threshold follows
            for kind in ("baseline_count", *scores, *(f"{kind}_count" for kind in scores)):
                found.setdefault(kind, []).append(None)
            continue
        threshold = float(np.sort(baseline[is_word])[int(MISSED * is_word.sum())])
        found.setdefault("baseline_count", []).append(int((baseline[~is_word] >= threshold).sum()))
        for kind, values in scores.items():
            compared = against_baseline(values, baseline, is_word.astype(int), threshold=threshold)
            found.setdefault(kind, []).append(compared.false_accepts)
            found.setdefault(f"{kind}_count", []).append(int((values[~is_word] >= compared.threshold).sum()))
    return found


def prepared(result: Result, x: Tensor) -> Tensor:
    """Examples as the models of the result expect them."""
    preparation = result.preparation
    return x if preparation is None or not preparation.changes else preparation.apply(x)


def _scores(model: nn.Module, x: Tensor) -> np.ndarray:
    """The log-odds of a detection; probabilities would tie at 0 and 1."""
    with torch.no_grad():
        outputs = torch.cat([model(part) for part in x.split(1000)])
    return (outputs[:, 1] - outputs[:, 0]).numpy()
