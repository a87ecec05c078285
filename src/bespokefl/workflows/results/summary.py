"""What result.json says of a run, simulated or deployed: what was trained, how far it came, what it cost."""

import logging
import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from importlib.metadata import version
from typing import Any

import numpy as np

from bespokefl import methods
from bespokefl.core.errors import count, listing
from bespokefl.core.method import Method
from bespokefl.core.nn.losses import Loss
from bespokefl.data.clients import Clients
from bespokefl.engines.chunks import Executor
from bespokefl.engines.client import Data
from bespokefl.engines.evaluation import non_finite
from bespokefl.engines.outcome import Outcome
from bespokefl.metrics.communication import streams_per_round, total_times
from bespokefl.workflows.run import privacy_accounting
from bespokefl.workflows.run.convert import labels_of
from bespokefl.workflows.run.settings import Config

log = logging.getLogger("bespokefl")

APART = {"method", "set", "data", "split", "model", "seed", "rounds", "out", "overwrite"}  # said elsewhere, or nowhere


def summary(
    config: Config,
    method: Method,
    outcome: Outcome,
    *,
    origin: Mapping[str, Any],
    names: Sequence[str],
    notes: Sequence[str],
    seconds: float,
    executor: Executor,
    workers: int,
    states: str | None = None,
    packages: Sequence[str] = ("bespokefl", "torch", "numpy"),
) -> dict[str, Any]:
    """What result.json says.

    origin  where the clients come from: data, split, split_hash, split_seed and examples
    notes   sentences that a reader of the figures has to know
    states  where clients' states were, if it was here
    """
    interrupted = outcome.rounds_done < outcome.rounds_planned
    told = [f"Interrupted after round {outcome.rounds_done} of {outcome.rounds_planned}."] if interrupted else []
    told += notes
    if outcome.lost:
        times = sum(sum(reasons.values()) for reasons in outcome.lost.values())
        whose = count(len(outcome.lost), "client")
        told.append(f"Uploads that did not count: {times}, of {whose} (see lost in result.json).")
    protected = privacy_accounting.account(config, names, outcome.uploaded)
    return {
        "method": config.method,
        "hyper": method.hyper(),
        **{key: origin[key] for key in ("data", "split", "split_hash", "split_seed")},
        "clients": len(names),
        "examples": origin["examples"],
        "model": config.model,
        "seed": config.seed,
        "rounds": config.rounds,
        "rounds_planned": outcome.rounds_planned,
        "rounds_done": outcome.rounds_done,
        "interrupted": interrupted,
        "notes": told + privacy_accounting.sentences(protected),
        "settings": {one.name: getattr(config, one.name) for one in fields(config) if one.name not in APART},
        "personal": None,  # both are worked out from the clients' scores
        "global": None,
        "newcomers": None,
        "python": {},
        "lost": outcome.lost,
        "privacy": protected,
        "communication": asdict(outcome.communication)
        | {"streams": streams_per_round(outcome.history), "model_time": total_times(outcome.history)},
        "timing": {
            "seconds_per_round": outcome.seconds_per_round,
            "seconds": seconds,
            **asdict(executor),
            "workers": workers,
            **({} if states is None else {"states": states}),
        },
        "versions": {name: version(name) for name in packages} | {"python": platform.python_version()},
    }


def from_python(config: Config, method: Method, loss: str | Loss | None, lost: list[str]) -> dict[str, str]:
    """What the files of a run cannot hold, and what it was."""
    found = {}
    if methods.REGISTRY.get(config.method) is not type(method):
        found["method"] = type(method).__name__
    elif lost:
        found["method"] = f"{type(method).__name__} with {listing(lost)}"
    if callable(loss):
        found["loss"] = getattr(loss, "__name__", type(loss).__name__)
    return found


def notes_of(clients: Clients, data: Data, outcome: Outcome) -> list[str]:
    """What a reader of the figures has to know, one sentence each."""
    notes = []
    names = clients.label_names
    if names and all(name.isdigit() for name in names) and names != tuple(map(str, range(len(names)))):
        notes.append(f"Labels {listing(names)} are outputs 0 to {len(names) - 1} of the model, in this order.")
        log.warning(notes[-1])
    restored = sum(int(row.get("restored") or 0) for row in outcome.client_notes)
    if restored:
        often = count(restored, "time")
        notes.append(f"A client's head became non-finite and was restored {often}: use a smaller head_lr.")
    endless = non_finite(outcome.personal["test_loss"], data.test.sizes, data.names)
    if endless:
        notes.append(f"The test loss is not finite for {listing(endless)}: it is left out of the figures.")
    for part in ("validation", "test"):
        without = np.flatnonzero(getattr(clients, part).sizes.numpy() == 0).tolist()
        if without:
            who = listing([clients.names[i] for i in without])
            notes.append(f"Clients without {part} data are left out of the {part} figures: {who}.")
    return notes


def origin_of(clients: Clients) -> dict[str, Any]:
    """Where clients come from: their data and split."""
    return {
        "data": clients.data_name,
        "split": clients.split_name,
        "split_hash": clients.hash,
        "split_seed": clients.seed,
        "examples": {
            "shape": clients.shape,
            "tokens": not clients.x.is_floating_point(),
            "labels": None if clients.classes is None else labels_of(clients),
        },
    }
