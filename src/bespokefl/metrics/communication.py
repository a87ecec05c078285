"""What a round costs: models sent down and up, and the time that takes in a wireless or a wired system.

Mestoukirdi et al. (User-Centric FL), section V-D. All times are in units of T_dl, what it takes to send one model down:
    T_round = streams + ρ · uploads + T_comp,   T_comp = T_min + H_N / μ
The server sends what several clients share only once: `streams` counts that, in models. Clients send up one after the
other, ρ times as slowly. T_comp is the expected time of the slowest of N clients, H_N = 1 + 1/2 + … + 1/N.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from bespokefl.core.errors import InputError
from bespokefl.metrics.vectors import Array


@dataclass(frozen=True)
class System:
    """A network and its clients."""

    name: str
    ratio: float  # ρ = T_ul / T_dl
    straggling: float  # 1/μ: the mean of what a client takes longer than T_min, in T_dl
    minimum: float = 1.0  # T_min, in T_dl


SYSTEMS = (System("slow uplink", 4.0, 1.0), System("fast uplink", 2.0, 0.0), System("wired", 1.0, 0.0))  # Fig. 6


def computing_time(system: System, clients: int) -> float:
    """T_comp = T_min + H_N / μ of N clients; none take no time."""
    if clients < 0:
        raise InputError(f"clients must be >= 0, got {clients}.")
    harmonic = float((1.0 / np.arange(1, clients + 1)).sum())
    return system.minimum + system.straggling * harmonic if clients else 0.0


def round_time(system: System, *, streams: float, uploads: float, clients: int, workload: float = 1.0) -> float:
    """T_round, in T_dl.

    streams     models that the server sends, each once however many clients hear it
    uploads     models that are sent up, those of all clients together
    clients     N, how many the round waits for
    workload    local trainings of each: m_t in parallel User-Centric FL, 0 where nothing is trained
    """
    if not (streams >= 0 and uploads >= 0 and workload >= 0):
        raise InputError(f"streams, uploads and workload must be >= 0, got {streams}, {uploads} and {workload}.")
    return float(streams + system.ratio * uploads + workload * computing_time(system, clients))


def times(rounds: Sequence[Mapping[str, Any]], system: System) -> Array:
    """T_round of every round of a run, from the lines of its rounds.jsonl (`Result.rounds`).

    A round waits for those that report; where nobody does, for those that train.
    """
    if any("down_streams" not in line for line in rounds):
        raise InputError("the rounds do not say what was sent, as in a run of an earlier version; run it once more.")
    return np.array(
        [
            round_time(
                system,
                streams=line["down_streams"],
                uploads=line["up_models"],
                clients=line["reported"] or line["trained"],
                workload=line["workload"],
            )
            for line in rounds
        ]
    )


def total_times(rounds: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """The whole run's time in each of the three systems."""
    return {system.name: float(times(rounds, system).sum()) for system in SYSTEMS}


def streams_per_round(rounds: Sequence[Mapping[str, Any]]) -> float | None:
    """The mean over the rounds of a run; None without rounds."""
    return float(np.mean([line["down_streams"] for line in rounds])) if rounds else None
