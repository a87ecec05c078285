"""What result.json says of a run, simulated or deployed: what was trained, how far it came, what it cost."""

import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from importlib.metadata import version
from typing import Any

from bespokefl.core.method import Method
from bespokefl.engines.chunks import Executor
from bespokefl.engines.outcome import Outcome
from bespokefl.experiments import privacy
from bespokefl.experiments.config import Config
from bespokefl.metrics.communication import streams_per_round, total_times

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
    states  where clients' states were, if it was here
    """
    interrupted = outcome.rounds_done < outcome.rounds_planned
    told = [f"Interrupted after round {outcome.rounds_done} of {outcome.rounds_planned}."] if interrupted else []
    told += notes
    if outcome.lost:
        times = sum(sum(reasons.values()) for reasons in outcome.lost.values())
        told.append(f"Uploads that did not count: {times}, of {len(outcome.lost)} clients (see lost in result.json).")
    protected = privacy.account(config, names, outcome.uploaded)
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
        "notes": told + privacy.sentences(protected),
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
