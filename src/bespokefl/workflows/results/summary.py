"""The content of result.json except scores: what was trained, on which clients, and at what cost."""

import logging
import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from importlib.metadata import version
from typing import Any

import numpy as np

from bespokefl.core.errors import count, listing
from bespokefl.core.method import Method
from bespokefl.data.clients import Clients
from bespokefl.engines.client import Data
from bespokefl.engines.evaluation import non_finite
from bespokefl.engines.outcome import Outcome
from bespokefl.metrics.communication import streams_per_round, total_times
from bespokefl.metrics.differential_privacy import DELTA, epsilon
from bespokefl.metrics.work import totals
from bespokefl.workflows.run.convert import labels_of
from bespokefl.workflows.run.settings import RunSettings

log = logging.getLogger("bespokefl")

# Settings that result.json has under a name of their own, or not at all.
LISTED_ELSEWHERE = {"method", "set", "data", "split", "model", "seed", "rounds", "out", "overwrite"}


def summarize_run(
    settings: RunSettings,
    method: Method,
    outcome: Outcome,
    *,
    origin: Mapping[str, Any],
    names: Sequence[str],
    notes: Sequence[str],
    timing: Mapping[str, Any],
    packages: Sequence[str] = ("bespokefl", "torch", "numpy"),
) -> dict[str, Any]:
    """Return the content of result.json, without scores.

    `origin` is the result of `origin_of`, `names` are the clients, `timing` has the seconds of the whole run and how it
    was computed, and `packages` are those whose versions are recorded.
    """
    interrupted = outcome.rounds_done < outcome.rounds_planned
    sentences = [f"Interrupted after round {outcome.rounds_done} of {outcome.rounds_planned}."] if interrupted else []
    sentences += notes
    if outcome.lost:
        times = sum(sum(reasons.values()) for reasons in outcome.lost.values())
        whose = count(len(outcome.lost), "client")
        sentences.append(f"Uploads that did not count: {times}, of {whose} (see lost in result.json).")
    privacy = _account_privacy(settings, {name: outcome.uploaded.get(name, 0) for name in names})
    if privacy is not None:
        bound = f"ε ≤ {privacy['largest_epsilon']:.3g} at δ = {privacy['delta']:g}"
        most = count(max(privacy["uploads"].values(), default=0), "upload")
        sentences.append(
            f"Uploads are (ε, δ)-differentially private for each client with {bound}, over {most} at most; scores and "
            "numbers of examples are not covered."
        )
    shown = [one.name for one in fields(settings) if one.name not in LISTED_ELSEWHERE]
    return {
        "method": settings.method,
        "hyper": method.hyper(),
        **{key: origin[key] for key in ("data", "split", "split_hash", "split_seed")},
        "clients": len(names),
        "examples": origin["examples"],
        "model": settings.model,
        "seed": settings.seed,
        "rounds": settings.rounds,
        "rounds_planned": outcome.rounds_planned,
        "rounds_done": outcome.rounds_done,
        "interrupted": interrupted,
        "notes": sentences,
        "settings": {name: getattr(settings, name) for name in shown},
        "personal": None,  # `Result.summary` fills in the figures of these
        "global": None,
        "constant": None,
        "newcomers": None,
        "initial": outcome.initial,
        "python": {},
        "lost": outcome.lost,
        "privacy": privacy,
        "communication": asdict(outcome.communication)
        | {"streams": streams_per_round(outcome.history), "model_time": total_times(outcome.history)},
        "work": totals(outcome.history, None if outcome.final_work is None else outcome.final_work.tolist()),
        "timing": {"seconds_per_round": outcome.seconds_per_round, **timing},
        "versions": {name: version(name) for name in packages} | {"python": platform.python_version()},
    }


def _account_privacy(settings: RunSettings, uploads: Mapping[str, int]) -> dict[str, Any] | None:
    """Return each client's number of uploads and its ε over all of them; None without noise."""
    if not settings.noise:
        return None
    delta = DELTA if settings.delta is None else settings.delta
    known = {number: epsilon(settings.noise, number, delta) for number in sorted({*uploads.values()})}
    return {
        "clip": settings.clip,
        "noise": settings.noise,
        "delta": delta,
        "largest_epsilon": max(known.values(), default=0.0),
        "uploads": uploads,
        "epsilon": {name: known[number] for name, number in uploads.items()},
    }


def notes_of(clients: Clients, data: Data, outcome: Outcome) -> list[str]:
    """Return sentences that help to read the figures."""
    notes = []
    names = clients.label_names
    if names and all(name.isdigit() for name in names) and names != tuple(map(str, range(len(names)))):
        notes.append(f"Labels {listing(names)} are outputs 0 to {len(names) - 1} of the model, in this order.")
        log.warning(notes[-1])
    restored = sum(int(row.get("restored") or 0) for row in outcome.client_notes)
    if restored:
        times = count(restored, "time")
        notes.append(f"A client's head became non-finite and was restored {times}: use a smaller rate for the head.")
    diverged = non_finite(outcome.personal["test_loss"], data.test.sizes, data.names)
    if diverged:
        notes.append(f"The test loss is not finite for {listing(diverged)}: it is left out of the figures.")
    for part in ("validation", "test"):
        without = np.flatnonzero(getattr(clients, part).sizes.numpy() == 0).tolist()
        if without:
            who = listing([clients.names[i] for i in without])
            notes.append(f"Clients without {part} data are left out of the {part} figures: {who}.")
    return notes


def origin_of(clients: Clients) -> dict[str, Any]:
    """Return where clients come from: their data and split."""
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
