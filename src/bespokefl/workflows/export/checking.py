"""Compares an exported file with the model that it was made from, on real examples if the run's data can be loaded."""

import logging
from dataclasses import replace
from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from bespokefl.core import rng
from bespokefl.core.errors import BespokeError, InputError, said
from bespokefl.data.clients import Clients
from bespokefl.data.preprocessing.transform import Preparation
from bespokefl.data.tables import text
from bespokefl.data.tables.features import Table
from bespokefl.workflows.export.formats import Predict
from bespokefl.workflows.export.inputs import Inputs
from bespokefl.workflows.newcomers.result import Newcomers
from bespokefl.workflows.results.result import Result
from bespokefl.workflows.results.run_directory import SPLIT_FILE
from bespokefl.workflows.run.client_loading import load_clients

MAX_EXAMPLES = 256
RANDOM_EXAMPLES = 64
TOLERANCE = 1e-4  # of a probability, or relative to the largest value

log = logging.getLogger("bespokefl")


class Examples(NamedTuple):
    """Examples on which predictions are compared."""

    inputs: np.ndarray  # as the exported model takes them
    prepared: Tensor  # as the model takes them
    origin: str  # "test data", "training data" or "random inputs"


class ExampleSource:
    """The examples of a run's clients; its data are loaded once, when they are first needed."""

    def __init__(self, run: Result | Newcomers) -> None:
        self.run = run

    @cached_property
    def clients(self) -> Clients | None:
        """The clients of the run before preprocessing; None if its data cannot be loaded."""
        run = self.run
        if isinstance(run, Newcomers) or "nodes" in run.about:
            return None
        settings, level = run.config, log.level
        if run.path is not None and (run.path / SPLIT_FILE).exists():
            settings = replace(settings, split=str(run.path / SPLIT_FILE))
        log.setLevel(logging.ERROR)  # the run itself has logged what there is to say about its data
        try:
            found = load_clients(settings)
        except (BespokeError, OSError):
            return None
        finally:
            log.setLevel(level)
        return found if found.hash == run.about["split_hash"] else None

    def examples(self, client: str | None, inputs: Inputs, preparation: Preparation | None) -> Examples:
        """Return examples of a client, or of all clients (None); random ones if there are none."""
        clients = self.clients
        if clients is None or (client is not None and client not in clients.names):
            x, origin = inputs.random(RANDOM_EXAMPLES, rng.generator(0, "export")), "random inputs"
            raw = inputs.to_examples(x)
            return Examples(x, _prepare(preparation, raw, client), origin)
        origin, chosen = _choose(clients, client)
        raw = clients.x[chosen].numpy()
        if inputs.is_text:
            prepared = _prepare(preparation, _documents(clients, raw), client)
            return Examples(prepared.numpy(), prepared, origin)
        return Examples(inputs.from_examples(raw), _prepare(preparation, raw, client), origin)


def difference(predict: Predict, inputs: np.ndarray, expected: np.ndarray) -> float:
    """Return the largest difference of an exported model's predictions, of all examples at once and of single ones.

    Raises
    ------
    InputError
        If the exported model fails or its predictions differ.
    """
    try:
        found = np.concatenate([predict(inputs), predict(inputs[:1])])
    except Exception as error:  # any error of the runtime
        raise InputError(
            f"the exported model fails, perhaps as its number of examples is fixed: {said(error)}"
        ) from None
    wanted = np.concatenate([expected, expected[:1]])
    if found.shape != wanted.shape:
        raise InputError(f"the exported model's outputs have shape {found.shape}, not {wanted.shape}")
    equal = np.isnan(found) & np.isnan(wanted)  # of a model that has diverged
    apart = float(np.abs(np.where(equal, 0.0, found - wanted)).max())
    if not apart <= TOLERANCE * max(1.0, float(np.abs(np.nan_to_num(wanted)).max())):
        raise InputError(f"the exported model's predictions differ by {apart:.2g}")
    return apart


def _choose(clients: Clients, client: str | None) -> tuple[str, Tensor]:
    """The first test examples of a client, or of all; training examples if there are none."""
    parts = {"test data": clients.test, "training data": clients.train}
    found = {
        origin: part.indices if client is None else part.of(clients.names.index(client))
        for origin, part in parts.items()
    }
    origin = next((origin for origin, own in found.items() if len(own)), "training data")
    return origin, found[origin][:MAX_EXAMPLES]


def _documents(clients: Clients, ids: np.ndarray) -> np.ndarray:
    """Words that were encoded by all words of the data, as texts; other word ids unchanged."""
    source = clients.source
    if not isinstance(source, Table) or source.features.kind != "text":
        return ids
    words = np.array(["", "", *source.features.columns[0].values], dtype=object)
    return np.array([" ".join(words[row[row >= text.FIRST]]) for row in ids])


def _prepare(preparation: Preparation | None, raw: np.ndarray, client: str | None) -> Tensor:
    return torch.from_numpy(raw) if preparation is None else preparation.apply(raw, client=client)
