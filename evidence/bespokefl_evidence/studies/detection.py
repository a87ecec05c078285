"""Relative false accepts of detectors, against the pre-trained model that all methods started from (Self-FL, 4.3)."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from bespokefl.data.clients import Clients
from bespokefl.metrics.detection import relative_false_accepts
from bespokefl.workflows.results.result import Result


def false_accepts(result: Result, clients: Clients, start: Mapping[str, Tensor]) -> dict[str, Any]:
    """For each client the false accepts at a relative false-reject rate of 1, personal and global; None: undefined."""
    shared = result.global_model()
    found: dict[str, Any] = {"personal": [], "global": []}
    for index, name in enumerate(result.names):
        own = result.model(name)
        examples = clients.test.of(index)
        x, labels = clients.x[examples], clients.y[examples].tolist()
        if result.preparation is not None and result.preparation.changes:
            x = result.preparation.apply(x)
        models = {"personal": own} | ({} if shared is None else {"global": shared})
        scores = {kind: _scores(model, x) for kind, model in models.items()}
        own.load_state_dict(dict(start))
        baseline = _scores(own, x)
        for kind, values in scores.items():
            found[kind].append(relative_false_accepts(values, baseline, labels))
    return {kind: values for kind, values in found.items() if values}


def _scores(model: nn.Module, x: Tensor) -> list[float]:
    """The probability of a detection."""
    with torch.no_grad():
        return torch.cat([model(part).softmax(-1)[:, 1] for part in x.split(1000)]).tolist()
